package mirror

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// forget makes a source deny everything from an offset on when it is asked where
// epochs end, as one does whose unclean leader never had it. It keeps its
// records, so what is cut comes again.
func forget(src *kfake.Cluster, from *atomic.Int64) {
	src.ControlKey(23, func(req kmsg.Request) (kmsg.Response, error, bool) {
		src.KeepControl()
		end := from.Load()
		if end < 0 {
			return nil, nil, false
		}
		r := req.(*kmsg.OffsetForLeaderEpochRequest)
		resp := r.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse)
		for _, rt := range r.Topics {
			st := kmsg.NewOffsetForLeaderEpochResponseTopic()
			st.Topic = rt.Topic
			for _, rp := range rt.Partitions {
				sp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				sp.Partition, sp.LeaderEpoch, sp.EndOffset = rp.Partition, rp.LeaderEpoch, end
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
}

// A source that lost records, with the option off: nothing is cut, the partition
// fails for good and says why; recover goes through PREPARING (9.9, S20; MIR-125).
func TestSourceLossOptionOff(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	var from atomic.Int64
	from.Store(-1)
	forget(src, &from)
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a", "b", "c")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 3)

	w.names(w.c.Pause(w.ctx, "m", nil, []string{".*"}))
	w.state("orders", 0, metadata.StatePaused)
	from.Store(1)
	w.names(w.c.Resume(w.ctx, "m", nil, []string{".*"}))
	d := w.failed("orders", 0, "source lost records: ")
	if d.RetryAttempt != nonRetryable || !strings.Contains(d.ErrorMessage, metadata.MirrorULEConfig) {
		t.Errorf("failure: %+v", d)
	}
	if end, _ := w.parts.Get("orders", 0).LogEnd(); end != 3 {
		t.Errorf("log end %d: something was cut", end)
	}
	from.Store(-1)
	w.names(w.c.Recover(w.ctx, "m", nil, nil))
	w.caughtUp("orders", 0, 3)
	out, err := w.c.Recover(w.ctx, "m", []string{"orders"}, nil)
	if err != nil || len(out) != 1 || !errors.Is(out[0].Err, controller.ErrMirrorStates) {
		t.Errorf("recover of what did not fail: %v, %v", out, err)
	}
}

// With the option on: ULE_RECOVERY, the log is cut, and mirroring goes on.
func TestSourceLossOptionOn(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	var from atomic.Int64
	from.Store(-1)
	forget(src, &from)
	w := newWorld(t, func(o *Options) {
		o.GroupsAbove = func(context.Context, string, int32, int64) ([]string, error) { return []string{"readers"}, nil }
	})
	produce(t, src, "orders", 0, "a", "b", "c")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 3)
	on := "true"
	for _, err := range w.ctrl.AlterConfigs(w.ctx, []controller.AlterConfigs{{Type: controller.ResourceTopic, Name: "orders",
		Ops: []controller.ConfigOp{{Name: metadata.MirrorULEConfig, Value: &on}}}}, false) {
		if err != nil {
			t.Fatal(err)
		}
	}
	w.names(w.c.Pause(w.ctx, "m", nil, []string{".*"}))
	w.state("orders", 0, metadata.StatePaused)
	from.Store(1)
	w.names(w.c.Resume(w.ctx, "m", nil, []string{".*"}))
	w.until("cut, and the group above it rewound (W55)", func() bool {
		w.groups.Lock()
		defer w.groups.Unlock()
		got, ok := w.groups.committed["readers"][nameKey{"orders", 0}]
		return ok && got == 1
	})
	from.Store(-1)
	w.caughtUp("orders", 0, 3)
}

// deliberate is the built-in rule, asked for long.
type deliberate struct {
	builtinTruncation
	asked, decide chan struct{}
}

func (d deliberate) Name() string { return "deliberate" }
func (d deliberate) DecideTruncation(ctx context.Context, q *sdk.TruncationQuestion) (sdk.TruncationDecision, error) {
	close(d.asked)
	<-d.decide
	return d.builtinTruncation.DecideTruncation(ctx, q)
}

// MIR-175: a start that copies a log from scratch takes the groups along that had read
// here (W55), and none is ever set above what has been copied: a consumer that comes
// meanwhile reads all of it. In the end they are where the source's are. While the log
// may be cut no offset of the source is measured by it.
func TestGroupsThroughReset(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	var w *world
	var moved []int64 // the offsets that the group was set to since the start, in order
	policy := deliberate{asked: make(chan struct{}), decide: make(chan struct{})}
	w = newWorld(t, func(o *Options) {
		o.Truncation = policy
		o.GroupsAbove = func(_ context.Context, topic string, p int32, end int64) ([]string, error) {
			if w.committed("readers", topic, p) <= end {
				return nil, nil
			}
			return []string{"readers"}, nil
		}
		o.CommitGroup = func(ctx context.Context, group string, offsets []GroupOffset) ([]error, error) {
			for _, at := range offsets {
				if end, _ := w.parts.Get(at.Topic, at.Partition).LogEnd(); at.Offset > end {
					t.Errorf("group %s is set to %d, the log ends at %d", group, at.Offset, end)
				}
			}
			errs, err := w.commitGroup(ctx, group, offsets)
			w.groups.Lock()
			defer w.groups.Unlock()
			moved = append(moved, w.groups.committed[group][nameKey{"orders", 0}])
			return errs, err
		}
	})
	w.stoppedAt(src, "orders")
	if _, err := w.commitGroup(t.Context(), "readers", []GroupOffset{{Topic: "orders", Offset: 4}}); err != nil {
		t.Fatal(err) // it has read all here, behind the failover
	}
	commit(t, adminOf(t, src), "readers", "orders", 0, 5)
	epoch := w.parts.Get("orders", 0).Info().LeaderEpoch
	w.start("m", "orders") // the source knows no last mirrored epoch
	<-policy.asked
	w.refreshes(2)
	close(policy.decide)
	w.caughtUp("orders", 0, 5)
	if now := w.parts.Get("orders", 0).Info().LeaderEpoch; now <= epoch {
		t.Errorf("epoch %d was %d: who has read what was cut is not told (GI-87)", now, epoch)
	}
	w.until("the group is where the source has it", func() bool { return w.committed("readers", "orders", 0) == 5 })
	w.groups.Lock()
	defer w.groups.Unlock()
	if moved[0] != 0 || !slices.IsSorted(moved) {
		t.Errorf("the group went from 4 to %v, and its log was copied anew", moved)
	}
}

// A policy that holds the log decides, not the built-in rule (D19).
type holding struct{ builtinTruncation }

func (holding) Name() string { return "holding" }
func (holding) DecideTruncation(context.Context, *sdk.TruncationQuestion) (sdk.TruncationDecision, error) {
	return sdk.TruncationDecision{Action: sdk.TruncateFail, Text: "call the operator"}, nil
}

func TestTruncationPolicy(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, func(o *Options) { o.Truncation = holding{} })
	produce(t, src, "orders", 0, "a", "b")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 2)
	w.names(w.c.Stop(w.ctx, "m", nil, []string{".*"}))
	w.state("orders", 0, metadata.StateStopped)
	w.start("m", ".*") // the source knows no LME: the rule would cut to zero
	if d := w.failed("orders", 0, "call the operator"); d.RetryAttempt != nonRetryable {
		t.Errorf("attempt %d", d.RetryAttempt)
	}
	if end, _ := w.parts.Get("orders", 0).LogEnd(); end != 3 {
		t.Errorf("log end %d: something was cut", end)
	}
}

