package controller

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Options opens a Controller.
type Options struct {
	// Dir holds the embedded etcd. It should not share a disk with busy segment
	// directories if that can be avoided: its fsync times are election times.
	Dir string
	// KeyFile holds the key that seals secrets before they are stored. Made with
	// mode 0600 if it does not exist; losing it loses the stored secrets.
	// Default: cluster.key beside Dir.
	KeyFile string
	// NodeID is this node's id, and its name in etcd and in the election.
	NodeID int32
	// ClusterID, if set, must be the stored one; on a first start it becomes the
	// stored one. Empty takes what is stored, or draws a new id.
	ClusterID string

	// ClientListen is host:port of a port for etcd's own clients, without TLS: who
	// reaches it reads and writes the metadata; etcdctl needs it. Empty: none.
	ClientListen string

	// Listen is host:port of the controller listener, the port on which the nodes
	// of a cluster reach this one. Empty: there are no others.
	Listen string
	// Advertised is host:port under which they do. Default: Listen.
	Advertised string
	// Voters are the controllers that the cluster begins with, this node among them
	// unless it is BrokerOnly. None: this node alone, or see Bootstrap.
	Voters []Voter
	// Bootstrap are controller listeners of a cluster that exists, host:port each. A
	// controller joins it; a node that is BrokerOnly follows it.
	Bootstrap []string
	// BrokerOnly is a node that holds no metadata and never has the office.
	BrokerOnly bool
	// Secret is what the nodes of a cluster know each other by, and what secrets in
	// the metadata are sealed with: the same on all of them. Empty: KeyFile.
	Secret string
	// External is an etcd of the operator's to use instead of one of our own.
	External *External
	// Tick is the interval of heartbeats between etcd's members; ten without one
	// begin an election. The same on all of them. Shorter: a controller that dies is
	// missed sooner; longer: one that stalls, on a slow disk, is not. Default 50 ms.
	Tick time.Duration

	// DefaultPartitions is for topics created without a count. Default 1.
	DefaultPartitions int32
	// DefaultReplicationFactor is for topics created without one, mirror topics
	// among them (W12). Default 1.
	DefaultReplicationFactor int16
	// MaxPartitionsPerTopic bounds one topic, hence one command. Default 10 000,
	// Kafka's bound for one request.
	MaxPartitionsPerTopic int32

	// DefaultMinISR and DefaultUncleanElection are what the node's file says of
	// min.insync.replicas and unclean.leader.election.enable. They must be the same
	// on every node. Default 1 and false.
	DefaultMinISR          int32
	DefaultUncleanElection bool

	// SessionTimeout is how long a broker may be silent before others lead what it
	// led. Default 3 s.
	SessionTimeout time.Duration
	// BalanceInterval is the time between two looks for leaders that should be
	// elsewhere, 0 never; BalancePercentage is how many of a hundred partitions that a
	// broker should lead others may lead.
	BalanceInterval   time.Duration
	BalancePercentage int
	// UncleanElection decides whether a replica may lead that may lack records, when
	// nobody else is left (D19). Nil: as unclean.leader.election.enable says.
	UncleanElection sdk.UncleanElectionPolicy

	// ElectionTTL is how long a controller that vanished keeps its office from
	// other nodes; etcd counts in whole seconds. A node that starts again takes its
	// own office back at once, and one whose process is gone is replaced at once.
	// Shorter: sooner replaced where the network is cut; longer: a process starved
	// of CPU is not deposed. Default 10 s for a single node, 5 s with a controller
	// listener.
	ElectionTTL time.Duration
	// QuotaBytes is where etcd stops writing. Default 4 GiB.
	QuotaBytes int64
	// CompactRevisions is how many revisions of history etcd keeps; a watch that
	// falls further behind reads everything anew. Default 10 000.
	CompactRevisions int64
	// RequestTimeout bounds one etcd request. Default 10 s.
	RequestTimeout time.Duration

	Logger *slog.Logger
	Clock  clock.Clock
	// Rand gives ids. Default crypto/rand.
	Rand io.Reader
}

// EnsureDefaults fills what is not set.
func (o *Options) EnsureDefaults() {
	if o.KeyFile == "" && o.Dir != "" {
		o.KeyFile = filepath.Join(filepath.Dir(filepath.Clean(o.Dir)), "cluster.key")
	}
	if o.DefaultPartitions == 0 {
		o.DefaultPartitions = 1
	}
	if o.DefaultReplicationFactor == 0 {
		o.DefaultReplicationFactor = 1
	}
	if o.MaxPartitionsPerTopic == 0 {
		o.MaxPartitionsPerTopic = 10_000
	}
	if o.DefaultMinISR == 0 {
		o.DefaultMinISR = 1
	}
	if o.ElectionTTL == 0 {
		o.ElectionTTL = 10 * time.Second
		if o.Listen != "" {
			o.ElectionTTL = 5 * time.Second
		}
	}
	if o.SessionTimeout == 0 {
		o.SessionTimeout = 3 * time.Second
	}
	if o.Advertised == "" {
		o.Advertised = o.Listen
	}
	if o.Tick == 0 {
		o.Tick = 50 * time.Millisecond
	}
	if o.QuotaBytes == 0 {
		o.QuotaBytes = 4 << 30
	}
	if o.CompactRevisions == 0 {
		o.CompactRevisions = 10_000
	}
	if o.RequestTimeout == 0 {
		o.RequestTimeout = 10 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
}

// afterLoss is what is left of a broker's session when its connection broke.
const afterLoss = 500 * time.Millisecond

func (o *Options) sessions(d defaults) sessionOptions {
	return sessionOptions{
		Timeout: o.SessionTimeout, AfterLoss: min(afterLoss, o.SessionTimeout),
		BalanceInterval: o.BalanceInterval, BalancePercentage: o.BalancePercentage, Defaults: d,
	}
}

// commitTimeout bounds one transaction. A proposal that a dying member of etcd took
// along is not heard of again, and etcd waits for it much longer than an election
// takes; we ask what became of it and go on.
func (o *Options) commitTimeout() time.Duration {
	if o.Listen == "" {
		return o.RequestTimeout
	}
	return min(o.RequestTimeout, max(2*time.Second, 2*electTicks*o.Tick))
}

// Validate names every fault at once.
func (o *Options) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("controller: "+format, args...)) }
	if o.Dir == "" && !o.remote() {
		fault("Dir: required")
	}
	if o.NodeID < 0 {
		fault("NodeID %d: must not be negative", o.NodeID)
	}
	if o.DefaultPartitions < 1 || o.DefaultPartitions > o.MaxPartitionsPerTopic {
		fault("DefaultPartitions %d: must be 1 to %d", o.DefaultPartitions, o.MaxPartitionsPerTopic)
	}
	if o.DefaultReplicationFactor < 1 {
		fault("DefaultReplicationFactor %d: must be at least 1", o.DefaultReplicationFactor)
	}
	if o.DefaultMinISR < 1 {
		fault("DefaultMinISR %d: must be at least 1", o.DefaultMinISR)
	}
	if o.ElectionTTL < time.Second {
		fault("ElectionTTL %v: must be at least 1s", o.ElectionTTL)
	}
	if o.CompactRevisions < 1 {
		fault("CompactRevisions %d: must be at least 1", o.CompactRevisions)
	}
	for name, addr := range map[string]string{"ClientListen": o.ClientListen, "Listen": o.Listen, "Advertised": o.Advertised} {
		if addr == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(addr); err != nil {
			fault("%s %q: not host:port", name, addr)
		}
	}
	return errors.Join(append(errs, o.checkCluster()...)...)
}
