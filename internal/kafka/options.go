package kafka

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/authn"
	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/group"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/quota"
	"github.com/lockstep-kafka/lockstep/internal/txn"
)

// Listener is one address the server listens on.
type Listener struct {
	Name     string // e.g. PLAINTEXT; unique
	Protocol string // PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL
	Address  string // host:port to bind; port 0 takes a free one
	// AdvertisedHost and AdvertisedPort are what Metadata tells clients.
	// Empty host: the bound one, or the machine's name when that is a
	// wildcard. Zero port: the bound one.
	AdvertisedHost string
	AdvertisedPort int32
	TLS            *tls.Config // for SSL and SASL_SSL
	// CertificateName makes the principal's name of a client's certificate. Nil:
	// certificates name nobody.
	CertificateName func(*x509.Certificate) (string, error)
	SASL            *authn.SASL // for SASL_PLAINTEXT and SASL_SSL
	// MaxConnections bounds the connections of this listener
	// (listener.name.NAME.max.connections); 0: no limit of its own.
	MaxConnections int
	// MaxConnectionRate bounds those that are made per second
	// (listener.name.NAME.max.connection.creation.rate); 0: no rate of its own.
	MaxConnectionRate int
}

// Options configures a Server. Names in parentheses are Kafka's keys.
type Options struct {
	NodeID    int32
	Listeners []Listener

	Controller *controller.Controller
	Partitions *partition.Manager
	Groups     *group.Coordinator
	Mirrors    *mirror.Coordinator
	// Transactions coordinates transactional ids; nil refuses them.
	Transactions *txn.Coordinator

	// Peers are the other brokers of the cluster; nil: there are none. Transactions
	// whose coordinator is one of them are asked about there.
	Peers Peers

	// RackAware sends consumers to the replica in their rack (replica.selector.class).
	RackAware bool

	// UnverifiedTransactions takes transactional batches of clients before
	// transaction version 2 without asking whether their transaction is under way
	// (transaction.partition.verification.enable=false).
	UnverifiedTransactions bool

	// Authorizer decides what clients may do (authorizer.class.name); nil allows
	// everything. What the broker does by itself is not asked about.
	Authorizer *authz.Authorizer

	// Audit gets a line per refused or changing request (audit.log.path); nil:
	// none is written. AuditLost hears of a line that could not be written.
	Audit     io.Writer
	AuditLost func(error)

	Clock  clock.Clock
	Logger *slog.Logger
	// LogLevel is what Logger logs, for BROKER_LOGGER configs; nil: they are refused.
	LogLevel *slog.LevelVar

	// AutoCreateTopics lets Metadata create the topics a client asks for, with
	// AutoCreatePartitions and AutoCreateReplicas (auto.create.topics.enable,
	// num.partitions, default.replication.factor).
	AutoCreateTopics     bool
	AutoCreatePartitions int32 // default 1
	AutoCreateReplicas   int16 // default 1

	// BrokerConfigs is every config of this broker, by name, as its own file and
	// defaults have it. What was changed while it runs stands in the metadata.
	BrokerConfigs []metadata.BrokerConfig

	// MaxProduceBytes bounds a produce request (socket.request.max.bytes,
	// default 100 MiB). Every other request is held to MaxRequestBytes, default
	// 1 MiB, unless it is of a group.
	MaxProduceBytes int
	MaxRequestBytes int
	// MaxGroupRequestBytes bounds the requests of consumer groups, which grow with
	// the group (default 16 MiB). What decoding them takes is measured before.
	MaxGroupRequestBytes int
	// RequestMemory is what frames being read or handled may hold together
	// (queued.max.request.bytes, default 128 MiB); readers wait beyond it. With as
	// much for decoded bodies and large answers a server stays below half a GiB.
	RequestMemory int64

	// MaxConnections and MaxConnectionsPerIP refuse connections beyond them
	// (max.connections, max.connections.per.ip; defaults 10 000 and no limit of
	// its own).
	MaxConnections      int
	MaxConnectionsPerIP int
	// MaxConnectionRate is how many are taken per second, of all listeners
	// (max.connection.creation.rate; default: any number). Those beyond wait.
	MaxConnectionRate int
	// MaxConnectionsPerIPOverrides are other limits for single addresses, and
	// MaxConnectionsPerPrincipal one for each client that has said who it is
	// (max.connections.per.ip.overrides, max.connections.per.principal; default no
	// limit).
	MaxConnectionsPerIPOverrides map[string]int
	MaxConnectionsPerPrincipal   int
	// LoginTimeout is how long TLS and SASL may take together, default 10 s.
	// FailedLoginDelay holds back the first answer to a failed login
	// (connection.failed.authentication.delay.ms, default 100 ms; negative: none).
	LoginTimeout     time.Duration
	FailedLoginDelay time.Duration
	// IdleTimeout closes a connection without requests
	// (connections.max.idle.ms, default 10 min). FrameTimeout is how long a
	// request may take to arrive, beside a second per 256 KiB; WriteTimeout how
	// long the peer may accept no byte of an answer. Both default to 30 s.
	IdleTimeout  time.Duration
	FrameTimeout time.Duration
	WriteTimeout time.Duration

	// QuotaSamples and QuotaSampleLength are what rates of clients are measured
	// over (quota.window.num, quota.window.size.seconds; defaults 11 and 1 s).
	QuotaSamples      int
	QuotaSampleLength time.Duration

	// FetchMaxBytes bounds one fetch answer whatever the client asks
	// (fetch.max.bytes, default 55 MiB). FetchSessions bounds the cached fetch
	// sessions (max.incremental.fetch.session.cache.slots, default 1 000) and
	// FetchSessionPartitions the partitions they hold together, default
	// 1 000 000, some 100 bytes each.
	FetchMaxBytes          int
	FetchSessions          int
	FetchSessionPartitions int
}

