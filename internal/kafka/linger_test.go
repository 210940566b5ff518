package kafka

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestLingers(t *testing.T) {
	began := time.Unix(100, 0)
	at := func(ms int) time.Time { return began.Add(time.Duration(ms) * time.Millisecond) }
	for _, test := range []struct{ now, asked, want int }{
		{0, 0, 250},
		{100, 40, 190},
		{300, 0, -50},
		{1900, 1890, 100}, // somebody who never learns
		{2000, 2000, 0},
	} {
		if got := lingers(at(test.now), began, at(test.asked)); got != time.Duration(test.want)*time.Millisecond {
			t.Errorf("at %d ms, asked at %d: %v more, want %d ms", test.now, test.asked, got, test.want)
		}
	}
}

// Clients of a broker that stops are told who leads now, and come back until they know.
// What any broker answers keeps nobody.
func TestLinger(t *testing.T) {
	s := anotherServer(t, func(*Options) {})
	s.Linger(t.Context()) // nobody is there: returns
	e := s.Endpoints()[0]
	c := dial(t, fmt.Sprintf("%s:%d", e.Host, e.Port))
	ask[*kmsg.MetadataResponse](t, c, kmsg.NewPtrMetadataRequest())
	asked := func(req kmsg.Request) bool {
		before := s.asked.Load()
		if _, err := c.Request(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		return s.asked.Load() > before
	}
	if !asked(kmsg.NewPtrListOffsetsRequest()) {
		t.Error("a request to a leader was not noted")
	}
	if asked(kmsg.NewPtrMetadataRequest()) {
		t.Error("a request for metadata was noted")
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { defer close(done); s.Linger(ctx) }()
	select {
	case <-done:
		t.Error("went away at once, with a client there")
	case <-time.After(lingerQuiet / 5):
	}
	cancel()
	<-done
}
