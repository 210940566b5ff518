package partition

import (
	"errors"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// A client's write waited for the replicas when a mirror began. Its leader cut the
// write off and copied the source's records to its place, whose high watermark then
// acknowledged what was gone. (Simulation of two clusters, seed 3000.)
func TestMirrorCutRefusesWaitingWrites(t *testing.T) {
	w := newWorld(t)
	p := w.apply(func(t *metadata.Topic) {
		m := t.Partitions[0]
		m.Replicas, m.ISR = []int32{self, 2}, []int32{self, 2}
	})
	waits := produce(p, batch(1), -1)
	w.apply(func(t *metadata.Topic) {
		t.MirrorName = "m"
		m := t.Partitions[0]
		m.Replicas, m.ISR = []int32{self, 2}, []int32{self, 2}
	})
	if _, err := p.Truncate(3, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := p.MirrorAppend(3, batch(5)); err != nil {
		t.Fatal(err)
	}
	fetch := ReadRequest{Offset: 5, MaxBytes: 1 << 20, CurrentLeaderEpoch: 3, LastFetchedEpoch: -1}
	if _, err := p.ReadReplica(fetch, Replica{ID: 2, BrokerEpoch: -1, Durable: 5}); err != nil {
		t.Fatal(err)
	}
	if hw := p.HighWatermark(); hw != 5 {
		t.Fatalf("high watermark %d", hw)
	}
	if a := w.wait(waits); !errors.Is(a.err, ErrReadOnly) {
		t.Errorf("the write that was cut off is answered with %+v, %v", a.r, a.err)
	}
}
