package kafka

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// request is one request while it is answered. Handlers may keep nothing of it
// beyond their return: the body's byte fields alias the connection's buffer.
type request struct {
	// ctx ends when the connection or the server closes. A handler that waits
	// (JoinGroup, SyncGroup, Fetch) must watch it.
	ctx      context.Context
	header   wire.RequestHeader
	conn     *conn
	received time.Time // from the server's clock, when the frame was complete
}

// clientID is the name the client gave itself, or "".
func (r *request) clientID() string {
	if r.header.ClientID == nil {
		return ""
	}
	return *r.header.ClientID
}

// clientHost is the peer's address in the form of DescribeGroups: "/10.0.0.7".
func (r *request) clientHost() string { return r.conn.host }

// A handler answers one request. It runs on the connection's goroutine, so it
// may block (answers leave in order, as with Apache Kafka), and it gets the
// body already decoded in the request's version. The response gets its version
// from the dispatcher. An error closes the connection and is logged: what a
// client can understand goes into the response's error codes instead. A nil
// response without an error means that nothing is answered.
type handler func(r *request, body kmsg.Request) (kmsg.Response, error)

// api is what the server serves of one key.
type api struct {
	min, max int16
	handle   handler
	// stream is set instead of handle for the keys whose bytes have their own
	// path (Produce, Fetch): it gets the undecoded body and answers by itself.
	stream func(r *request, body []byte) error
}

// register adds a key to the table. Only register* functions called from
// registerAll use it; the same key twice is a bug.
func (s *Server) register(key, min, max int16, h handler) {
	s.add(key, api{min: min, max: max, handle: h})
}

func (s *Server) add(key int16, a api) {
	if _, twice := s.apis[key]; twice {
		panic(fmt.Sprintf("kafka: key %d registered twice", key)) // at start, never later
	}
	if req := wire.NewRequest(key); req == nil || a.max > req.MaxVersion() {
		panic(fmt.Sprintf("kafka: key %d registered up to version %d, which the codec lacks", key, a.max))
	}
	s.apis[key] = a
}

// registerAll is the list of everything that ApiVersions advertises.
func (s *Server) registerAll() {
}
