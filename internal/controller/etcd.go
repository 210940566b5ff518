package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/etcdhttp"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// Bounds of one request. But for ownTxnOps they are etcd's defaults, so that the same
// code can talk to an etcd that somebody else runs.
const (
	anyTxnOps = 128
	// ownTxnOps is what a member in this process takes. A transaction costs an fsync of
	// a majority, and a broker with three thousand partitions that is gone is out of them
	// after four instead of twenty-four. Only the member that is asked looks at it.
	ownTxnOps     = 1024
	maxTxnBytes   = 1 << 20 // of the 1.5 MiB that etcd accepts, the rest being framing
	readPageLimit = 5000    // keys per range request while reading everything

	// A single member has no peer to lose, and short ticks mean a short start.
	// Members on a network, whose disks stall for tens of milliseconds, get
	// Options.Tick.
	aloneTick = 10 * time.Millisecond
	// electTicks without a sign of the leader begin an election.
	electTicks = 10
	// maxLearners is how many controllers may be joining at once.
	maxLearners = 4

	// walBytes is the size of one file of etcd's log. It allocates the next one
	// ahead, and ends the process when it cannot: on a small or full disk its own 64
	// MB twice are too much, and our commands are small.
	walBytes = 16 << 20
)

func init() { wal.SegmentSizeBytes = walBytes } // etcd has no option for it

// store is the etcd that holds the metadata: a member inside of this process, or
// one that is reached over the network, be it the other nodes' or the operator's.
// The rest of the package has the client and need not know.
type store struct {
	client *clientv3.Client
	member *embed.Etcd // nil: not in this process
	lock   *os.File    // of the member's directory

	peers   *http.Server // what the other members ask of ours
	clients *grpc.Server // what nodes without a member ask of it
	serving sync.WaitGroup
}

// formation is how a member starts whose directory is empty: the cluster it finds
// or founds. A member that has a directory knows its cluster from there.
type formation struct {
	members  string // NAME=URL,… of all members, this one included
	existing bool   // they are a cluster already
}

// startMember starts one member on o.Dir and waits until it serves. A member that
// was killed repairs its own log.
//
// It opens no port unless told to: our client calls it in process, other nodes
// come in through the controller listener, and a single member has no peers. What
// listens can be read and written by whoever reaches it.
func startMember(ctx context.Context, o Options, f formation, net *listener, id *identity) (*store, error) {
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	cfg, err := etcdConfig(o, f, id)
	if err != nil {
		lock.Close()
		return nil, err
	}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("start etcd in %s: %w", o.Dir, err)
	}
	e := &store{member: server, lock: lock}
	if net != nil {
		e.serve(net)
	}
	select {
	case <-server.Server.ReadyNotify():
	case <-server.Server.StopNotify():
		err = errors.New("it stopped while starting")
	case err = <-server.Err():
	case <-ctx.Done():
		err = fmt.Errorf("no majority of the controllers was found: %w", ctx.Err())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start etcd in %s: %w", o.Dir, err), e.close())
	}
	e.client = v3client.New(server.Server)
	return e, nil
}

// serve lets the other nodes in.
func (e *store) serve(net *listener) {
	e.peers = &http.Server{Handler: etcdhttp.NewPeerHandler(e.member.GetLogger(), e.member.Server), ErrorLog: log.New(io.Discard, "", 0)}
	e.clients = v3rpc.Server(e.member.Server, nil, nil,
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepAlive / 2, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepAlive, Timeout: keepAlive}))
	e.serving.Go(func() { _ = e.peers.Serve(net.door(protocolPeer)) })     // until closed
	e.serving.Go(func() { _ = e.clients.Serve(net.door(protocolClient)) }) // until stopped
}

// keepAlive is how long an idle connection between nodes goes without a sign of
// life before one is asked for, and how long that may take.
const keepAlive = 5 * time.Second

