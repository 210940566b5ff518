package mirror

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
)

// MIR-042: a topic that was stopped has grown here, and is started again from a source with
// fewer partitions. What the source does not have fails for good, says so and keeps every
// byte; the other one is mirrored.
func TestMorePartitionsHere(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	w.stoppedAt(src, "orders")
	must(t, w.ctrl.CreatePartitions(w.ctx, []controller.CreatePartitions{{Topic: "orders", Total: 2}}, false)[0].Err)
	w.state("orders", 1, metadata.StateStopped) // as the others: its leader says so
	w.writable("orders", 1)
	w.writeTo("orders", 1, "mine")
	w.writeTo("orders", 1, "too")
	before := string(w.bytesOf("orders", 1))

	w.start("m", "orders")
	if d := w.failed("orders", 1, "has 1 partitions there"); d.RetryAttempt != nonRetryable {
		t.Errorf("attempt %d", d.RetryAttempt)
	}
	w.caughtUp("orders", 0, 5)
	w.refreshes(3)
	if now := string(w.bytesOf("orders", 1)); now != before || now == "" {
		t.Errorf("the partition that the source lacks had %d bytes, has %d", len(before), len(now))
	}
	if s := w.partition("orders", 0); s.State != metadata.StateMirroring {
		t.Errorf("the other one: %+v", s)
	}
}

// MIR-055: a topic becomes compacted at the source, which then compacts it: its log has
// holes where it had records. The policy is here, what was mirrored before stays, what comes
// later comes with its holes, and both are read from every offset without an error.
func TestBecomesCompacted(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	write := func(n, keys int) {
		t.Helper()
		cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...), kgo.DefaultProduceTopic("orders"))
		must(t, err)
		defer cl.Close()
		for i := range n {
			must(t, cl.ProduceSync(w.ctx, &kgo.Record{Key: fmt.Append(nil, keys, i%keys), Value: fmt.Append(nil, i)}).FirstErr())
		}
	}
	w.create("m", src)
	w.start("m", "orders")
	write(10, 10) // which stay: none of these keys comes again
	w.caughtUp("orders", 0, 10)
	must(t, alter(adminOf(t, src), "orders", "cleanup.policy", "compact"))
	w.until("the policy is here", func() bool { return w.ctrl.Image().Topic("orders").Configs["cleanup.policy"] == "compact" })
	write(10, 9)
	w.caughtUp("orders", 0, 20)
	before := w.bytesOf("orders", 0)

	w.names(w.c.Pause(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StatePaused)
	write(30, 3)
	src.Compact()
	left := sourceBytes(t, src, "orders", 0, 20)
	w.names(w.c.Resume(w.ctx, "m", []string{"orders"}, nil))
	w.caughtUp("orders", 0, 50)
	if got := w.bytesOf("orders", 0); string(got) != string(before)+string(left) {
		t.Errorf("%d bytes, want the %d of before and the %d that were left", len(got), len(before), len(left))
	}
	if n := w.readable("orders", 0); n >= 50 || n < 20+3 {
		t.Errorf("%d of 50 batches are here: nothing was compacted, or too much", n)
	}
	write(3, 3)
	w.caughtUp("orders", 0, 53)
}

// readable reads a log from each of its offsets, and counts its batches.
func (w *world) readable(topic string, p int32) (batches int) {
	w.t.Helper()
	log := w.parts.Get(topic, p).Log()
	seen := map[int64]bool{}
	for offset := log.StartOffset(); offset < log.EndOffset(); offset++ {
		v, err := log.Read(offset, 1, log.EndOffset(), true)
		if err != nil || v.Len() == 0 {
			w.t.Fatalf("at %d: %d bytes, %v", offset, v.Len(), err)
		}
		head := make([]byte, 8)
		if _, err := v.ReadAt(head, 0); err != nil {
			w.t.Fatal(err)
		}
		v.Release()
		var base int64
		for _, b := range head {
			base = base<<8 | int64(b)
		}
		seen[base] = true
	}
	return len(seen)
}

