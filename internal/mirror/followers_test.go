package mirror

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// A mirror with followers passes its gate when each member of the ISR has fetched
// from within the leader's log, in the leadership in which that was cut, and not
// before (9.6.4).
//
// MIR-194: the gate of a topic that was empty opens as soon as enough are in sync and have
// asked.
func TestGateWaitsForFollowers(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	produce(t, src, "orders", 0, "a", "b")
	w, p := withFollower(t, src)
	w.create("dr", src)
	w.start("dr", "orders")
	w.state("orders", 0, metadata.StatePreparing)
	fetch := func(epoch int32) error {
		res, err := p.ReadReplica(partition.ReadRequest{CurrentLeaderEpoch: epoch, LastFetchedEpoch: -1}, partition.Replica{ID: 2, BrokerEpoch: -1, Durable: -1})
		res.View.Release()
		return err
	}
	if got := w.partition("orders", 0).State; got != metadata.StatePreparing {
		t.Fatalf("%v before the follower fetched", got)
	}
	w.until("mirrored", func() bool {
		// Again and again, as a follower does: the first may come before the gate waits.
		if err := fetch(p.Info().LeaderEpoch); err != nil {
			t.Fatal(err)
		}
		return w.partition("orders", 0).State == metadata.StateMirroring
	})
	w.until("the records are here", func() bool { end, _ := p.LogEnd(); return end == 2 })
}

// withFollower is a destination that has the source's topic orders, led here, with a
// follower that is registered and fetches when the test does.
func withFollower(t *testing.T, src *kfake.Cluster) (*world, *partition.Partition) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	topics, err := kadm.NewClient(cl).ListTopics(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}

	w := newWorld(t, nil)
	epoch, err := w.ctrl.RegisterBroker(w.ctx, controller.RegisterBroker{ID: 2, Incarnation: [16]byte{2}})
	if err == nil {
		_, err = w.ctrl.Heartbeat(w.ctx, controller.Heartbeat{Broker: 2, Epoch: epoch, Revision: w.ctrl.Image().Revision})
	}
	if err != nil {
		t.Fatal(err)
	}
	created := w.ctrl.CreateTopics(w.ctx, []controller.CreateTopic{{
		Name: "orders", ID: metadata.TopicID(topics["orders"].ID), Assignment: map[int32][]int32{0: {1, 2}},
	}}, false)
	if created[0].Err != nil {
		t.Fatal(created[0].Err)
	}
	w.until("there is a log", func() bool { return w.parts.Get("orders", 0) != nil && w.parts.Get("orders", 0).Info().Leader })
	return w, w.parts.Get("orders", 0)
}

// A follower asked at offset 1, heard nothing for long, asked again, and got records up
// to 3. Then a mirror cut its leader to zero, and the first question arrived: it proves
// nothing of a log that holds what the leader has cut. The gate counts what is asked in
// the leader epoch that the cut began, and that question is not of it (W30).
func TestLateFetchDoesNotOpenGate(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	produce(t, src, "orders", 0, "a", "b")
	w, p := withFollower(t, src)
	for range 3 {
		done := make(chan error, 1)
		p.Produce(record.Build(record.NoProducer(1), []record.Record{{Value: []byte("ours")}}), partition.ProduceOptions{Acks: 1},
			func(_ partition.ProduceResult, err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	before := p.Info().LeaderEpoch
	fetch := func(epoch int32, offset int64) error {
		res, err := p.ReadReplica(partition.ReadRequest{Offset: offset, CurrentLeaderEpoch: epoch, LastFetchedEpoch: -1, MaxBytes: 1 << 20}, partition.Replica{ID: 2, BrokerEpoch: -1, Durable: -1})
		res.View.Release()
		return err
	}
	if err := fetch(before, 3); err != nil {
		t.Fatal(err)
	}
	w.create("dr", src)
	w.start("dr", "orders")
	w.until("the leader has cut, in an epoch that its cut ended", func() bool { return p.Info().LogEnd == 0 && p.Info().LeaderEpoch == before+1 })
	if err := fetch(before, 0); !errors.Is(err, partition.ErrFencedEpoch) {
		t.Fatalf("the late question is answered: %v", err)
	}
	if got := w.partition("orders", 0).State; got != metadata.StatePreparing {
		t.Fatalf("%v, and the follower has not cut", got)
	}
	w.until("mirrored", func() bool {
		// Again and again, as a follower does: the first may come before the gate waits.
		if err := fetch(p.Info().LeaderEpoch, 0); err != nil && !errors.Is(err, partition.ErrFencedEpoch) {
			t.Fatal(err)
		}
		return w.partition("orders", 0).State == metadata.StateMirroring
	})
}
