package kafka

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/partition"
)

// Listener is one address the server listens on.
type Listener struct {
	Name     string // of the listener, e.g. PLAINTEXT
	Protocol string // PLAINTEXT or SSL
	Address  string // host:port to bind; port 0 takes a free one
	// AdvertisedHost and AdvertisedPort are what Metadata tells clients.
	// Empty host: the bound one, or the machine's name when that is a
	// wildcard. Zero port: the bound one.
	AdvertisedHost string
	AdvertisedPort int32
	TLS            *tls.Config // for SSL
}

// Options configures a Server.
type Options struct {
	NodeID    int32
	Listeners []Listener

	Controller *controller.Controller
	Partitions *partition.Manager
	Groups     *group.Coordinator
	Mirrors    *mirror.Coordinator

	Clock  clock.Clock
	Logger *slog.Logger
}

// Server is the wire server of one broker.
type Server struct {
	o         Options
	apis      map[int16]api
	listeners []net.Listener
}

// NewServer binds the listeners, so that the ports are known before the broker
// registers; nothing is accepted before Serve.
func NewServer(o Options) (*Server, error) {
	s := &Server{o: o, apis: map[int16]api{}}
	s.registerAll()
	return nil, errors.New("not there yet")
}

// Endpoints is what the broker has to register: one per listener, with the
// real ports.
func (s *Server) Endpoints() []metadata.Endpoint { return nil }

// Serve accepts connections until Close.
func (s *Server) Serve() error { return errors.New("not there yet") }

// Close stops accepting, lets requests under way finish until ctx ends, then
// closes every connection and waits for their goroutines.
func (s *Server) Close(ctx context.Context) error { return nil }