// Transactions that are open at a failover are aborted, before the one reset; readers
// that wait for their end are freed (9.14, A.4; MIR-134).
func TestStopAbortsOpenTransactions(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a")
	w.create("m", src)
	w.start("m", ".*")
	w.caughtUp("orders", 0, 1)

	cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...), kgo.TransactionalID("tx"), kgo.DefaultProduceTopic("orders"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := errors.Join(cl.BeginTransaction(), cl.ProduceSync(w.ctx, kgo.StringRecord("open")).FirstErr()); err != nil {
		t.Fatal(err)
	}
	w.caughtUp("orders", 0, 2)
	part := w.parts.Get("orders", 0)
	if got := part.Info().LastStable; got != 1 {
		t.Fatalf("last stable offset %d while a transaction is open", got)
	}
	open := part.Log().OpenTxns()
	w.names(w.c.Stop(w.ctx, "m", nil, []string{"orders"}))
	w.state("orders", 0, metadata.StateStopped)
	if info := part.Info(); info.LogEnd != 4 || info.LastStable != 4 {
		t.Errorf("after the stop: %+v", info)
	}
	if left := part.Log().OpenTxns(); len(left) != 0 {
		t.Errorf("still open: %+v", left)
	}
	if aborted := part.Log().Aborted(0, 4); len(aborted) != 1 || aborted[0].ProducerID != open[0].ProducerID || aborted[0].FirstOffset != 1 {
		t.Errorf("aborted: %+v", aborted)
	}
	log := w.bytesOf("orders", 0)
	var kinds []record.ControlType
	for len(log) > 0 {
		b, rest, err := record.Next(log)
		if err != nil || b.VerifyCRC() != nil {
			t.Fatal(err, b.VerifyCRC())
		}
		if b.IsControl() {
			kind, _, _ := b.Control()
			kinds = append(kinds, kind)
		}
		log = rest
	}
	if len(kinds) != 2 || kinds[0] != record.Abort || kinds[1] != record.MirrorPIDReset {
		t.Errorf("control batches %v", kinds)
	}
}