// MIR-115: a group's offsets inside a transaction of the source that is open, or aborted,
// are not here; those of a committed one are.
func TestOffsetsInTransactions(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders", "out"))
	w := newWorld(t, nil)
	for range 10 {
		produce(t, src, "orders", 0, "x")
	}
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 10)
	commit(t, adminOf(t, src), "g", "orders", 0, 1)
	at := func(want int64) {
		t.Helper()
		w.until(fmt.Sprintf("the group at %d", want), func() bool { return w.committed("g", "orders", 0) == want })
	}
	at(1)
	cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...), kgo.TransactionalID("t"), kgo.DefaultProduceTopic("out"))
	must(t, err)
	defer cl.Close()
	// within commits an offset in a transaction, and looks at it before and after its end.
	within := func(offset int64, end kgo.TransactionEndTry, before, after int64) {
		t.Helper()
		must(t, cl.BeginTransaction())
		must(t, cl.ProduceSync(w.ctx, kgo.StringRecord("x")).FirstErr())
		id, epoch, err := cl.ProducerID(w.ctx)
		must(t, err)
		add := kmsg.NewPtrAddOffsetsToTxnRequest()
		add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = "t", id, epoch, "g"
		added, err := add.RequestWith(w.ctx, cl)
		if err != nil || added.ErrorCode != 0 {
			t.Fatal(err, added)
		}
		req := kmsg.NewPtrTxnOffsetCommitRequest()
		req.TransactionalID, req.Group, req.ProducerID, req.ProducerEpoch, req.Generation = "t", "g", id, epoch, -1
		topic, p := kmsg.NewTxnOffsetCommitRequestTopic(), kmsg.NewTxnOffsetCommitRequestTopicPartition()
		topic.Topic, topic.TopicID, p.Offset = "orders", src.TopicInfo("orders").TopicID, offset
		topic.Partitions = append(topic.Partitions, p)
		req.Topics = append(req.Topics, topic)
		resp, err := req.RequestWith(w.ctx, cl)
		if err != nil || resp.Topics[0].Partitions[0].ErrorCode != 0 {
			t.Fatal(err, resp)
		}
		w.refreshes(3)
		at(before)
		must(t, cl.EndTransaction(w.ctx, end))
		w.refreshes(3)
		at(after)
	}
	within(5, kgo.TryAbort, 1, 1)
	within(7, kgo.TryCommit, 1, 7)
	within(3, kgo.TryAbort, 7, 7)
}

// MIR-305: the source says for how long we have to wait. It is not asked before, and nothing
// fails; when it says so no more, records come as fast as before.
func TestThrottledBySource(t *testing.T) {
	const pause = 300 * time.Millisecond
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	w.create("m", src)
	w.start("m", "orders")
	produce(t, src, "orders", 0, "a")
	w.caughtUp("orders", 0, 1)

	var throttle atomic.Bool
	throttle.Store(true)
	var last atomic.Int64 // when an answer that throttles was given
	var asked, early atomic.Int64
	src.ControlKey(1, func(r kmsg.Request) (kmsg.Response, error, bool) {
		src.KeepControl()
		if !throttle.Load() || len(r.(*kmsg.FetchRequest).Topics)+int(r.(*kmsg.FetchRequest).SessionID) == 0 {
			return nil, nil, false
		}
		if at := last.Load(); at != 0 && time.Since(time.Unix(0, at)) < pause-5*time.Millisecond {
			early.Add(1)
		}
		asked.Add(1)
		last.Store(time.Now().UnixNano())
		resp := r.ResponseKind().(*kmsg.FetchResponse)
		resp.ThrottleMillis = int32(pause.Milliseconds())
		resp.SessionID = r.(*kmsg.FetchRequest).SessionID
		return resp, nil, true
	})
	produce(t, src, "orders", 0, "b", "c")
	w.until("five requests", func() bool { return asked.Load() >= 5 })
	if n := early.Load(); n > 0 {
		t.Errorf("%d of %d requests came early", n, asked.Load())
	}
	if d := w.partition("orders", 0); d.State != metadata.StateMirroring || d.RetryAttempt != 0 {
		t.Errorf("%+v", d)
	}
	throttle.Store(false)
	w.caughtUp("orders", 0, 3)
}

