package controller

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Controller is the only writer of cluster metadata. See the package for who runs
// what.
type Controller struct {
	o        Options
	codec    codec
	meters   *meters
	etcd     *store
	follower *follower
	dispatch *dispatcher
	house    *housekeeper // nil: no member of the store is here

	// What reaches other nodes, and is reached by them; nil for a node alone.
	id      *identity
	net     *listener
	calls   *grpc.Server
	callsWG sync.WaitGroup
	nodes   *nodes
	// up is etcd once it serves: calls of other nodes come before that.
	up     atomic.Pointer[store]
	staged *Backup // what waits to be restored; nil: nothing
	// joining is held while a member is added.
	joining sync.Mutex

	// sessions belongs to the controller's goroutine; lost brings it news.
	sessions sessions
	lost     chan loss
	// failing is what the controller's own commands fail with at present.
	failing string
	// asking says that the policy of unclean elections is being asked.
	asking atomic.Bool

	requests chan *request
	terms    chan *term
	cancel   context.CancelFunc
	// stopCtx ends with Close.
	stopCtx context.Context
	wg      sync.WaitGroup

	// mu guards the office as seen from outside the controller's goroutine.
	mu struct {
		sync.Mutex
		leading bool
		changed chan struct{}
		// losses are brokers that were lost in the last seconds, and when.
		losses map[loss]time.Time
	}
	closeOnce sync.Once
	closeErr  error
}

// maxQueued bounds the requests that wait for the controller's goroutine; those
// beyond wait in their callers.
const maxQueued = 1024

// Open finds the cluster or founds one, reads the image, and stands for election.
// It returns when there is an active controller, here or elsewhere, so that commands
// are taken; or when ctx ends.
func Open(ctx context.Context, o Options) (_ *Controller, err error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &Controller{
		o: o, meters: newMeters(),
		requests: make(chan *request, maxQueued),
		terms:    make(chan *term),
		lost:     make(chan loss, lostQueue),
	}
	c.sessions.o = o.sessions(c.defaults())
	c.mu.losses = make(map[loss]time.Time)
	c.mu.changed = make(chan struct{})
	c.stopCtx, c.cancel = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Close())
		}
	}()
	seal, err := o.sealer()
	if err != nil {
		return nil, err
	}
	c.codec = codec{seal}
	if err := c.openStaged(); err != nil {
		return nil, err
	}
	if err := c.connect(); err != nil {
		return nil, err
	}
	if err := c.startStore(ctx); err != nil {
		return nil, err
	}
	c.follower = newFollower(c.etcd.client, c.codec, o.Logger, o.Clock, c.meters)
	c.dispatch = newDispatcher(c.follower)
	c.registerGauges()
	c.registerStoreGauges()
	if err := c.prepare(ctx); err != nil {
		return nil, err
	}
	c.up.Store(c.etcd)
	if c.etcd.member != nil {
		if err := endFounding(o.Dir); err != nil {
			return nil, err
		}
	}
	c.wg.Go(func() { c.follower.run(c.stopCtx) })
	c.wg.Go(func() { c.dispatch.run(c.stopCtx) })
	if !o.BrokerOnly {
		c.wg.Go(c.run)
	}
	if c.etcd.member != nil {
		c.wg.Go(func() { c.house.run(c.stopCtx) })
		c.wg.Go(func() { c.promote(c.stopCtx) })
		c.wg.Go(func() { c.endSilence(c.stopCtx) })
	}
	if c.nodes != nil {
		c.wg.Go(func() { c.keepTouch(c.stopCtx) })
	}
	if err := c.waitActive(ctx); err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	return c, nil
}

// sealer opens what secrets are sealed with.
func (o *Options) sealer() (*sealer, error) {
	if o.Secret != "" {
		return openSecret(o.Secret, o.KeyFile, o.Rand, o.Logger)
	}
	return openSealer(o.KeyFile, o.Rand, o.Logger)
}

// connect opens the ways to other nodes.
func (c *Controller) connect() (err error) {
	if c.o.Listen == "" && !c.o.several() {
		return nil
	}
	if c.id, err = newIdentity(c.codec.seal.secret, c.o.NodeID, c.o.Rand); err != nil {
		return err
	}
	c.nodes = newNodes(c.id)
	if c.o.Listen == "" || c.o.BrokerOnly {
		return nil
	}
	if c.net, err = listen(c.o.Listen, c.id, c.o.Logger, c.o.Clock); err != nil {
		return err
	}
	c.startCalls(c.net.door(protocolCalls))
	return nil
}