// The tables of LME answers (W61), without a wire. A stranger is told "never"
// (MIR-166).
func TestLastMirroredEpoch(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders", "plain"), kfake.ClusterID("the-source"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a")
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 1)
	source, stranger := "the-source", "somebody-else"
	ask := func(requester *string, topic string, id metadata.TopicID, partition int32) (int32, int64, error) {
		return w.c.LastMirroredEpoch("m", requester, EpochQuery{Topic: topic, ID: id, Partition: partition})
	}
	if _, _, err := ask(&source, "orders", metadata.TopicID{}, 0); !errors.Is(err, controller.ErrMirrorStates) {
		t.Errorf("while mirroring: %v", err)
	}
	w.names(w.c.Stop(w.ctx, "m", nil, []string{".*"}))
	w.state("orders", 0, metadata.StateStopped)
	id := w.ctrl.Image().Topic("orders").ID
	for _, test := range []struct {
		name      string
		requester *string
		topic     string
		id        metadata.TopicID
		partition int32
		epoch     int32
		offset    int64
		err       error
	}{
		{"by cluster id", &source, "orders", metadata.TopicID{}, 0, 0, 1, nil},
		{"by mirror name", nil, "orders", metadata.TopicID{}, 0, 0, 1, nil},
		{"the id counts, not the name", &source, "renamed", id, 0, 0, 1, nil},
		{"from another cluster", &stranger, "orders", metadata.TopicID{}, 0, -1, -1, nil},
		{"no such partition", &source, "orders", metadata.TopicID{}, 7, -1, -1, controller.ErrUnknownTopic},
		{"no such topic", &source, "nothing", metadata.TopicID{}, 0, -1, -1, controller.ErrUnknownTopic},
		{"no such id", &source, "orders", metadata.TopicID{9}, 0, -1, -1, controller.ErrUnknownTopic},
	} {
		epoch, offset, err := ask(test.requester, test.topic, test.id, test.partition)
		if epoch != test.epoch || offset != test.offset || !errors.Is(err, test.err) {
			t.Errorf("%s: %d, %d, %v", test.name, epoch, offset, err)
		}
	}
}
