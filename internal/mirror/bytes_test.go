package mirror

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// sourceBytes reads a partition of the source raw, from an offset to its end.
func sourceBytes(t *testing.T, src *kfake.Cluster, topic string, p int32, from int64) []byte {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	ends, err := adm.ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(topic, p)
	var all []byte
	for from < end.Offset {
		req := kmsg.NewPtrFetchRequest()
		req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes, req.SessionEpoch = -1, 100, 1, 1<<20, -1
		rt := kmsg.NewFetchRequestTopic()
		rt.Topic, rt.TopicID = topic, src.TopicInfo(topic).TopicID
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition, rp.FetchOffset, rp.PartitionMaxBytes, rp.CurrentLeaderEpoch, rp.LastFetchedEpoch, rp.LogStartOffset = p, from, 1<<20, -1, -1, -1
		rt.Partitions = append(rt.Partitions, rp)
		req.Topics = append(req.Topics, rt)
		resp, err := cl.Broker(int(src.LeaderFor(topic, p))).Request(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		got := resp.(*kmsg.FetchResponse).Topics[0].Partitions[0]
		if got.ErrorCode != 0 || len(got.RecordBatches) == 0 {
			t.Fatalf("%s-%d at %d: code %d, %d bytes", topic, p, from, got.ErrorCode, len(got.RecordBatches))
		}
		all = append(all, got.RecordBatches...)
		from = nextOffset(t, all)
	}
	return all
}

// equals wants our log to be the source's bytes from our log start on.
func (w *world) equals(src *kfake.Cluster, topic string, p int32) {
	w.t.Helper()
	want, got := sourceBytes(w.t, src, topic, p, w.parts.Get(topic, p).Info().LogStart), w.bytesOf(topic, p)
	if !bytes.Equal(got, want) {
		w.t.Fatalf("%s-%d: %d bytes here, %d on the source, or they differ", topic, p, len(got), len(want))
	}
}

// produceBatch appends records to a source topic in one batch.
func produceBatch(t *testing.T, src *kfake.Cluster, topic string, n int, opts ...kgo.Opt) {
	t.Helper()
	cl, err := kgo.NewClient(append(opts, kgo.SeedBrokers(src.ListenAddrs()...), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ManualFlushing())...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for i := range n {
		cl.Produce(context.Background(), kgo.StringRecord(strings.Repeat(fmt.Sprint("record ", i, " "), 1+i%20)), func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
	}
	if err := cl.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// MIR-060: what was there before the start and what comes afterwards, in batches of all
// sizes. MIR-020: the topic has the source's id and partitions. MIR-066: the topic here says
// gzip, the producer lz4: the bytes stay as they came.
func TestBytesAsTheyCame(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(2, "orders"))
	w := newWorld(t, nil)
	for n := range 30 {
		produceBatch(t, src, "orders", n+1, kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	}
	w.create("m", src)
	w.start("m", "orders")
	gzip := "gzip"
	for _, err := range w.ctrl.AlterConfigs(w.ctx, []controller.AlterConfigs{{Type: controller.ResourceTopic, Name: "orders",
		Ops: []controller.ConfigOp{{Name: "compression.type", Value: &gzip}}}}, false) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for n := range 30 {
		produceBatch(t, src, "orders", n+1, kgo.ProducerBatchCompression([]kgo.CompressionCodec{kgo.Lz4Compression(), kgo.ZstdCompression(), kgo.NoCompression()}[n%3]))
	}
	w.caughtUp("orders", 0, 930)
	w.state("orders", 1, metadata.StateMirroring)
	w.equals(src, "orders", 0)
	if topic := w.ctrl.Image().Topic("orders"); topic.ID != src.TopicInfo("orders").TopicID || len(topic.Partitions) != 2 {
		t.Errorf("%+v", topic)
	}
}

// MIR-063: the source begins at 500 when the mirror starts. MIR-064: it begins inside a
// batch, which is taken whole, and hidden below the source's log start. MIR-251: records
// that the source deletes while it is mirrored are deleted here.
func TestLogStartOfTheSource(t *testing.T) {
	for name, start := range map[string]int64{"between batches": 500, "inside a batch": 503} {
		t.Run(name, func(t *testing.T) {
			src := newSource(t, kfake.SeedTopics(1, "orders"))
			w := newWorld(t, nil)
			for range 60 {
				produceBatch(t, src, "orders", 10)
			}
			if err := src.DeleteRecords("orders", 0, start); err != nil {
				t.Fatal(err)
			}
			w.create("m", src)
			w.start("m", "orders")
			w.caughtUp("orders", 0, 600)
			if got := w.parts.Get("orders", 0).Info().LogStart; got != start {
				t.Errorf("log start %d, the source's is %d", got, start)
			}
			w.equals(src, "orders", 0)
			if err := src.DeleteRecords("orders", 0, 550); err != nil {
				t.Fatal(err)
			}
			produce(t, src, "orders", 0, "more")
			w.until("the log start follows", func() bool { return w.parts.Get("orders", 0).Info().LogStart == 550 })
			w.caughtUp("orders", 0, 601)
			w.equals(src, "orders", 0)
		})
	}
}

// MIR-173: a start from scratch over a log that was failed over, from a source that has
// deleted its beginning: our log begins where the source's does. MIR-170: the source does
// not know the question for the last mirrored epoch, and that is why.
func TestFromScratchAboveZero(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a", "b", "c")
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 3)
	if w.cut() != 0 {
		t.Error("a first start cut something")
	}
	w.names(w.c.Stop(w.ctx, "m", nil, []string{"orders"}))
	w.state("orders", 0, metadata.StateStopped)
	produce(t, src, "orders", 0, "d", "e")
	if err := src.DeleteRecords("orders", 0, 4); err != nil {
		t.Fatal(err)
	}
	w.start("m", "orders")
	w.caughtUp("orders", 0, 5)
	if got := w.parts.Get("orders", 0).Info().LogStart; got != 4 {
		t.Errorf("log start %d, the source's is 4", got)
	}
	w.equals(src, "orders", 0)
	// MIR-413: what was cut is counted: three records and the reset.
	if got := w.cut(); got != 4 {
		t.Errorf("%d records were cut", got)
	}
}

// MIR-230: committed, aborted and plain records, and a transaction that is open: the same
// bytes, the same last stable offset, and the same aborted transactions.
func TestTransactionsAsTheyAre(t *testing.T) {
	src := newSource(t, kfake.SeedTopics(1, "orders"))
	w := newWorld(t, nil)
	w.create("m", src)
	w.start("m", "orders")
	tx := func(id, value string, end kgo.TransactionEndTry, open bool) {
		t.Helper()
		cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...), kgo.TransactionalID(id), kgo.DefaultProduceTopic("orders"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cl.Close)
		if err = cl.BeginTransaction(); err == nil {
			err = cl.ProduceSync(w.ctx, kgo.StringRecord(value)).FirstErr()
		}
		if err == nil && !open {
			err = cl.EndTransaction(w.ctx, end)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	tx("a", "committed", kgo.TryCommit, false) // 0, marker 1
	produce(t, src, "orders", 0, "plain")      // 2
	tx("b", "aborted", kgo.TryAbort, false)    // 3, marker 4
	tx("c", "open", kgo.TryCommit, true)       // 5
	produce(t, src, "orders", 0, "behind")     // 6
	w.caughtUp("orders", 0, 7)
	w.equals(src, "orders", 0)
	part := w.parts.Get("orders", 0)
	cl := adminOf(t, src)
	stable, err := cl.ListCommittedOffsets(w.ctx, "orders")
	if err != nil {
		t.Fatal(err)
	}
	if there, _ := stable.Lookup("orders", 0); part.Info().LastStable != there.Offset || there.Offset != 5 {
		t.Errorf("last stable offset %d, the source's is %d", part.Info().LastStable, there.Offset)
	}
	if a := part.Log().Aborted(0, 7); len(a) != 1 || a[0].FirstOffset != 3 {
		t.Errorf("aborted: %+v", a)
	}
}

// MIR-014: another address of the same source, while records come. MIR-015: new filters
// leave the connection as it is. MIR-017: a change that is refused leaves all as it is.
// MIR-016: an address of another cluster, with a topic of that name: FAILED, with both
// ids, and nothing of it is here; back at the old address, recover goes on.
func TestAddresses(t *testing.T) {
	src := newSource(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "orders"), kfake.ClusterID("the-source"))
	other := newSource(t, kfake.SeedTopics(1, "orders"), kfake.ClusterID("another-one"))
	w := newWorld(t, nil)
	produce(t, src, "orders", 0, "a", "b")
	produce(t, other, "orders", 0, "1", "2", "3", "4", "5")
	w.create("m", src)
	w.start("m", "orders")
	w.caughtUp("orders", 0, 2)
	set := func(name, value string) error {
		return w.ctrl.AlterConfigs(w.ctx, mirrorConfig("m", name, value), false)[0]
	}
	must(t, set("groups.exclude", "x"))
	before := w.m.peer("m").mu.cluster
	if err := set("no.such.key", "1"); err == nil {
		t.Error("a key that nobody knows was taken")
	}
	produce(t, src, "orders", 0, "c")
	w.caughtUp("orders", 0, 3)
	if c, err := w.m.peer("m").source(); err != nil || c != before {
		t.Errorf("filters, or a change that was refused, opened another connection: %v", err)
	}

	must(t, set("bootstrap.servers", src.ListenAddrs()[1]))
	w.until("another connection", func() bool { c, err := w.m.peer("m").source(); return err == nil && c != before })
	produce(t, src, "orders", 0, "d", "e")
	w.caughtUp("orders", 0, 5)
	w.equals(src, "orders", 0)

	must(t, set("bootstrap.servers", strings.Join(other.ListenAddrs(), ",")))
	d := w.failed("orders", 0, "another-one")
	if !strings.Contains(d.ErrorMessage, "the-source") || d.RetryAttempt != nonRetryable {
		t.Errorf("it says %q, attempt %d", d.ErrorMessage, d.RetryAttempt)
	}
	w.equals(src, "orders", 0)
	must(t, set("bootstrap.servers", strings.Join(src.ListenAddrs(), ",")))
	produce(t, src, "orders", 0, "f")
	w.until("recovered", func() bool {
		_, _ = w.c.Recover(w.ctx, "m", nil, nil) // the connection may still be the other one
		return w.partition("orders", 0).State == metadata.StateMirroring
	})
	w.caughtUp("orders", 0, 6)
	w.equals(src, "orders", 0)
}