// startStore starts this node's member, or connects to somebody else's.
func (c *Controller) startStore(ctx context.Context) (err error) {
	if c.o.remote() {
		c.etcd, err = dialStore(ctx, c.o, c.id)
		if err != nil && c.o.External == nil {
			if other := c.checkOthers(ctx, c.o.controllers()); other != nil {
				return other // and not that it took too long
			}
		}
		return err
	}
	f, err := c.form(ctx)
	if err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	old := hasMember(c.o.Dir)
	if c.etcd, err = startMember(ctx, c.o, f, c.net, c.id); err != nil {
		if old && c.wasRemoved() {
			return fmt.Errorf("node %d was removed from the controllers of this cluster: to make it one again delete %s and start it; else leave controller out of its process.roles: %w", c.o.NodeID, c.o.Dir, err)
		}
		return err
	}
	return c.announce(ctx)
}

// prepare brings the store to the point where its image can be followed.
func (c *Controller) prepare(ctx context.Context) error {
	if c.etcd.member != nil {
		c.house = newHousekeeper(c.etcd, c.o)
		if err := c.house.look(ctx); err != nil {
			c.o.Logger.Error("metadata store takes no writes", "error", err) // it can be read, and seen
		}
	}
	if err := c.restore(ctx); err != nil {
		return err
	}
	// A node that starts is there while others start too, and etcd elects a leader.
	for _, step := range []func(context.Context) error{c.found, c.follower.read} {
		if err := insist(ctx, c.o.Clock, step); err != nil {
			return err
		}
	}
	if id := c.Image().ClusterID; c.o.ClusterID != "" && id != c.o.ClusterID {
		return fmt.Errorf("metadata in %s belongs to cluster %s, not to %s", c.o.where(), id, c.o.ClusterID)
	}
	return insist(ctx, c.o.Clock, c.checkKey)
}

// found writes the format and the cluster id into an empty store, and refuses one
// of another format.
func (c *Controller) found(ctx context.Context) error {
	id := c.o.ClusterID
	if id == "" {
		drawn, err := metadata.NewTopicID(c.o.Rand) // the same kind of id, printed the same way
		if err != nil {
			return fmt.Errorf("draw cluster id: %w", err)
		}
		id = drawn.String()
	}
	resp, err := c.once(ctx, keyFormat,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(keyFormat), "=", 0), clientv3.Compare(clientv3.CreateRevision(keyRestoring), "=", 0)},
		[]clientv3.Op{clientv3.OpPut(keyFormat, strconv.Itoa(formatVersion)), clientv3.OpPut(keyCluster, id)},
		[]clientv3.Op{clientv3.OpGet(keyFormat), clientv3.OpGet(keyRestoring)})
	if err != nil {
		return err
	}
	if resp.Succeeded {
		c.o.Logger.Info("new cluster", "cluster_id", id)
		return nil
	}
	kvs := resp.Responses[0].GetResponseRange().Kvs
	if len(kvs) == 0 && len(resp.Responses[1].GetResponseRange().Kvs) > 0 {
		return fmt.Errorf("metadata in %s: a restore was interrupted: restore the same backup again", c.o.where())
	}
	if len(kvs) == 0 || string(kvs[0].Value) != strconv.Itoa(formatVersion) {
		return fmt.Errorf("metadata in %s: %w: its format is not %d", c.o.where(), errBadRecord, formatVersion)
	}
	return nil
}

// once writes what is written only once in the life of a store, or reads. A store that
// has key is only read: a full one takes no transaction that could put something, and a
// node has to be able to start all the same.
func (c *Controller) once(ctx context.Context, key string, absent []clientv3.Cmp, put, read []clientv3.Op) (*clientv3.TxnResponse, error) {
	resp, err := c.etcd.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "!=", 0)).Then(read...).Commit()
	switch {
	case err == nil && resp.Succeeded:
		resp.Succeeded = false // nothing was written
	case err == nil:
		resp, err = c.etcd.client.Txn(ctx).If(absent...).Then(put...).Else(read...).Commit()
	}
	if err != nil {
		return nil, fmt.Errorf("read metadata: %w", err)
	}
	return resp, nil
}