// MIR-410: the lag is the source's high watermark less ours, at each moment as the source was
// last seen, within one refresh of what it is; -1 where nothing is mirrored, and never below.
func TestLag(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	w.create("m", src)
	lag := func(want int64) {
		t.Helper()
		w.until(fmt.Sprintf("lag %d", want), func() bool {
			d := w.partition("orders", 0)
			if d.Lag < 0 && d.State == metadata.StateMirroring && d.SourceOffset >= 0 || d.Lag < -1 ||
				d.Lag >= 0 && d.Lag != max(0, d.SourceOffset-d.DestinationOffset) {
				t.Fatalf("%+v", d)
			}
			return d.Lag == want
		})
	}
	w.start("m", "orders")
	w.state("orders", 0, metadata.StateMirroring)
	lag(0)
	// For a while the source says what it has, and gives none of it.
	var withhold atomic.Bool
	withhold.Store(true)
	src.ControlKey(1, func(r kmsg.Request) (kmsg.Response, error, bool) {
		src.KeepControl()
		if !withhold.Load() {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.FetchResponse) // without a session: each request names all
		for _, asked := range r.(*kmsg.FetchRequest).Topics {
			topic := kmsg.NewFetchResponseTopic()
			topic.Topic, topic.TopicID = asked.Topic, asked.TopicID
			p := kmsg.NewFetchResponseTopicPartition()
			info := src.PartitionInfo("orders", 0)
			p.HighWatermark, p.LastStableOffset, p.LogStartOffset = info.HighWatermark, info.LastStableOffset, 0
			topic.Partitions = append(topic.Partitions, p)
			resp.Topics = append(resp.Topics, topic)
		}
		return resp, nil, true
	})
	produce(t, src, "orders", 0, "a", "b", "c")
	lag(3)
	produce(t, src, "orders", 0, "d", "e")
	lag(5)
	withhold.Store(false)
	lag(0)
	w.caughtUp("orders", 0, 5)
	w.names(w.c.Pause(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StatePaused)
	lag(-1)
	w.names(w.c.Resume(w.ctx, "m", []string{"orders"}, nil))
	lag(0)
	src.Close()
	w.failed("orders", 0, "unreachable")
	lag(-1)
	w.names(w.c.Stop(w.ctx, "m", []string{"orders"}, nil))
	w.state("orders", 0, metadata.StateStopped)
	lag(-1)
}

// MIR-435: a source of before leader epochs were told, 1.1: its metadata, fetches and offsets
// have none. The cycle of a mirror works all the same, and what it lost is seen, by its end
// and by the question where an epoch ends.
func TestSourceWithoutEpochs(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(2, "orders"), kfake.MaxVersions(kversion.V1_1_0()))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a", "b", "c")
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 3)
	src.ShufflePartitionLeaders()
	produce(t, src, "orders", 0, "d")
	w.caughtUp("orders", 0, 4)
	w.equals(src, "orders", 0)
}

// replacing is a source that gets its mirror new settings when it is first asked.
type replacing struct {
	Source
	ask func()
}

func (r *replacing) Metadata(ctx context.Context, topics []string) (*source.Metadata, error) {
	if ask := r.ask; ask != nil && topics == nil {
		r.ask = nil
		ask()
	}
	return r.Source.Metadata(ctx, topics)
}

// An operator changes a setting of a mirror and starts a topic at once. The connection that
// the start had begun to use is closed for the new one: it goes on with that, where it used
// to say "closed by us".
func TestStartBesideNewSettings(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, func(o *Options) { o.RefreshInterval = time.Hour })
	w.create("m", src)
	w.until("it is known here", func() bool { return w.m.peer("m") != nil })
	p := w.m.peer("m")
	w.until("a connection", func() bool { _, err := p.source(); return err == nil })
	p.mu.Lock()
	was := &replacing{Source: p.mu.cluster}
	was.ask = func() {
		w.alterMirror("fetch.max.bytes", "65536")
		w.until("another connection", func() bool { c, err := p.source(); return err == nil && c != Source(was) })
	}
	p.mu.cluster = was
	p.mu.Unlock()
	if got := w.start("m", "orders"); len(got) != 1 {
		t.Errorf("started: %v", got)
	}
	w.state("orders", 0, metadata.StateMirroring)
}
