package perf

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

func TestHistogramAgainstSortedDurations(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var a, b, all Histogram
	var durations []time.Duration
	for i := range 10_000 {
		d := time.Duration(1<<r.IntN(40)) + time.Duration(r.IntN(1000))*time.Microsecond
		durations = append(durations, d)
		if i%2 == 0 {
			a.Record(d)
		} else {
			b.Record(d)
		}
	}
	all.Add(&a)
	all.Add(&b)
	slices.Sort(durations)
	for _, p := range []float64{0, 1, 50, 90, 99, 99.9, 100} {
		want := durations[max(0, int(p/100*float64(len(durations)))-1)]
		got := all.Percentile(p)
		if got < want.Truncate(time.Microsecond) || float64(got) > float64(want)*1.017+2000 {
			t.Errorf("p%v = %v, want %v", p, got, want)
		}
	}
	if all.Count() != 10_000 || all.Max() != durations[len(durations)-1] {
		t.Errorf("count %d, max %v", all.Count(), all.Max())
	}
}

func TestBucketsAreContiguous(t *testing.T) {
	last := -1
	for _, us := range []uint64{0, 1, 63, 64, 65, 127, 128, 129, 130, 255, 256, 1 << 20, 1<<40 + 12345, 1 << 62} {
		b := bucket(us)
		if b < last || b >= buckets {
			t.Fatalf("bucket of %d is %d after %d", us, b, last)
		}
		last = b
		if end := bucketEnd(b); uint64(end/time.Microsecond) < us && us < 1<<50 {
			t.Errorf("%d µs is in a bucket that ends at %v", us, end)
		}
	}
	for b := range buckets - 1 {
		if bucketEnd(b) > bucketEnd(b+1) {
			t.Fatalf("bucket %d ends after the next", b)
		}
	}
}

// TestScheduleDoesNotMove is what makes the loop open: falling behind changes
// neither the number of records due nor their planned times.
func TestScheduleDoesNotMove(t *testing.T) {
	s := schedule{start: time.Unix(1000, 0), rate: 100}
	for _, tt := range []struct {
		after time.Duration
		ready int64
	}{{-time.Second, 0}, {0, 1}, {9 * time.Millisecond, 1}, {10 * time.Millisecond, 2}, {10 * time.Second, 1001}} {
		if got := s.ready(s.start.Add(tt.after)); got != tt.ready {
			t.Errorf("ready after %v: %d, want %d", tt.after, got, tt.ready)
		}
	}
	if due := s.due(250); !due.Equal(s.start.Add(2500 * time.Millisecond)) {
		t.Errorf("record 250 is due at %v", due)
	}
}

func TestStampTravels(t *testing.T) {
	p := newPayload(100, 0.5, 1)
	due := time.Unix(1234, 5678)
	got, ok := stamp(p.value(due))
	if !ok || !got.Equal(due) {
		t.Errorf("%v %v", got, ok)
	}
	if _, ok := stamp([]byte("somebody else's record")); ok {
		t.Error("a stamp in a foreign record")
	}
}

func TestFaultsAreNamedAtOnce(t *testing.T) {
	_, err := Produce(t.Context(), ProduceOptions{RecordBytes: 3, Compression: "rar", Acks: "2", Rate: -1})
	for _, want := range []string{"topic", "record size", "rar", "acks", "rate"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in %v", want, err)
		}
	}
	if _, err := Consume(t.Context(), ConsumeOptions{Topic: "t", Clients: 2}); err == nil {
		t.Error("two readers without a group")
	}
}

func fakeTopic(t *testing.T) []kgo.Opt {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "load"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return []kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}
}

func TestProduceThenConsume(t *testing.T) {
	client := fakeTopic(t)
	for _, tt := range []ProduceOptions{
		{Rate: 20_000, Records: 1000, Clients: 3},
		{Records: 1000, Acks: "1", Compression: "zstd", Random: 0.3},
		{Rate: 50_000, Duration: 50 * time.Millisecond, Warmup: 10 * time.Millisecond, Acks: "0"},
	} {
		tt.Client, tt.Topic, tt.RecordBytes = client, "load", 100
		r, err := Produce(t.Context(), tt)
		if err != nil {
			t.Fatal(err)
		}
		if tt.Records > 0 && r.Records != tt.Records || r.Records == 0 || r.Errors != 0 || r.Bytes != 100*r.Records || r.Latency == nil {
			t.Errorf("%+v", r)
		}
		if tt.Warmup > 0 && r.Records != 2000 {
			t.Errorf("%d records measured of 2500 with a fifth of warm-up", r.Records)
		}
	}
	r, err := Consume(t.Context(), ConsumeOptions{Client: client, Topic: "load", FromEarliest: true, Records: 4500, Idle: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if r.Records != 4500 || r.Bytes != 450_000 || r.Latency == nil || r.Latency.Count != 4500 {
		t.Errorf("%+v", r)
	}
	var out bytes.Buffer
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "4500 records") {
		t.Errorf("%v %s", err, out.String())
	}
}

func TestConsumeEndsWhenIdle(t *testing.T) {
	r, err := Consume(t.Context(), ConsumeOptions{Client: fakeTopic(t), Topic: "load", Group: "g", Clients: 2, Duration: time.Hour, Idle: 20 * time.Millisecond})
	if err != nil || r.Records != 0 {
		t.Fatalf("%+v %v", r, err)
	}
}

func TestErrorsAreCounted(t *testing.T) {
	client := append(fakeTopic(t), kgo.ProducerBatchMaxBytes(1000))
	r, err := Produce(t.Context(), ProduceOptions{Client: client, Topic: "load", RecordBytes: 5000, Records: 3})
	if err != nil {
		t.Fatal(err)
	}
	if r.Errors != 3 || r.Records != 0 || r.Error == "" {
		t.Errorf("%+v", r)
	}
}