// checkKey refuses a node whose secret is not the one that the cluster has, where no
// handshake told so already. The first node that has a secret says which it is; one
// without a secret never had to be told from others.
func (c *Controller) checkKey(ctx context.Context) error {
	if c.o.Secret == "" {
		return nil
	}
	mine := c.codec.seal.fingerprint
	resp, err := c.once(ctx, keySecret,
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(keySecret), "=", 0)},
		[]clientv3.Op{clientv3.OpPut(keySecret, mine)},
		[]clientv3.Op{clientv3.OpGet(keySecret)})
	if err != nil {
		return err
	}
	if resp.Succeeded {
		return nil
	}
	if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) == 0 || string(kvs[0].Value) != mine {
		return fmt.Errorf("cluster.secret: is not the one of the cluster whose metadata is in %s", c.o.where())
	}
	return nil
}

// where says where the metadata is, for messages.
func (o *Options) where() string {
	switch {
	case o.External != nil:
		return fmt.Sprint(o.External.Endpoints)
	case o.BrokerOnly:
		return fmt.Sprint(o.controllers())
	}
	return o.Dir
}

// Close gives the office up, ends the watchers' calls and stops etcd. Commands
// under way answer ErrClosed.
func (c *Controller) Close() error {
	c.closeOnce.Do(func() {
		c.cancel()
		c.wg.Wait()
		if c.calls != nil {
			c.calls.Stop()
			c.callsWG.Wait()
		}
		if c.nodes != nil {
			c.nodes.close()
		}
		if c.etcd != nil {
			c.closeErr = c.etcd.close()
		}
		if c.net != nil {
			c.closeErr = errors.Join(c.closeErr, c.net.close())
		}
	})
	return c.closeErr
}

// Done is closed when the metadata store in this process has stopped by itself. The
// node cannot go on then.
func (c *Controller) Done() <-chan struct{} { return c.etcd.stopped() }

// Image is the latest image.
func (c *Controller) Image() *metadata.Image { return c.follower.image() }

// Watch calls fn with every new image: first with nil and the current one, then
// with the one that fn saw last and a newer one. Calls come one after the other
// from one goroutine that all watchers share, in the order in which they
// registered; images may be skipped while calls take long. fn may start commands
// but must not wait for them if it wants to see their outcome. After cancel has
// returned fn is not running and is not called again; fn itself must not call it.
func (c *Controller) Watch(fn func(prev, next *metadata.Image)) (cancel func()) {
	return c.dispatch.watch(fn)
}

// WaitWatchers returns when every watcher has been shown the image that is current
// now, or a later one. Not to be called from a watcher.
func (c *Controller) WaitWatchers(ctx context.Context) error {
	return c.dispatch.wait(ctx, c.Image().Revision)
}

// Leading reports whether this node is the active controller, as far as it knows.
func (c *Controller) Leading() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.leading
}

func (c *Controller) setLeading(leading bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.leading = leading
	close(c.mu.changed)
	c.mu.changed = make(chan struct{})
}

// Active is the node that holds the office, as far as this one knows, and the
// address of its controller listener, which is empty if it has none. False: none is
// known.
func (c *Controller) Active() (node int32, addr string, ok bool) {
	if c.Leading() {
		return c.o.NodeID, c.o.Advertised, true
	}
	standing, _ := c.follower.office()
	holder, ok := standing.holder()
	if !ok || holder.node == c.o.NodeID && !c.o.BrokerOnly { // it does not know yet, or not any more
		return -1, "", false
	}
	return holder.node, holder.addr, true
}

// waitActive waits until commands are taken, here or elsewhere.
func (c *Controller) waitActive(ctx context.Context) error {
	for {
		changed := c.changed()
		if _, _, ok := c.Active(); ok {
			return nil
		}
		select {
		case <-changed.office:
		case <-changed.store:
		case <-c.etcd.stopped():
			return errors.New("etcd stopped")
		case <-ctx.Done():
			return fmt.Errorf("no controller was elected: %w", ctx.Err())
		}
	}
}