func etcdConfig(o Options, f formation, id *identity) (*embed.Config, error) {
	cfg := embed.NewConfig()
	cfg.Name = memberName(o.NodeID)
	cfg.Dir = o.Dir
	tick := aloneTick
	if o.Listen != "" {
		tick = o.Tick
	}
	cfg.TickMs, cfg.ElectionMs = uint(tick/time.Millisecond), electTicks*uint(tick/time.Millisecond)
	cfg.MaxTxnOps = ownTxnOps
	cfg.MaxLearners = maxLearners
	cfg.QuotaBackendBytes = o.QuotaBytes
	cfg.AutoCompactionMode = embed.CompactorModeRevision
	cfg.AutoCompactionRetention = strconv.FormatInt(o.CompactRevisions, 10)
	cfg.EnableGRPCGateway = false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(&zapBridge{logger: o.Logger.With("component", "etcd")}))

	// The advertised addresses are only names where nobody listens.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenPeerUrls, cfg.ListenClientUrls, cfg.AdvertiseClientUrls = nil, nil, nil
	if o.Listen != "" {
		peer = url.URL{Scheme: "https", Host: o.Advertised}
		cfg.AdvertiseClientUrls = []url.URL{peer}
		cert, key, ca, err := id.files(filepath.Join(o.Dir, "tls"))
		if err != nil {
			return nil, err
		}
		cfg.PeerTLSInfo = transport.TLSInfo{CertFile: cert, KeyFile: key, TrustedCAFile: ca, ClientCertAuth: true, ServerName: nodeName}
	}
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	if f.members != "" {
		cfg.InitialCluster = f.members
	}
	if f.existing {
		cfg.ClusterState = embed.ClusterStateFlagExisting
	}
	if o.ClientListen != "" {
		cfg.ListenClientUrls = []url.URL{{Scheme: "http", Host: o.ClientListen}}
		if cfg.AdvertiseClientUrls == nil {
			cfg.AdvertiseClientUrls = cfg.ListenClientUrls
		}
	}
	return cfg, nil
}

// hasMember tells whether dir holds a member that was started before.
func hasMember(dir string) bool { return wal.Exist(filepath.Join(dir, "member", "wal")) }

// memberName is this node's name in etcd and in the election.
func memberName(nodeID int32) string { return "node-" + strconv.Itoa(int(nodeID)) }

// lockDir keeps a second process away. etcd would wait for its own lock without
// a word.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("metadata directory: %w", err)
	}
	name := filepath.Join(dir, "lockstep.lock")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("metadata directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("metadata directory %s is in use by another process: %w", dir, err)
	}
	return f, nil
}

// close stops etcd and gives the directory back.
func (e *store) close() error {
	var err error
	if e.client != nil {
		err = e.client.Close()
	}
	if errors.Is(err, context.Canceled) {
		err = nil // how an in-process client says goodbye
	}
	if e.member != nil {
		e.member.Close()
	}
	if e.peers != nil {
		err = errors.Join(err, e.peers.Close())
		e.clients.Stop()
		e.serving.Wait()
	}
	if e.lock != nil {
		err = errors.Join(err, e.lock.Close())
	}
	return err
}

// defragment rewrites the store's file without its holes. The in-process client
// cannot ask for it: it has no health notifier, and etcd calls one.
func (e *store) defragment() error {
	if err := e.member.Server.Backend().Defrag(); err != nil {
		return fmt.Errorf("rewrite metadata store: %w", err)
	}
	return nil
}

// txnOps is how many operations a transaction may have.
func (e *store) txnOps() int {
	if e.member == nil {
		return anyTxnOps
	}
	return ownTxnOps
}

// leaderChanged answers channels that are closed when another member leads etcd; nil if
// nobody here knows.
func (e *store) leaderChanged() func() <-chan struct{} {
	if e.member == nil {
		return nil
	}
	return e.member.Server.LeaderChangedNotify
}

// stopped is closed when etcd ends by itself. One that is not in this process does
// not end for us: it can come back.
func (e *store) stopped() <-chan struct{} {
	if e.member == nil {
		return nil
	}
	return e.member.Server.StopNotify()
}
