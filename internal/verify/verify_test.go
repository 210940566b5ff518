package verify

import (
	"bytes"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// fake is a cluster in this process, with two brokers so that leaders differ.
type fake struct {
	*kfake.Cluster
	client *kgo.Client
}

func newFake(t *testing.T) *fake {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.SleepOutOfOrder())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	cl, err := kgo.NewClient(kgo.SeedBrokers(c.ListenAddrs()...), kgo.DisableIdempotentWrite(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return &fake{c, cl}
}

func (f *fake) create(t *testing.T, topic string, partitions int32) {
	t.Helper()
	if _, err := kadm.NewClient(f.client).CreateTopic(t.Context(), partitions, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
}

// produce writes each value as a batch of its own, with a fixed timestamp.
func (f *fake) produce(t *testing.T, topic string, partition int32, values ...string) {
	t.Helper()
	for i, v := range values {
		r := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(v), Timestamp: time.UnixMilli(int64(1000 + i))}
		if err := f.client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func run(t *testing.T, source, mirror *fake, topics string) *Report {
	t.Helper()
	o := Options{
		Source: Cluster{Bootstrap: source.ListenAddrs(), Dialer: dialer()},
		Mirror: Cluster{Bootstrap: mirror.ListenAddrs(), Dialer: dialer()},
		// One batch per fetch, to cross the seam between two fetches often.
		FetchBytes: 1, Workers: 2,
	}
	if topics != "" {
		o.Topics = regexp.MustCompile(topics)
	}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func dialer() *wire.Dialer {
	return &wire.Dialer{ClientID: "verify-test", DialTimeout: 5 * time.Second, RequestTimeout: 5 * time.Second}
}

func TestEqualLogs(t *testing.T) {
	a, b := newFake(t), newFake(t)
	for _, f := range []*fake{a, b} {
		f.create(t, "orders", 3)
		f.produce(t, "orders", 0, "a", "b", "c")
		f.produce(t, "orders", 2, "d")
	}
	b.create(t, "of the mirror alone", 1)
	r := run(t, a, b, "")
	if !r.OK() || !r.Complete() || len(r.Partitions) != 3 {
		t.Fatalf("%+v", r.Partitions)
	}
	if p := r.Partitions[0]; p.Batches != 3 || p.Compared != (Range{0, 3}) || p.Bytes == 0 {
		t.Errorf("%+v", p)
	}
	if p := r.Partitions[1]; p.Batches != 0 || p.Bytes != 0 {
		t.Errorf("empty partition %+v", p)
	}
}

// A leader elected a moment ago has no offsets to tell yet. A comparison in the
// minutes after a broker's death once gave such a partition up after a second.
func TestWaitsForANewLeader(t *testing.T) {
	defer func(p time.Duration) { retryPause = p }(retryPause)
	retryPause = time.Millisecond
	a, b := newFake(t), newFake(t)
	for _, f := range []*fake{a, b} {
		f.create(t, "orders", 1)
		f.produce(t, "orders", 0, "a")
	}
	refusals := 20
	a.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		a.KeepControl()
		if refusals--; refusals < 0 {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, t := range r.(*kmsg.ListOffsetsRequest).Topics {
			rt := kmsg.NewListOffsetsResponseTopic()
			rt.Topic = t.Topic
			for _, p := range t.Partitions {
				rp := kmsg.NewListOffsetsResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, kerr.OffsetNotAvailable.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	if r := run(t, a, b, ""); !r.OK() || !r.Complete() {
		t.Fatalf("%+v", r.Partitions)
	}
}

func TestMirrorBehindIsEqualButNotComplete(t *testing.T) {
	a, b := newFake(t), newFake(t)
	a.create(t, "orders", 1)
	b.create(t, "orders", 1)
	a.produce(t, "orders", 0, "a", "b", "c")
	b.produce(t, "orders", 0, "a", "b")
	r := run(t, a, b, "")
	if !r.OK() || r.Complete() || r.Partitions[0].Behind() != 1 || r.Partitions[0].Compared.End != 2 {
		t.Fatalf("%+v", r.Partitions)
	}
}

func TestFirstDifferenceIsFound(t *testing.T) {
	a, b := newFake(t), newFake(t)
	a.create(t, "orders", 1)
	b.create(t, "orders", 1)
	a.produce(t, "orders", 0, "a", "b", "c", "d")
	b.produce(t, "orders", 0, "a", "b", "X", "d")
	r := run(t, a, b, "")
	p := r.Partitions[0]
	if r.OK() || p.Result != Differs || p.Offset != 2 || p.Batches != 2 {
		t.Fatalf("%+v", p)
	}
	if !strings.Contains(p.SourceBatch, "offsets 2-2") || p.SourceBatch == p.MirrorBatch {
		t.Errorf("headers: %q and %q", p.SourceBatch, p.MirrorBatch)
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "DIFFERS at offset 2") || !strings.Contains(out.String(), "1 partitions: 0 equal, 1 differ") {
		t.Errorf("printed:\n%s", out.String())
	}
}

func TestMissingPartitions(t *testing.T) {
	a, b := newFake(t), newFake(t)
	a.create(t, "orders", 2)
	b.create(t, "orders", 1)
	a.create(t, "absent", 1)
	a.create(t, "grown", 1)
	b.create(t, "grown", 2)
	r := run(t, a, b, "")
	var got []string
	for _, p := range r.Partitions {
		if p.Result == Missing {
			got = append(got, p.Topic+" "+p.Detail)
		}
	}
	want := "absent missing on the mirror, grown missing on the source, orders missing on the mirror"
	if strings.Join(got, ", ") != want || r.OK() {
		t.Errorf("missing: %v", got)
	}
	if r := run(t, a, b, "^none$"); len(r.Partitions) != 0 || !r.OK() {
		t.Errorf("filtered: %+v", r.Partitions)
	}
}

func TestUnreachableSideEndsTheRun(t *testing.T) {
	a, b := newFake(t), newFake(t)
	addr := b.ListenAddrs()
	b.Close()
	_, err := Run(context.Background(), Options{
		Source: Cluster{Bootstrap: a.ListenAddrs(), Dialer: dialer()},
		Mirror: Cluster{Bootstrap: addr, Dialer: dialer()},
	})
	if err == nil || !strings.Contains(err.Error(), "mirror") {
		t.Fatalf("%v", err)
	}
}
