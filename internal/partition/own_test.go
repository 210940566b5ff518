package partition

import (
	"errors"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// What our own coordinators write is acks=all: it is refused before the append
// while too few replicas are in sync, and a refusal that comes after the append
// says that the batch may still be committed. A coordinator must know the two
// apart.
func TestOwnBatches(t *testing.T) {
	w := newWorld(t)
	const other = 2
	p := w.apply(func(t *metadata.Topic) {
		t.Configs = map[string]string{"min.insync.replicas": "2"}
		t.Partitions[0].Replicas = []int32{self, other}
	})
	for name, write := range map[string]func(done func(error)){
		"internal": func(done func(error)) { p.AppendInternal(3, batch(1), func(_ int64, err error) { done(err) }) },
		"offsets": func(done func(error)) {
			p.AppendOffsets(3, batch(1), false, nil, func(_ int64, err error) { done(err) })
		},
		"marker": func(done func(error)) { p.AppendMarker(3, Marker{ProducerID: 1, Commit: true}, done) },
	} {
		refused := make(chan error, 1)
		write(func(err error) { refused <- err })
		if err := <-refused; !errors.Is(err, ErrNotEnoughReplicas) || errors.Is(err, ErrMayCommit) || end(p) != 0 {
			t.Fatalf("%s with one replica of two in sync: %v, log end %d", name, err, end(p))
		}
	}

	// The other one is in sync and slow, and then takes over.
	p = w.apply(func(t *metadata.Topic) { t.Partitions[0].ISR = []int32{self, other} })
	refused := make(chan error, 1)
	p.AppendInternal(3, batch(1), func(_ int64, err error) { refused <- err })
	if end(p) != 1 {
		t.Fatalf("log end %d", end(p))
	}
	w.apply(func(t *metadata.Topic) { t.Partitions[0].Leader, t.Partitions[0].LeaderEpoch = other, 4 })
	if err := <-refused; !errors.Is(err, ErrNotLeader) || !errors.Is(err, ErrMayCommit) {
		t.Fatalf("the leader went before the acknowledgement: %v", err)
	}
	p.AppendInternal(3, batch(1), func(_ int64, err error) { refused <- err })
	if err := <-refused; !errors.Is(err, ErrNotLeader) || errors.Is(err, ErrMayCommit) {
		t.Fatalf("append of a leader that was deposed: %v", err)
	}

	// No more replicas are wanted than there are.
	p = w.apply(func(t *metadata.Topic) {
		t.Partitions[0].Leader, t.Partitions[0].LeaderEpoch = self, 5
		t.Partitions[0].Replicas, t.Partitions[0].ISR = []int32{self}, []int32{self}
	})
	p.AppendInternal(5, batch(1), func(_ int64, err error) { refused <- err })
	if err := <-refused; err != nil {
		t.Fatalf("the only replica: %v", err)
	}
}
