package sim

import (
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/segment"
)

// batchAt is a batch of one record as a leader would have written it.
func batchAt(base int64, epoch int32, value string) []byte {
	b := record.Batch(record.Build(record.NoProducer(0), []record.Record{{Value: []byte(value)}}))
	b.SetBaseOffset(base)
	b.SetLeaderEpoch(epoch)
	return b
}

// A log whose start has moved behind a batch, and which lost all that came after it, knows
// nothing: no epoch with which it could ask a leader whether histories part. It goes on at
// its log start with what the leader has there, though in front of that the leader, elected
// uncleanly, has something else than it once had. GI-11 does not speak of what is deleted.
// (make sim SEED=500215)
func TestCheckerForgetsWhatIsDeleted(t *testing.T) {
	w := newCluster(newLoop(1), Options{Brokers: 3})
	id := segment.LogID{Topic: [16]byte{1}}
	log := func(broker int32) *memLog {
		l, err := w.brokers[broker].disk.Open(id)
		if err != nil {
			t.Fatal(err)
		}
		return l.(*memLog)
	}
	add := func(l *memLog, b []byte) {
		t.Helper()
		if _, err := l.Append(b); err != nil {
			t.Fatal(err)
		}
	}
	g := w.check.ghost(id)
	g.leaders[0], g.leaders[3], g.version = 1, 2, 1
	old, leader := log(1), log(2)
	add(old, batchAt(0, 0, "old"))
	add(old, batchAt(1, 0, "lost"))
	if err := old.SetStartOffset(1); err != nil {
		t.Fatal(err)
	}
	old.shorten(0, 1)
	add(leader, batchAt(0, 3, "new"))
	add(leader, batchAt(1, 3, "both"))
	add(old, batchAt(1, 3, "both"))
	if w.check.err != nil {
		t.Error(w.check.err)
	}
	// What lies behind its start is another matter.
	add(leader, batchAt(2, 3, "leader's"))
	add(old, batchAt(2, 3, "another"))
	if w.check.err == nil {
		t.Error("another batch of the same epoch at the same offset is not seen")
	}
}

// A leader that has not heard yet that its topic was deleted commits once more, and serves
// the mirror in the other cluster. GI-21 does not call invented what comes from there.
// (make mirrorsim SEED=400062)
func TestPlayDeletedSourceGoesOn(t *testing.T) {
	t.Parallel()
	p := begin(t, 170, "a writes 3, b follows")
	leader, mirror := p.leader(p.a), p.leader(p.b)
	for _, id := range p.a.ids {
		p.a.net.isolate(storeNode, id, true)
	}
	p.wish(p.a, p.id, "delete topic")
	p.wait("the topic is deleted", func() bool { return p.partition(p.a) == nil })
	p.loop.after(0, &leader.proc, func() {
		body := record.Build(record.NoProducer(0), []record.Record{{Value: []byte("late")}})
		leader.mgr.ByID(p.id, p.at).Produce(body, partition.ProduceOptions{Acks: 1}, func(partition.ProduceResult, error) {})
	})
	p.wait("the mirror has it", func() bool { return p.end(mirror) == 4 })
	p.back(p.a)
	p.settles()
}
