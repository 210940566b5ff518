package kafka

import (
	"context"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1, clock.System())
		if ok, waited := turns.take(t.Context()); !ok || waited != 0 {
			t.Fatal("the first has to wait", ok, waited)
		}
		// The second gets its turn when the first leaves.
		go func() {
			time.Sleep(heavyPatience / 2) // in a synctest bubble: no time passes
			turns.leave()
		}()
		if ok, waited := turns.take(t.Context()); !ok || waited != heavyPatience/2 {
			t.Fatal(ok, waited)
		}
		// Where nobody leaves, patience ends, and nothing was taken.
		if ok, waited := turns.take(t.Context()); ok || waited != heavyPatience {
			t.Fatal(ok, waited)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if ok, waited := turns.take(gone); ok || waited != 0 {
			t.Fatal(ok, waited)
		}
		turns.leave()
		if ok, _ := turns.take(t.Context()); !ok {
			t.Fatal("a turn was lost")
		}
	})
}

// While heavy requests work, and more of them wait for their turn, small ones are
// answered.
func TestHeavyRequestsWaitForEachOther(t *testing.T) {
	topic := newTopic(t, 1)
	s := anotherServer(t, func(o *Options) { o.Clock = clock.NewManual(time.Now()) }) // no patience ends
	for range cap(s.turns.taken) {
		if ok, _ := s.turns.take(t.Context()); !ok {
			t.Fatal("no turn")
		}
	}
	heavy, light := metadataOf("heavy", 1000), metadataOf(topic.Name, 1)
	all := kmsg.NewPtrMetadataRequest()
	all.SetVersion(9)
	var waiting []*rawConn
	for _, req := range []kmsg.Request{heavy, all} {
		c := dialRaw(t, addrOf(s))
		c.send(1, req)
		waiting = append(waiting, c)
	}
	c := dialRaw(t, addrOf(s))
	c.send(1, light)
	c.receive(light)
	produce := produceTo(topic, 0, -1, batchOf("v"))
	c.send(2, produce)
	if _, resp := c.receive(produce); produced(t, resp).ErrorCode != 0 {
		t.Fatalf("%+v", resp)
	}
	for _, c := range waiting {
		c.SetReadDeadline(time.Now().Add(10 * time.Millisecond)) // too long an answer, were it not waiting
		if n, err := c.Read(make([]byte, 1)); n != 0 || !os.IsTimeout(err) {
			t.Fatal("answered without a turn", n, err)
		}
		c.SetReadDeadline(time.Now().Add(20 * time.Second))
	}
	for range cap(s.turns.taken) {
		s.turns.leave()
	}
	for i, req := range []kmsg.Request{heavy, all} {
		waiting[i].receive(req)
	}
}

// A long poll of many partitions has no turn while it waits.
func TestHeavyFetchWaitsWithoutItsTurn(t *testing.T) {
	topic := newTopic(t, heavyParts+1)
	manual := clock.NewManual(time.Now())
	s := anotherServer(t, func(o *Options) { o.Clock = manual })
	poll := fetchFrom(topic, 0, 0)
	for i := int32(1); i < int32(len(topic.Partitions)); i++ {
		p := poll.Topics[0].Partitions[0]
		p.Partition = i
		poll.Topics[0].Partitions = append(poll.Topics[0].Partitions, p)
	}
	poll.MinBytes, poll.MaxWaitMillis = 1, 10_000
	c := dialRaw(t, addrOf(s))
	c.send(1, poll)
	for manual.Timers() == 0 { // that of the long poll
		time.Sleep(time.Millisecond) // until the poll waits
	}
	for range cap(s.turns.taken) {
		if ok, _ := s.turns.take(t.Context()); !ok {
			t.Fatal("no turn")
		}
	}
	for range cap(s.turns.taken) {
		s.turns.leave()
	}
	other := dialRaw(t, addrOf(s))
	produce := produceTo(topic, heavyParts, 1, batchOf("v"))
	other.send(1, produce)
	other.receive(produce)
	if _, resp := c.receive(poll); len(resp.(*kmsg.FetchResponse).Topics) != 1 {
		t.Fatalf("%+v", resp)
	}
	if n := len(s.turns.taken); n != 0 {
		t.Fatal(n, "turns were not left")
	}
}

// A follower's long poll has no turn while it waits, however many partitions its request
// named, and one that is known to follow waits for none: of three brokers with 3000
// partitions on two processors, where there is one turn, each answer to a follower came
// when the poll of the other one ended, and writes were acknowledged half a second late.
func TestFollowerTakesNoTurn(t *testing.T) {
	p := newPair(t, func(o *Options) { o.Clock = clock.NewManual(time.Now()) }) // no patience ends
	const partitions = 400                                                      // their part of a request is more than heavyBody
	topic := p.topic(t, partitions, map[string]string{"min.insync.replicas": "2"})
	write := func() {
		t.Helper()
		req := produceTo(topic, 0, -1, batchOf("a"))
		for i := int32(1); i < partitions; i++ {
			part := req.Topics[0].Partitions[0]
			part.Partition = i
			req.Topics[0].Partitions = append(req.Topics[0].Partitions, part)
		}
		for _, r := range ask[*kmsg.ProduceResponse](t, p.conn, req).Topics[0].Partitions {
			if r.ErrorCode != 0 {
				t.Fatalf("%+v", r)
			}
		}
	}
	write() // the follower fetches, and begins to wait
	turns := p.server.turns
	for range cap(turns.taken) {
		turns.taken <- struct{}{} // hangs where the poll, which lasts an hour, has one
	}
	write() // its news are of 400 partitions again
	for range cap(turns.taken) {
		turns.leave()
	}
}

func metadataOf(name string, times int) *kmsg.MetadataRequest {
	req := kmsg.NewPtrMetadataRequest()
	req.SetVersion(9)
	for range times {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		req.Topics = append(req.Topics, topic)
	}
	return req
}