// run is the controller's goroutine: it holds the office and carries out requests,
// one batch after the other.
func (c *Controller) run() {
	var (
		t    *term
		lost <-chan struct{}
		wg   sync.WaitGroup
	)
	defer wg.Wait()
	alarm := c.o.Clock.NewTimer(time.Hour)
	defer alarm.Stop()
	stand := func() {
		t, lost = nil, nil
		wg.Go(c.stand)
	}
	stand()
	over := func(err error) {
		if c.stopCtx.Err() != nil {
			return
		}
		c.setLeading(false)
		c.o.Logger.Warn("controller gives the office up", "term", t.rev, "error", err)
		t.resign()
		stand()
	}
	for {
		select {
		case t = <-c.terms:
			if err := c.take(t); err != nil {
				c.o.Logger.Error("could not take the controller's office", "error", err)
				t.resign()
				stand()
				continue
			}
			lost = t.session.Done()
			c.sessions.begin(c.o.Clock.Now(), c.Image(), c.lately())
			alarm.Reset(0)
			c.setLeading(true)
			c.o.Logger.Info("controller elected", "node", c.o.NodeID, "term", t.rev, "revision", c.Image().Revision)
		case <-lost:
			c.setLeading(false)
			c.o.Logger.Warn("controller's session ended; standing again", "term", t.rev)
			t.resign()
			stand()
		case r := <-c.requests:
			batch := c.gather(r)
			if t == nil {
				answerAll(batch, ErrNotController)
				continue
			}
			if err := c.carryOut(t, batch); err != nil {
				over(err)
			}
		case l := <-c.lost:
			if t != nil {
				c.sessions.lose(c.o.Clock.Now(), l)
				alarm.Reset(c.sessions.nextDeadline().Sub(c.o.Clock.Now()))
			}
		case <-alarm.C():
			if t == nil {
				continue // begin sets it again
			}
			wait, err := c.tick(t)
			if err != nil {
				over(err)
				continue
			}
			alarm.Reset(wait)
		case <-c.stopCtx.Done():
			if t != nil {
				c.setLeading(false)
				t.resign()
			}
			c.drain()
			return
		}
	}
}

// stand campaigns until it wins, and hands the term over.
func (c *Controller) stand() {
	for c.stopCtx.Err() == nil {
		t, err := campaign(c.stopCtx, c.etcd, c.o, c.meters)
		if err == nil {
			select {
			case c.terms <- t:
			case <-c.stopCtx.Done():
				t.resign()
			}
			return
		}
		if c.stopCtx.Err() == nil {
			c.o.Logger.Warn("controller election failed; trying again", "error", err)
			pause(c.stopCtx, c.o.Clock, 100*time.Millisecond)
		}
	}
}

// take begins a term: the image must show all that earlier terms wrote, and what a
// controller left half done is removed before it can be mistaken for something.
func (c *Controller) take(t *term) error {
	if _, err := c.settle(t); err != nil {
		return err
	}
	if err := c.sweep(t); err != nil {
		return err
	}
	return c.reseal(t)
}

// settle waits until the image shows the end of the chain.
func (c *Controller) settle(t *term) (*metadata.Image, error) {
	if err := t.syncChain(c.stopCtx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.stopCtx, c.o.RequestTimeout)
	defer cancel()
	return c.follower.wait(ctx, t.chain)
}

// sweep deletes what an interrupted command left behind.
func (c *Controller) sweep(t *term) error {
	orphans := c.follower.orphans()
	if len(orphans) == 0 {
		return nil
	}
	c.o.Logger.Info("removing what an interrupted command left behind", "keys", len(orphans))
	return c.write(t, orphans)
}

// reseal seals anew what opened with the key of a time when this node was alone: the
// others have the secret only.
func (c *Controller) reseal(t *term) error {
	if !c.codec.seal.stale.Load() {
		return nil
	}
	var changes []Change
	for _, m := range c.Image().Mirrors() {
		changes = append(changes, putMirror{m})
	}
	for _, cred := range c.Image().ScramCredentials() {
		if len(cred.StoredKey) > 0 { // it opened
			changes = append(changes, putScram{cred})
		}
	}
	c.o.Logger.Info("stored secrets are sealed with cluster.secret from now on", "records", len(changes))
	if err := c.write(t, changes); err != nil {
		return err
	}
	c.codec.seal.stale.Store(false)
	return nil
}

// write commits changes of the controller's own, and waits until the image shows them.
func (c *Controller) write(t *term, changes []Change) error {
	groups, err := c.codec.groups(changes)
	if err != nil {
		return err
	}
	p := &pack{most: c.etcd.txnOps() - 1}
	for _, g := range groups {
		p.add(g)
	}
	if len(p.txns) == 0 {
		return nil
	}
	_, revision, err := c.commit(t, p)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.stopCtx, c.o.RequestTimeout)
	defer cancel()
	_, err = c.follower.wait(ctx, revision)
	return err
}
