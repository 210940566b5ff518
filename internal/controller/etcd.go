package controller

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Bounds of one request. Ours are etcd's defaults, so that the same code can
// talk to an etcd that somebody else runs.
const (
	maxTxnOps     = 128
	maxTxnBytes   = 1 << 20 // of the 1.5 MiB that etcd accepts, the rest being framing
	tickMillis    = 10      // one member has no peer to lose; short ticks mean a short start
	electMillis   = 100
	readPageLimit = 5000 // keys per range request while reading everything

	// walBytes is the size of one file of etcd's log. It allocates the next one
	// ahead, and ends the process when it cannot: on a small or full disk its own 64
	// MB twice are too much, and our commands are small.
	walBytes = 16 << 20
)

func init() { wal.SegmentSizeBytes = walBytes } // etcd has no option for it

// embedded is the etcd inside this process.
type embedded struct {
	server *embed.Etcd
	client *clientv3.Client
	lock   *os.File
}

// startEtcd starts one member on o.Dir and waits until it serves. A member that
// was killed repairs its own log.
//
// It opens no port unless told to: our client calls it in process, and a single
// member has no peers. What listens can be read and written by whoever reaches
// it.
func startEtcd(ctx context.Context, o Options) (*embedded, error) {
	lock, err := lockDir(o.Dir)
	if err != nil {
		return nil, err
	}
	cfg, err := etcdConfig(o)
	if err != nil {
		lock.Close()
		return nil, err
	}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		lock.Close()
		return nil, fmt.Errorf("start etcd in %s: %w", o.Dir, err)
	}
	e := &embedded{server: server, lock: lock}
	select {
	case <-server.Server.ReadyNotify():
	case <-server.Server.StopNotify():
		err = errors.New("it stopped while starting")
	case err = <-server.Err():
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		e.close()
		return nil, fmt.Errorf("start etcd in %s: %w", o.Dir, err)
	}
	e.client = v3client.New(server.Server)
	return e, nil
}

func etcdConfig(o Options) (*embed.Config, error) {
	cfg := embed.NewConfig()
	cfg.Name = memberName(o.NodeID)
	cfg.Dir = o.Dir
	cfg.TickMs, cfg.ElectionMs = tickMillis, electMillis
	cfg.MaxTxnOps = maxTxnOps
	cfg.QuotaBackendBytes = o.QuotaBytes
	cfg.AutoCompactionMode = embed.CompactorModeRevision
	cfg.AutoCompactionRetention = strconv.FormatInt(o.CompactRevisions, 10)
	cfg.EnableGRPCGateway = false
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(&zapBridge{logger: o.Logger.With("component", "etcd")}))

	// The advertised address is only a name where nobody listens.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{peer}
	if o.PeerListen != "" {
		peer.Host = o.PeerListen
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = nil, nil
	if o.ClientListen != "" {
		u := []url.URL{{Scheme: "http", Host: o.ClientListen}}
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = u, u
	}
	return cfg, nil
}

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
func (e *embedded) close() error {
	var err error
	if e.client != nil {
		err = e.client.Close()
	}
	e.server.Close()
	if errors.Is(err, context.Canceled) {
		err = nil // how an in-process client says goodbye
	}
	return errors.Join(err, e.lock.Close())
}

// defragment rewrites the store's file without its holes. The in-process client
// cannot ask for it: it has no health notifier, and etcd calls one.
func (e *embedded) defragment() error {
	if err := e.server.Server.Backend().Defrag(); err != nil {
		return fmt.Errorf("rewrite metadata store: %w", err)
	}
	return nil
}

// stopped is closed when etcd ends by itself.
func (e *embedded) stopped() <-chan struct{} { return e.server.Server.StopNotify() }