// EnsureDefaults fills what is zero.
func (o *Options) EnsureDefaults() {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	setDefault(&o.AutoCreatePartitions, 1)
	setDefault(&o.AutoCreateReplicas, 1)
	setDefault(&o.MaxProduceBytes, 100<<20)
	setDefault(&o.MaxRequestBytes, 1<<20)
	setDefault(&o.MaxGroupRequestBytes, 16<<20)
	setDefault(&o.RequestMemory, max(128<<20, int64(o.MaxProduceBytes)))
	setDefault(&o.MaxConnections, 10_000)
	setDefault(&o.MaxConnectionsPerIP, math.MaxInt)
	setDefault(&o.MaxConnectionsPerPrincipal, math.MaxInt)
	setDefault(&o.MaxConnectionRate, quota.NoRate)
	setDefault(&o.LoginTimeout, loginTimeout)
	setDefault(&o.FailedLoginDelay, 100*time.Millisecond)
	setDefault(&o.IdleTimeout, 10*time.Minute)
	setDefault(&o.FrameTimeout, 30*time.Second)
	setDefault(&o.WriteTimeout, 30*time.Second)
	setDefault(&o.QuotaSamples, 11)
	setDefault(&o.QuotaSampleLength, time.Second)
	setDefault(&o.FetchMaxBytes, 55<<20)
	setDefault(&o.FetchSessions, 1000)
	setDefault(&o.FetchSessionPartitions, 1_000_000)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate names every fault at once.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Controller == nil || o.Partitions == nil {
		bad("kafka: Controller and Partitions are needed")
	}
	if len(o.Listeners) == 0 {
		bad("listeners: at least one is needed")
	}
	names := map[string]bool{}
	for _, l := range o.Listeners {
		if names[l.Name] {
			bad("listeners: %s is named twice", l.Name)
		}
		names[l.Name] = true
		switch l.Protocol {
		case "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL":
			if strings.HasSuffix(l.Protocol, "SSL") != (l.TLS != nil) {
				bad("listeners: %s is %s: a certificate belongs to SSL and SASL_SSL, and only there", l.Name, l.Protocol)
			}
			if strings.HasPrefix(l.Protocol, "SASL") != (l.SASL != nil) {
				bad("listeners: %s is %s: mechanisms belong to SASL_PLAINTEXT and SASL_SSL, and only there", l.Name, l.Protocol)
			}
		default:
			bad("listeners: %s: protocol %q is none of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL", l.Name, l.Protocol)
		}
	}
	if o.MaxProduceBytes < 1<<10 || o.MaxProduceBytes > math.MaxInt32 {
		bad("socket.request.max.bytes: %d is not between 1024 and 2147483647", o.MaxProduceBytes)
	}
	if o.RequestMemory < int64(o.MaxProduceBytes) {
		bad("queued.max.request.bytes: %d is less than socket.request.max.bytes %d, so such a request could never be read",
			o.RequestMemory, o.MaxProduceBytes)
	}
	for _, n := range []struct {
		name  string
		value int
	}{
		{"max.connections", o.MaxConnections},
		{"max.connections.per.ip", o.MaxConnectionsPerIP},
		{"max.connection.creation.rate", o.MaxConnectionRate},
		{"max.connections.per.principal", o.MaxConnectionsPerPrincipal},
		{"fetch.max.bytes", o.FetchMaxBytes},
		{"max.incremental.fetch.session.cache.slots", o.FetchSessions},
	} {
		if n.value < 1 {
			bad("%s: %d is less than 1", n.name, n.value)
		}
	}
	return errors.Join(errs...)
}

// requestLimit is the most bytes a frame of the key may have.
func (o *Options) requestLimit(key int16) int {
	switch key {
	case keyProduce:
		return o.MaxProduceBytes
	case keyOffsetCommit, keyOffsetFetch, keyJoinGroup, keySyncGroup, keyTxnOffsetCommit, keyConsumerGroupHeartbeat:
		// One group of thousands of members or partitions says it all in one
		// request: a leader's SyncGroup has everybody's assignment in it.
		return max(o.MaxGroupRequestBytes, o.MaxRequestBytes)
	}
	return o.MaxRequestBytes
}
