package producer

import (
	"errors"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// What a coordinator may append in a producer's name.
func TestCheckMarker(t *testing.T) {
	open := func() *Table { return apply(data(0, 4, 0, 3, true)) }                                          // epoch 4, a transaction is open
	ended := func() *Table { return apply(data(0, 4, 0, 3, true), of(record.CommitMarker(7, 5, 9, 0), 3)) } // by a bump to 5, coordinator 9
	again := func() *Table { x := ended(); x.Apply(data(4, 5, 0, 1, true)); return x }                      // the next one is open in epoch 5
	old := func() *Table { return apply(data(0, 4, 0, 3, true), of(record.CommitMarker(7, 4, 9, 0), 3)) }   // without a bump
	for _, c := range []struct {
		name    string
		table   *Table
		epoch   int16
		coord   int32
		version int
		err     error
	}{
		{"a producer that is not known", New(), 0, 0, 2, nil},
		{"with the producer's own epoch", open(), 4, 0, 1, nil},
		{"a fencing abort with a later epoch", open(), 5, 0, 1, nil},
		{"of an older epoch", open(), 3, 0, 1, ErrFencedEpoch},
		{"version 2 with the next epoch", open(), 5, 0, 2, nil},
		{"version 2 without a bump ends an earlier transaction", open(), 4, 0, 2, ErrFencedEpoch},
		{"twice, version 2", ended(), 5, 9, 2, nil},
		{"twice, version 1", old(), 4, 9, 1, nil},
		{"twice, when the next transaction is open already", again(), 5, 9, 2, ErrFencedEpoch},
		{"of a coordinator that was replaced", ended(), 6, 8, 2, ErrCoordinatorFenced},
		{"of its successor", ended(), 6, 10, 2, nil},
	} {
		if err := c.table.CheckMarker(7, c.epoch, c.coord, c.version); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
	}
}

func TestInTransaction(t *testing.T) {
	x := apply(data(0, 4, 0, 3, true))
	if !x.InTransaction(7, 4) || x.InTransaction(7, 5) || x.InTransaction(8, 4) {
		t.Error("only the epoch that wrote is in the transaction")
	}
	x.Apply(of(record.CommitMarker(7, 5, 0, 0), 3))
	if x.InTransaction(7, 4) || x.InTransaction(7, 5) {
		t.Error("the marker ends it, in every epoch")
	}
	// KIP-890: after the marker's bump nothing of the old epoch gets in, neither
	// records nor offsets, and the next epoch begins with sequence 0.
	for _, c := range []struct {
		b   record.Batch
		err error
	}{
		{data(4, 4, 3, 1, true), ErrFencedEpoch},
		{data(4, 5, 3, 1, true), ErrOutOfOrderSequence},
		{data(4, 5, 0, 1, true), nil},
	} {
		if _, err := x.Check(c.b); !errors.Is(err, c.err) {
			t.Errorf("epoch %d sequence %d: %v, want %v", c.b.ProducerEpoch(), c.b.BaseSequence(), err, c.err)
		}
	}
	if err := x.CheckEpoch(7, 4); !errors.Is(err, ErrFencedEpoch) {
		t.Errorf("offsets of the old epoch: %v", err)
	}
	if err := x.CheckEpoch(7, 5); err != nil {
		t.Error(err)
	}
}
