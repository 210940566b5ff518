package kafka

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

func TestAnswersGiveUpTheSlowest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswers(100, clock.System())
		aborted := map[string]bool{}
		enter := func(name string, size int) *writing {
			return a.enter(size, func() { aborted[name] = true }, nil)
		}
		slow, quick := enter("slow", 40), enter("quick", 40)
		time.Sleep(stalled / 2)
		a.advance(quick)
		began := time.Now()
		enter("next", 60)
		if !aborted["slow"] || aborted["quick"] || len(aborted) != 1 {
			t.Errorf("aborted %v, want the one that has not moved", aborted)
		}
		if waited := time.Since(began); waited != stalled/2 {
			t.Errorf("waited %v, want until the slowest has stood still for %v", waited, stalled)
		}
		a.leave(slow) // its connection leaves too, later
		a.leave(quick)
		if a.mu.held != 60 {
			t.Errorf("%d bytes held, want 60", a.mu.held)
		}
	})
}

func TestAnswersWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAnswers(100, clock.System())
		first := a.enter(100, func() { t.Error("aborted though it left in time") }, nil)
		entered := make(chan *writing)
		go func() { entered <- a.enter(1000, nil, nil) }() // more than there is counts as all
		synctest.Wait()
		a.leave(first)
		if w := <-entered; w == nil || a.mu.held != 100 {
			t.Errorf("%v, %d held", w, a.mu.held)
		}
		gone := make(chan struct{})
		close(gone)
		if w := a.enter(1, nil, gone); w != nil {
			t.Error("entered for a connection that is gone")
		}
	})
}

// TestNeverReads: peers that ask for large answers and read nothing are closed
// at the write deadline, or as soon as their room is needed. A well-behaved one
// beside them is answered.
func TestNeverReads(t *testing.T) {
	topic := newTopic(t, 2500)
	s := anotherServer(t, func(o *Options) { o.WriteTimeout = time.Minute })
	s.answers.limit = 1 << 20
	ask := kmsg.NewPtrMetadataRequest()
	ask.SetVersion(9)
	mt := kmsg.NewMetadataRequestTopic()
	mt.Topic = kmsg.StringPtr(topic.Name)
	ask.Topics = append(ask.Topics, mt)
	frame := wire.AppendRequest(nil, 1, "silent", ask)
	var silent []*rawConn
	for range 20 {
		c := dialRaw(t, addrOf(s))
		c.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		for range 200 { // a socket's buffers take some
			if _, err := c.Write(frame); err != nil {
				break
			}
		}
		silent = append(silent, c)
	}
	c := dialRaw(t, addrOf(s))
	for range 50 {
		c.send(1, ask)
		if _, resp := c.receive(ask); len(resp.(*kmsg.MetadataResponse).Topics) != 1 {
			t.Fatal(resp)
		}
	}
	s.answers.mu.Lock()
	held := s.answers.mu.held
	s.answers.mu.Unlock()
	if held > s.answers.limit {
		t.Errorf("answers hold %d bytes, the limit is %d", held, s.answers.limit)
	}
	for _, c := range silent {
		c.Close()
	}
}
