package producer

import (
	"bytes"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// What pieces of batches leave, gathered and applied as a whole, is what the batches
// leave one by one: runs with epochs that change, with and without sequences and
// transactions, between markers, resets and batches of nobody.
func TestChangesAreTheirBatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one, all := New(), New()
		var c Changes
		end, id, epoch := int64(0), int64(1), int16(0)
		for range rapid.IntRange(1, 8).Draw(t, "pieces") {
			c.Reset()
			for range rapid.IntRange(1, 20).Draw(t, "batches") {
				if rapid.IntRange(0, 3).Draw(t, "another") == 0 { // else the run goes on
					id, epoch = rapid.Int64Range(-1, 3).Draw(t, "id"), int16(rapid.IntRange(0, 2).Draw(t, "epoch"))
				}
				b := drawBatch(t, end, id, epoch)
				one.Apply(b)
				var h record.Head
				h.Of(b)
				c.Add(b, &h)
				end = b.NextOffset()
			}
			all.ApplyAll(&c)
		}
		// The producer found last is a short cut, not state: who meets it first differs.
		one.latest, all.latest = nil, nil
		if !reflect.DeepEqual(one, all) || !bytes.Equal(one.Encode(nil), all.Encode(nil)) {
			t.Fatalf("one by one %+v, %v\ngathered %+v, %v", one.Producers(), one.Aborts(), all.Producers(), all.Aborts())
		}
	})
}

func drawBatch(t *rapid.T, base, id int64, epoch int16) record.Batch {
	switch rapid.IntRange(0, 11).Draw(t, "kind") {
	case 0:
		return of(record.AbortMarker(id, epoch, 4, base), base)
	case 1:
		return of(record.CommitMarker(id, epoch, 4, base), base)
	case 2:
		return of(record.PIDReset("m", base), base)
	case 3: // a control batch that nobody can read
		return record.Build(record.BuildHeader{BaseOffset: base, ProducerID: id, ProducerEpoch: epoch, Control: true}, make([]record.Record, 1))
	}
	records := make([]record.Record, rapid.IntRange(1, 3).Draw(t, "records"))
	for i := range records {
		records[i].OffsetDelta = int32(i)
	}
	return record.Build(record.BuildHeader{
		BaseOffset: base, BaseTimestamp: rapid.Int64Range(0, 100).Draw(t, "time"), ProducerID: id, ProducerEpoch: epoch,
		BaseSequence: int32(rapid.IntRange(-1, 3).Draw(t, "sequence")), Transactional: rapid.Bool().Draw(t, "transactional"),
	}, records)
}
