package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Where a source is, while its brokers move to other addresses: all at once behind a
// bootstrap address that stays, or one after the other until nobody is at a bootstrap
// address any more. And what was a broker's address may be another cluster's today.

// minDial is the least time that is given to one of several addresses.
const minDial = 500 * time.Millisecond

// dialAny connects to the first address at which the source answers: the one where it
// did so last, the bootstrap addresses, then where its brokers were. Each gets a share of
// the time there is, so that those at which packets vanish leave some for the others.
// With asBootstrap a bootstrap address may lead to another cluster, which the caller
// wants to hear of.
func (c *Cluster) dialAny(ctx context.Context, asBootstrap bool) (*wire.Client, error) {
	addrs := c.addresses()
	var worst error
	for i, addr := range addrs {
		bootstrap := slices.Contains(c.config.Bootstrap, addr)
		conn, err := c.dialWithin(ctx, addr, len(addrs)-i, !(bootstrap && asBootstrap))
		if err == nil {
			c.mu.Lock()
			c.mu.last = addr
			c.mu.Unlock()
			return conn, nil
		}
		err = fail(addr, "connect", err)
		// What a broker left behind says nothing about the settings.
		if bootstrap && (worst == nil || ErrorClass(worst) == Unreachable && ErrorClass(err) != Unreachable) {
			worst = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	if worst == nil { // the time was over at an address that is no bootstrap address
		worst = fail("", "connect", context.Cause(ctx))
	}
	return nil, worst
}

// addresses are those at which the source may be found, each once.
func (c *Cluster) addresses() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, list := range [][]string{{c.mu.last}, c.config.Bootstrap, addrsOf(c.mu.known)} {
		for _, addr := range list {
			if addr != "" && !slices.Contains(out, addr) {
				out = append(out, addr)
			}
		}
	}
	return out
}

// addrsOf are the addresses of brokers, in the order of their ids.
func addrsOf(brokers map[int32]sdk.BrokerAddr) (out []string) {
	for _, id := range slices.Sorted(maps.Keys(brokers)) {
		b := brokers[id]
		out = append(out, b.Addr())
	}
	return out
}

// dialWithin is dial in the time that one of n addresses gets.
func (c *Cluster) dialWithin(ctx context.Context, addr string, n int, check bool) (*wire.Client, error) {
	if deadline, ok := ctx.Deadline(); ok && n > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(time.Until(deadline)/time.Duration(n), minDial))
		defer cancel()
	}
	if !check {
		return c.dialer.Dial(ctx, addr)
	}
	return c.dial(ctx, addr)
}

// dial connects to a broker and makes sure that it is one of the source, where the
// source's id is known: an address may have gone to another cluster meanwhile, whose
// answers would cut logs, and whose records would be taken for the source's.
func (c *Cluster) dial(ctx context.Context, addr string) (*wire.Client, error) {
	conn, err := c.dialer.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	want := c.mu.id
	c.mu.Unlock()
	if want == "" {
		return conn, nil
	}
	resp, err := askCluster(ctx, conn)
	if err == nil {
		err = sameCluster(want, resp.ClusterID)
	}
	if err != nil {
		conn.Close()
		return nil, fail(addr, "connect", err)
	}
	return conn, nil
}

// ErrOtherCluster: who was asked is not of the source.
var ErrOtherCluster = errors.New("another cluster is there")

// sameCluster compares ids; a broker that tells none may be the source's.
func sameCluster(want string, id *string) error {
	if want == "" || id == nil || *id == "" || *id == want {
		return nil
	}
	return fmt.Errorf("%w: it answers as %s, the source is %s", ErrOtherCluster, *id, want)
}

// askCluster asks for the cluster's id and brokers.
func askCluster(ctx context.Context, conn *wire.Client) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none
	resp, err := conn.Request(ctx, req)
	if err != nil {
		return nil, err
	}
	return resp.(*kmsg.MetadataResponse), nil
}

// learn keeps where the brokers of cluster id are. by is the control client that was
// told so. If it was asked over another connection, by is nil, and a control client that
// does not know the same is replaced.
func (c *Cluster) learn(id string, brokers map[int32]sdk.BrokerAddr, by *control) {
	c.mu.Lock()
	if c.mu.id == "" {
		c.mu.id = id
	}
	if c.mu.closed || c.mu.id != id || len(brokers) == 0 {
		c.mu.Unlock()
		return
	}
	c.mu.known = brokers
	if by != nil {
		by.brokers = brokers
	}
	current := c.mu.control
	same := maps.Equal(current.brokers, brokers)
	c.mu.Unlock()
	if !same && by == nil {
		c.renew(current)
	}
}

// brokersOf are the brokers that an answer names.
func brokersOf(resp *kmsg.MetadataResponse) map[int32]sdk.BrokerAddr {
	out := make(map[int32]sdk.BrokerAddr, len(resp.Brokers))
	for _, b := range resp.Brokers {
		out[b.NodeID] = sdk.BrokerAddr{ID: b.NodeID, Host: b.Host, Port: b.Port}
	}
	return out
}

// same makes sure that the control client was answered by the source. One that was not
// knows another cluster's brokers now, and would ask them from here on.
func (c *Cluster) same(k *control, resp *kmsg.MetadataResponse) error {
	c.mu.Lock()
	want := c.mu.id
	c.mu.Unlock()
	err := sameCluster(want, resp.ClusterID)
	if err != nil {
		c.renew(k)
	}
	return err
}

// control is the franz-go client of the control plane. It cannot be told where brokers
// are: it asks those that it knows, one with each request, and a seed after all of them.
// When they moved it would fail as long as that takes, so it is replaced by a new one.
type control struct {
	client *kgo.Client
	admin  *kadm.Client

	// Guarded by Cluster.mu.
	uses    int
	brokers map[int32]sdk.BrokerAddr // as it was last told, or began with
}

// newControl makes one that begins where brokers are, and at the bootstrap addresses.
func (c *Cluster) newControl(brokers map[int32]sdk.BrokerAddr) (*control, error) {
	seeds := addrsOf(brokers)
	for _, addr := range c.config.Bootstrap {
		if !slices.Contains(seeds, addr) {
			seeds = append(seeds, addr)
		}
	}
	client, err := kgo.NewClient(append(slices.Clone(c.opts), kgo.SeedBrokers(seeds...))...)
	if err != nil {
		return nil, err
	}
	return &control{client: client, admin: kadm.NewClient(client), brokers: brokers}, nil
}

// renew replaces a control client, once. Who still uses the old one goes on.
func (c *Cluster) renew(old *control) {
	c.mu.Lock()
	known := c.mu.known
	c.mu.Unlock()
	next, err := c.newControl(known)
	if err != nil {
		c.logger.Warn("control client of the source was not replaced", "err", err)
		return
	}
	c.mu.Lock()
	unused := next
	if c.mu.control == old && !c.mu.closed {
		c.mu.control, unused = next, old
		if old.uses > 0 {
			c.mu.retired[old] = struct{}{}
			unused = nil
		}
	}
	c.mu.Unlock()
	if unused != nil {
		unused.client.Close()
	}
}

// use answers the control client, to be given back.
func (c *Cluster) use() (k *control, done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k = c.mu.control
	k.uses++
	return k, func() {
		c.mu.Lock()
		k.uses--
		_, retired := c.mu.retired[k]
		last := retired && k.uses == 0
		if last {
			delete(c.mu.retired, k)
		}
		c.mu.Unlock()
		if last {
			k.client.Close()
		}
	}
}
