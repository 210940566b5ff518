package kafka

import (
	"context"
	"time"
)

const (
	// lingerQuiet is how long nobody may have asked before everybody counts as told.
	// Clients that were refused ask for metadata and come back, if at all, within their
	// retry.backoff.ms (100 in all of them), and librdkafka within twice that.
	lingerQuiet = 250 * time.Millisecond
	// lingerMost bounds it where somebody does not understand, or asks for what this
	// broker alone has.
	lingerMost = 2 * time.Second
)

// Linger goes on answering for as long as clients find out that others lead what this
// broker led, and coordinate what it coordinated. Who is told so by an answer, which
// names the new leader, goes there at once, with everything in order; who finds its
// connection closed has lost what was under way and guesses: librdkafka reports its
// brokers as down, and franz-go waits for metadata that is younger than its
// MetadataMinAge (5 s). To be called between the handing over and Close.
func (s *Server) Linger(ctx context.Context) {
	began := s.o.Clock.Now()
	s.asked.Store(began.UnixNano())
	s.lingering.Store(true)
	for s.clients() > 0 {
		wait := lingers(s.o.Clock.Now(), began, time.Unix(0, s.asked.Load()))
		if wait <= 0 {
			return
		}
		t := s.o.Clock.NewTimer(wait)
		select {
		case <-t.C():
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// lingers is how much longer to linger that began then, if nobody asks any more.
func lingers(now, began, asked time.Time) time.Duration {
	return min(lingerQuiet-now.Sub(asked), lingerMost-now.Sub(began))
}

// clients is how many connections are open that are no follower's.
func (s *Server) clients() (n int) {
	for _, c := range s.snapshot() {
		if !c.follows.Load() {
			n++
		}
	}
	return n
}

// heard notes that a client asks for what a leader or a coordinator answers.
func (s *Server) heard(c *conn, key int16) {
	if !s.lingering.Load() || c.follower != nil {
		return
	}
	switch {
	case key <= keyListOffsets, key >= keyOffsetCommit && key <= keySyncGroup, key >= 22 && key <= keyTxnOffsetCommit, key == keyConsumerGroupHeartbeat:
		s.asked.Store(s.o.Clock.Now().UnixNano())
	}
}
