package mirror

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// A mirror with followers passes its gate when each member of the ISR has fetched
// from within the leader's log, in the leadership in which that was cut, and not
// before (9.6.4).
func TestGateWaitsForFollowers(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	produce(t, src, "orders", 0, "a", "b")
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
	w.create("dr", src)
	w.start("dr", "orders")
	w.state("orders", 0, metadata.StatePreparing)
	p := w.parts.Get("orders", 0)
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
