package pipeline

import (
	"time"

	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Manual is a Worker without a goroutine: whoever has it carries the requests to
// their source, and brings the responses, when and as he wants. The simulation does.
type Manual struct {
	*Worker
}

// NewManual makes a worker that does nothing by itself. Settle of o is not called.
func NewManual(o WorkerOptions) *Manual {
	o.Settle = nil
	w := newWorker(o)
	close(w.done) // nobody to wait for
	return &Manual{w}
}

// Request makes the next request and connects where there is no session. Without one
// there is nothing to ask for: not before wait is over, or at all if that is 0. The
// request is good until Respond.
func (m *Manual) Request() (req *sdk.FetchRequest, wait time.Duration) {
	if m.ctx.Err() != nil {
		return nil, 0
	}
	m.refresh()
	wait = m.prepare()
	if len(m.asked) == 0 {
		m.piece.release()
		return nil, wait
	}
	if !m.connect() {
		return nil, 0
	}
	return &m.req, wait
}

// Respond brings the response to the request made last: deliver hands its partitions
// to the handler, as a session's Fetch does, and answers what that would.
func (m *Manual) Respond(deliver func(sdk.FetchHandler) error) {
	m.begin()
	m.finish(deliver(m.Worker))
}
