package replica

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// A link may go on in one direction only, or not at all, with nobody told: packets
// vanish in a switch, or a proxy takes them. The kernel finds what it can ([internal/peer]
// has it look); behind a proxy only the leader's silence tells. A leader whose disk hangs
// is silent too, and would never get to the end of an answer if its followers began anew
// each time: so the next connection waits longer.

// patience is how long a leader may be silent.
type patience struct{ first, most, now time.Duration }

func newPatience(first, most time.Duration) *patience { return &patience{first, most, first} }

// after takes in what became of a fetch, and tells whether the leader was silent.
func (p *patience) after(err error) (silent bool) {
	switch {
	case err == nil:
		p.now = p.first
	case errors.Is(err, os.ErrDeadlineExceeded):
		p.now = min(2*p.now, p.most)
		return true
	}
	return false
}

// quiet is a session that can tell silence from a long poll.
type quiet interface{ SetSilence(limit time.Duration) }

// heard is s with a bound on its leader's silence, where s can have one.
func (m *Manager) heard(f *fetcher, s sdk.Session) sdk.Session {
	q, ok := s.(quiet)
	i, both := s.(pipeline.Interrupter)
	if !ok || !both {
		return s
	}
	q.SetSilence(f.patience.now)
	return &heardSession{s, i, m, f}
}

type heardSession struct {
	sdk.Session
	pipeline.Interrupter
	m *Manager
	f *fetcher
}

func (s *heardSession) Fetch(ctx context.Context, req *sdk.FetchRequest, h sdk.FetchHandler) error {
	limit := s.f.patience.now
	err := s.Session.Fetch(ctx, req, h)
	if s.f.patience.after(err) && ctx.Err() == nil {
		s.m.o.Logger.Warn("connection to a leader was silent and is opened anew", "leader", s.f.key.leader, "silent_for", limit.String(), "next_waits", s.f.patience.now.String())
	}
	return err
}
