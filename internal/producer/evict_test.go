package producer

import (
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// A flood of producer ids that are never used again leaves the memory bounded,
// and the producers that go on writing known.
func TestProducersAreBounded(t *testing.T) {
	tab := New()
	offset := int64(0)
	write := func(id int64, seq int32, txn bool) {
		h := record.BuildHeader{BaseOffset: offset, ProducerID: id, BaseSequence: seq, Transactional: txn}
		tab.Apply(record.Batch(record.Build(h, []record.Record{{Value: []byte("v")}})))
		offset++
	}
	const good, open = 1 << 40, 1<<40 + 1
	write(open, 0, true)
	for i := range int64(3 * MaxProducers) {
		if i%1000 == 0 {
			write(good, int32(i/1000), false)
		}
		write(i, 0, false)
	}
	if n := len(tab.producers); n > MaxProducers {
		t.Errorf("%d producers are known, at most %d are to be", n, MaxProducers)
	}
	if !tab.Has(good) || !tab.Has(open) {
		t.Errorf("writes on: known %v; has a transaction open: known %v", tab.Has(good), tab.Has(open))
	}
}
