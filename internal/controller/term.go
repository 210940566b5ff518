package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// term is one controller's time in office. Two compares fence every transaction
// of it:
//
//   - the election key must still be ours, by its create revision: a controller
//     that was deposed, and may not know it yet, writes nothing;
//   - the chain key must be as our last transaction left it, and every transaction
//     puts it: a request that timed out cannot take effect after a later decision
//     was made without it.
//
// The goroutine that runs the controller owns it.
type term struct {
	client  *clientv3.Client
	session *concurrency.Session
	key     string
	rev     int64 // create revision of key: grows from term to term
	chain   int64 // modification revision of the chain key
	tries   int   // transactions that were sent: tells each from the others
	timeout time.Duration
	// leaders answers a channel that is closed when another member leads etcd; nil: the
	// store is not in this process, and nobody tells.
	leaders func() <-chan struct{}
	clock   clock.Clock
	meters  *meters
}

var (
	// errDeposed is a transaction refused because the office is somebody else's.
	errDeposed = fmt.Errorf("%w: the office was lost", ErrNotController)
	// errChain is a transaction refused because another of ours, of unknown
	// fate until now, went first.
	errChain = errors.New("an earlier transaction took effect late")
)

// campaign wins the election. It blocks as long as another node holds the office.
func campaign(ctx context.Context, store *store, o Options, m *meters) (*term, error) {
	client := store.client
	if err := retire(ctx, client, o.NodeID); err != nil {
		return nil, err
	}
	session, err := concurrency.NewSession(client,
		concurrency.WithTTL(int(o.ElectionTTL/time.Second)), concurrency.WithContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("controller election: %w", err)
	}
	e := concurrency.NewElection(session, keyElection)
	t := &term{client: client, session: session, timeout: o.commitTimeout(), leaders: store.leaderChanged(), clock: o.Clock, meters: m}
	if err := e.Campaign(ctx, candidacy{o.NodeID, o.Advertised}.String()); err != nil {
		t.resign()
		return nil, fmt.Errorf("controller election: %w", err)
	}
	t.key, t.rev = e.Key(), e.Rev()
	return t, nil
}

// retire takes candidatures back that an earlier process of this node left: it is
// dead, because the data directory is locked by us or its port is ours, and nobody
// need wait for its lease to end.
func retire(ctx context.Context, client *clientv3.Client, node int32) error {
	resp, err := client.Get(ctx, keyElection+"/", clientv3.WithPrefix())
	if err != nil {
		return fmt.Errorf("controller election: %w", err)
	}
	for _, kv := range resp.Kvs {
		if parseContender(kv).node != node || kv.Lease == 0 {
			continue
		}
		if _, err := client.Revoke(ctx, clientv3.LeaseID(kv.Lease)); err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return fmt.Errorf("controller election: retire an earlier process of this node: %w", err)
		}
	}
	return nil
}

// syncChain reads where the chain stands. The read is linearizable: whatever took
// effect before it is seen.
func (t *term) syncChain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	resp, err := t.client.Get(ctx, keyChain)
	if err != nil {
		return fmt.Errorf("read metadata: %w", err)
	}
	t.chain = 0
	if len(resp.Kvs) > 0 {
		t.chain = resp.Kvs[0].ModRevision
	}
	return nil
}

// resign gives the office up at once, so that the next controller need not wait
// for the lease to end.
func (t *term) resign() {
	t.session.Orphan()
	ctx, cancel := context.WithTimeout(context.Background(), resignTimeout)
	defer cancel()
	// If it fails, the lease ends by itself.
	_, _ = t.client.Revoke(ctx, t.session.Lease())
}

// resignTimeout bounds a farewell to a store that does not answer any more.
const resignTimeout = time.Second

// pack splits writes into transactions of at most so many operations as the store takes,
// the chain put being one, and maxTxnBytes. A group stays together if it fits into one; a
// bigger one is split in its order. A key stands once in a transaction, because
// etcd refuses one that has it twice: what two commands of a batch write follows
// in the next.
type pack struct {
	txns  [][]write
	most  int // operations of one, the chain put not among them; 0: as many as any etcd takes
	ops   int
	bytes int
	keys  map[string]struct{} // of the last transaction
}

// add wants writes of at most maxTxnBytes each.
func (p *pack) add(group []write) {
	size := 0
	for _, w := range group {
		size += w.size()
	}
	most := anyTxnOps - 1
	if p.most > 0 {
		most = p.most
	}
	fits := len(group) <= most && size <= maxTxnBytes
	if len(p.txns) == 0 || fits && (p.ops+len(group) > most || p.bytes+size > maxTxnBytes) || slices.ContainsFunc(group, p.has) {
		p.open()
	}
	for _, w := range group {
		if p.ops+1 > most || p.bytes+w.size() > maxTxnBytes || p.has(w) {
			p.open()
		}
		p.keys[w.key] = struct{}{}
		i := len(p.txns) - 1
		p.txns[i] = append(p.txns[i], w)
		p.ops++
		p.bytes += w.size()
	}
}

func (p *pack) has(w write) bool {
	_, ok := p.keys[w.key]
	return ok
}

func (p *pack) open() {
	p.txns = append(p.txns, nil)
	p.ops, p.bytes, p.keys = 0, 0, make(map[string]struct{})
}
