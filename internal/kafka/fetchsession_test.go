package kafka

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

func fetchRequest(id, epoch int32, offsets map[int32]int64) *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version = 12
	req.SessionID, req.SessionEpoch = id, epoch
	t := kmsg.NewFetchRequestTopic()
	t.Topic = "orders"
	var indexes []int32
	for i := range offsets {
		indexes = append(indexes, i)
	}
	slices.Sort(indexes)
	for _, i := range indexes {
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.PartitionMaxBytes = i, offsets[i], 1<<20
		t.Partitions = append(t.Partitions, p)
	}
	if len(t.Partitions) > 0 {
		req.Topics = append(req.Topics, t)
	}
	return req
}

func show(parts []*fetchPart) string {
	var s string
	for _, p := range parts {
		s += fmt.Sprintf("%d@%d ", p.index, p.offset)
	}
	return s
}

func TestFetchSessionLife(t *testing.T) {
	c := newSessionCache(10, 1000, clock.NewManual(time.Unix(0, 0)))
	begin := func(req *kmsg.FetchRequest) (fetchScope, *kerr.Error) {
		t.Helper()
		s, code := c.begin(req, "a")
		s.end()
		return s, code
	}
	// Without a session.
	s, code := begin(fetchRequest(0, sessionFinal, map[int32]int64{0: 5}))
	if code != nil || s.id != 0 || s.incremental || show(s.parts) != "0@5 " {
		t.Fatalf("%+v %v", s, code)
	}
	// A new one holds all partitions; later requests name changes only.
	s, code = begin(fetchRequest(0, sessionInitial, map[int32]int64{0: 5, 1: 6, 2: 7}))
	if code != nil || s.id == 0 || s.incremental || len(s.parts) != 3 {
		t.Fatalf("%+v %v", s, code)
	}
	id := s.id
	s, code = begin(fetchRequest(id, 1, map[int32]int64{1: 60, 3: 8}))
	if code != nil || !s.incremental || show(s.parts) != "0@5 1@60 2@7 3@8 " {
		t.Fatalf("%q %v", show(s.parts), code)
	}
	// Forgotten partitions are gone.
	req := fetchRequest(id, 2, nil)
	req.ForgottenTopics = []kmsg.FetchRequestForgottenTopic{{Topic: "orders", Partitions: []int32{0, 2, 9}}}
	if s, code = begin(req); code != nil || show(s.parts) != "1@60 3@8 " {
		t.Fatalf("%q %v", show(s.parts), code)
	}
	// An epoch that does not follow, a change from names to ids, another
	// client's session, an unknown one.
	if _, code = begin(fetchRequest(id, 2, nil)); code != kerr.InvalidFetchSessionEpoch {
		t.Fatal(code)
	}
	req = fetchRequest(id, 3, nil)
	req.Version = 13
	if _, code = begin(req); code != kerr.FetchSessionTopicIDError {
		t.Fatal(code)
	}
	if _, code = c.begin(fetchRequest(id, 3, nil), "b"); code != kerr.FetchSessionIDNotFound {
		t.Fatal(code)
	}
	if _, code = begin(fetchRequest(id+1, 3, nil)); code != kerr.FetchSessionIDNotFound {
		t.Fatal(code)
	}
	// The final epoch ends it.
	if _, code = begin(fetchRequest(id, sessionFinal, map[int32]int64{0: 1})); code != nil || c.len() != 0 || c.held != 0 {
		t.Fatal(code, c.len(), c.held)
	}
}

// A second fetch on a session whose first still waits is refused, not queued:
// its partitions are in use.
func TestFetchSessionInUse(t *testing.T) {
	c := newSessionCache(10, 1000, clock.NewManual(time.Unix(0, 0)))
	s, _ := c.begin(fetchRequest(0, sessionInitial, map[int32]int64{0: 5}), "a")
	if _, code := c.begin(fetchRequest(s.id, 1, nil), "a"); code != kerr.InvalidFetchSessionEpoch {
		t.Fatal(code)
	}
	s.end()
	if _, code := c.begin(fetchRequest(s.id, 1, nil), "a"); code != nil {
		t.Fatal(code)
	}
}

// Partitions behind a busy one come first next time.
func TestFetchSessionRotation(t *testing.T) {
	c := newSessionCache(10, 1000, clock.NewManual(time.Unix(0, 0)))
	s, _ := c.begin(fetchRequest(0, sessionInitial, map[int32]int64{0: 0, 1: 0, 2: 0}), "a")
	s.session.first = 2
	s.end()
	s, _ = c.begin(fetchRequest(s.id, 1, nil), "a")
	if show(s.parts) != "2@0 0@0 1@0 " {
		t.Fatal(show(s.parts))
	}
}

func TestFetchSessionEviction(t *testing.T) {
	now := clock.NewManual(time.Unix(0, 0))
	c := newSessionCache(8, 100, now)
	open := func(owner string, parts int) int32 {
		offsets := map[int32]int64{}
		for i := range parts {
			offsets[int32(i)] = 0
		}
		s, code := c.begin(fetchRequest(0, sessionInitial, offsets), owner)
		if code != nil {
			t.Fatal(code)
		}
		s.end()
		return s.id
	}
	use := func(owner string, id, epoch int32) bool {
		s, code := c.begin(fetchRequest(id, epoch, nil), owner)
		s.end()
		return code == nil
	}
	quiet := open("quiet", 1)
	var flood []int32
	for range 7 {
		flood = append(flood, open("flood", 1))
	}
	// Full. The flooder's next one costs its own oldest, not the quiet client's.
	if open("flood", 1) == 0 || use("flood", flood[0], 1) || !use("quiet", quiet, 1) {
		t.Fatal("the wrong session went")
	}
	// A newcomer goes without one while all others are in use …
	if id := open("new", 1); id != 0 || c.len() != 8 {
		t.Fatalf("session %d, %d in the cache", id, c.len())
	}
	// … and takes the place of one that nobody used for long.
	now.Advance(sessionKeep + time.Second)
	if id := open("new", 1); id == 0 || c.len() != 8 {
		t.Fatalf("session %d, %d in the cache", id, c.len())
	}
	// The partitions have a bound of their own.
	now.Advance(sessionKeep + time.Second)
	if id := open("big", 101); id != 0 {
		t.Fatal("a session larger than the cache")
	}
	if id := open("big", 100); id == 0 || c.len() != 1 || c.held != 100 {
		t.Fatalf("session %d, %d in the cache with %d partitions", id, c.len(), c.held)
	}
}

// A session that grows beyond the cache ends; the client begins again.
func TestFetchSessionOutgrows(t *testing.T) {
	c := newSessionCache(8, 3, clock.NewManual(time.Unix(0, 0)))
	s, _ := c.begin(fetchRequest(0, sessionInitial, map[int32]int64{0: 0, 1: 0}), "a")
	s.end()
	if _, code := c.begin(fetchRequest(s.id, 1, map[int32]int64{2: 0, 3: 0}), "a"); code != kerr.FetchSessionIDNotFound {
		t.Fatal(code)
	}
	if c.len() != 0 || c.held != 0 {
		t.Fatalf("%d sessions, %d partitions", c.len(), c.held)
	}
}
