package source

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// sends prints what a request carries: session, partitions, forgotten ones.
func sends(r *kmsg.FetchRequest) string {
	var out []string
	for _, t := range r.Topics {
		for _, p := range t.Partitions {
			out = append(out, fmt.Sprintf("%s-%d@%d", t.Topic, p.Partition, p.FetchOffset))
		}
	}
	for _, t := range r.ForgottenTopics {
		for _, p := range t.Partitions {
			out = append(out, fmt.Sprintf("!%s-%d", t.Topic, p))
		}
	}
	return fmt.Sprintf("%d/%d %s", r.SessionID, r.SessionEpoch, strings.Join(out, " "))
}

func TestIncremental(t *testing.T) {
	var s incremental
	r := kmsg.NewPtrFetchRequest()
	req := &sdk.FetchRequest{}
	ask := func(topic string, partition int32, offset int64) {
		req.Partitions = append(req.Partitions, sdk.FetchPartition{PartitionKey: sdk.PartitionKey{Topic: topic, Partition: partition}, Offset: offset})
	}
	step := func(version int16, want string) {
		t.Helper()
		s.fill(r, req, version)
		if got := sends(r); got != want {
			t.Errorf("sent %q, want %q", got, want)
		}
		req.Partitions = req.Partitions[:0]
	}
	ask("a", 0, 5)
	ask("a", 1, 6)
	step(17, "0/0 a-0@5 a-1@6")
	s.answered(0) // the source's cache is full
	ask("a", 0, 5)
	ask("a", 1, 6)
	step(17, "0/0 a-0@5 a-1@6")
	s.answered(9)
	ask("a", 1, 6)
	ask("a", 0, 7)
	step(17, "9/1 a-0@7")
	s.answered(9)
	ask("a", 1, 6)
	ask("b", 0, 0)
	step(17, "9/2 b-0@0 !a-0")
	s.answered(9)
	ask("b", 0, 0)
	ask("a", 1, 6)
	step(17, "9/3 ")
	s.answered(9)
	// The source forgot us: everything again, and it drops what it may have.
	s.reset()
	ask("b", 0, 1)
	step(17, "9/0 b-0@1")
	s.answered(10)
	// A topic without an id: another kind of session.
	ask("b", 0, 1)
	step(12, "10/0 b-0@1")
	s.answered(11)
	s.epoch = math.MaxInt32
	ask("b", 0, 1)
	step(12, "11/2147483647 ")
	s.answered(11)
	ask("b", 0, 2)
	step(12, "11/1 b-0@2")
}

// Over a real exchange: partitions come and go, the source forgets the session,
// and every record arrives once and in order.
func TestIncrementalAgainstBroker(t *testing.T) {
	k, c := fake(t, nil, kfake.SeedTopics(4, "orders"))
	exchange(t, c, k.ListenAddrs()[0])
}

// exchange needs a topic "orders" of four empty partitions.
func exchange(t *testing.T, c *Cluster, bootstrap string) {
	t.Helper()
	producer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer producer.Close()
	m, err := c.Metadata(t.Context(), []string{"orders"})
	if err != nil {
		t.Fatal(err)
	}
	topic := m.Topics["orders"]
	session, err := c.Transport().Open(t.Context(), m.Brokers[topic.Partitions[0].Leader])
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	s := session.(*kafkaSession)
	follow := &follower{next: map[int32]int64{}}
	produced := [4]int64{}
	var full, small int
	for round := range 40 {
		busy := int32(round % 4)
		for range round % 3 {
			if err := producer.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Partition: busy, Value: []byte("v")}).FirstErr(); err != nil {
				t.Fatal(err)
			}
			produced[busy]++
		}
		switch round {
		case 10:
			s.session.epoch += 7 // out of step: INVALID_FETCH_SESSION_EPOCH
		case 20:
			s.session.id++ // FETCH_SESSION_ID_NOT_FOUND
		}
		req := &sdk.FetchRequest{MinBytes: 1, MaxBytes: 1 << 20, MaxWait: 5 * time.Millisecond}
		for p := range int32(4) {
			if (round/5)%4 == int(p) && round > 4 {
				continue // left out for a while
			}
			req.Partitions = append(req.Partitions, sdk.FetchPartition{
				PartitionKey: sdk.PartitionKey{Topic: "orders", TopicID: topic.ID, Partition: p},
				Offset:       follow.next[p], CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, LogStart: -1, MaxBytes: 1 << 20,
			})
		}
		if err := s.Fetch(t.Context(), req, follow); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if n := len(s.req.Topics); s.req.SessionEpoch == 0 {
			full++
		} else if n == 0 || len(s.req.Topics[0].Partitions) < 3 {
			small++
		}
	}
	for range 20 {
		req := &sdk.FetchRequest{MinBytes: 1, MaxBytes: 1 << 20, MaxWait: 5 * time.Millisecond}
		for p := range int32(4) {
			req.Partitions = append(req.Partitions, sdk.FetchPartition{
				PartitionKey: sdk.PartitionKey{Topic: "orders", TopicID: topic.ID, Partition: p},
				Offset:       follow.next[p], CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, LogStart: -1, MaxBytes: 1 << 20,
			})
		}
		if err := s.Fetch(context.Background(), req, follow); err != nil {
			t.Fatal(err)
		}
	}
	for p, n := range produced {
		if follow.next[int32(p)] != n {
			t.Errorf("partition %d: read %d of %d", p, follow.next[int32(p)], n)
		}
	}
	if full != 3 || small < 10 {
		t.Errorf("%d full requests (want 3), %d small ones", full, small)
	}
}

// follower checks that records continue where the last ones ended.
type follower struct{ next map[int32]int64 }

func (f *follower) Partition(h *sdk.PartitionHeader, records io.Reader) error {
	if h.ErrorCode != 0 {
		return fmt.Errorf("partition %d: error %d", h.Key.Partition, h.ErrorCode)
	}
	b, err := io.ReadAll(records)
	for err == nil && len(b) > 0 {
		var batch record.Batch
		if batch, b, err = record.Next(b); err == nil && batch.BaseOffset() != f.next[h.Key.Partition] {
			err = fmt.Errorf("partition %d: batch at %d, want %d", h.Key.Partition, batch.BaseOffset(), f.next[h.Key.Partition])
		}
		if err == nil {
			f.next[h.Key.Partition] = batch.NextOffset()
		}
	}
	return err
}
