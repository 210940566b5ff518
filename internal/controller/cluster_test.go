package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

const testSecret = "a secret that three nodes share"

// testCluster is several controllers in this process, each with a directory and a
// port of its own.
type testCluster struct {
	t      *testing.T
	dir    string
	voters []Voter
	nodes  map[int32]*Controller
}

func newTestCluster(t *testing.T, n int) *testCluster {
	w := &testCluster{t: t, dir: t.TempDir(), nodes: make(map[int32]*Controller)}
	for i := range n {
		w.voters = append(w.voters, Voter{int32(i + 1), freeAddr(t)})
	}
	t.Cleanup(func() {
		for _, id := range w.ids() {
			w.stop(id)
		}
	})
	return w
}

// freeAddr is a port that was free a moment ago: voters have to be named before
// they listen.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (w *testCluster) options(id int32) Options {
	o := testOptions(w.t, fmt.Sprintf("%s/%d", w.dir, id))
	o.NodeID, o.Voters, o.Secret = id, w.voters, testSecret
	o.ElectionTTL, o.Tick = 2*time.Second, 50*time.Millisecond
	for _, v := range w.voters {
		if v.ID == id {
			o.Listen, o.Advertised = v.Addr, v.Addr
		}
	}
	return o
}

func (w *testCluster) ids() []int32 {
	var ids []int32
	for id := range w.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// start opens nodes, all at once, because none is done before a majority is there.
func (w *testCluster) start(options ...Options) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, o := range options {
		wg.Go(func() {
			c, err := Open(ctx, o)
			if err != nil {
				w.t.Errorf("node %d: %v", o.NodeID, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			w.nodes[o.NodeID] = c
		})
	}
	wg.Wait()
	if w.t.Failed() {
		w.t.FailNow()
	}
}

func (w *testCluster) startAll() {
	w.t.Helper()
	var all []Options
	for _, v := range w.voters {
		all = append(all, w.options(v.ID))
	}
	w.start(all...)
}

func (w *testCluster) stop(id int32) {
	w.t.Helper()
	c := w.nodes[id]
	delete(w.nodes, id)
	if err := c.Close(); err != nil {
		w.t.Errorf("node %d: %v", id, err)
	}
}

// leader is the node that holds the office, and one that does not.
func (w *testCluster) leader() (active, other *Controller) {
	w.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) { // an election is under way
		active, other = nil, nil
		for _, id := range w.ids() {
			if c := w.nodes[id]; c.Leading() {
				active = c
			} else {
				other = c
			}
		}
		if active != nil {
			return active, other
		}
	}
	w.t.Fatal("nobody holds the office")
	return nil, nil
}

func (w *testCluster) broker(c *Controller, id int32) (epoch int64) {
	w.t.Helper()
	epoch, err := c.RegisterBroker(w.t.Context(), RegisterBroker{ID: id, Incarnation: [16]byte{byte(id)}, PreviousEpoch: -1, Restored: c.Image().Restored})
	if err == nil {
		_, err = c.Heartbeat(w.t.Context(), Heartbeat{Broker: id, Epoch: epoch, Revision: c.Image().Revision})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return epoch
}

// TestCluster founds a cluster of three and asks a node that is not active for
// everything that travels back and forth: outcomes, changes, refusals, and commands
// that are only decided. All nodes show the same.
func TestCluster(t *testing.T) {
	w := newTestCluster(t, 3)
	w.startAll()
	active, other := w.leader()
	if active.Image().ClusterID == "" || other.Image().ClusterID != active.Image().ClusterID {
		t.Fatalf("cluster ids %q and %q", active.Image().ClusterID, other.Image().ClusterID)
	}
	for _, c := range w.nodes {
		if node, addr, ok := c.Active(); !ok || node != active.o.NodeID || addr != active.o.Advertised {
			t.Errorf("node %d takes %d at %s for active, %v; it is %d", c.o.NodeID, node, addr, ok, active.o.NodeID)
		}
	}
	w.broker(other, 1)
	topic := create(t, other, "orders", 300)
	if len(topic.Partitions) != 300 {
		t.Errorf("%d partitions in the answer", len(topic.Partitions))
	}
	for i := range 3 {
		if first, err := other.AllocateProducerIDs(t.Context(), 1000); err != nil || first != int64(i)*1000 {
			t.Errorf("producer ids from %d, %v", first, err)
		}
	}
	again := other.CreateTopics(t.Context(), []CreateTopic{{Name: "orders"}, {Name: "a/b"}, {Name: "dry"}}, true)
	if !errors.Is(again[0].Err, ErrTopicExists) || !strings.Contains(again[0].Err.Error(), "orders") || !errors.Is(again[1].Err, ErrInvalidTopic) || again[2].Err != nil {
		t.Errorf("refusals of another node: %v, %v, %v", again[0].Err, again[1].Err, again[2].Err)
	}
	if errors.Is(again[0].Err, ErrNotController) {
		t.Errorf("%v is an ErrNotController", again[0].Err)
	}
	if err := other.DeleteMirror(t.Context(), "none", -1); !errors.Is(err, ErrUnknownMirror) {
		t.Errorf("%v", err)
	}
	if err := other.CreateMirror(t.Context(), "m", map[string]string{"bootstrap.servers": "a:1", "sasl.jaas.config": "canary-1"}); err != nil {
		t.Error(err)
	}
	if err := other.WaitWatchers(t.Context()); err != nil {
		t.Error(err)
	}
	for _, c := range w.nodes {
		img, err := c.follower.wait(t.Context(), other.Image().Revision)
		if err != nil {
			t.Fatal(err)
		}
		if img.Topic("dry") != nil || img.Topic("orders") == nil || img.Mirror("m").Config("sasl.jaas.config") != "canary-1" {
			t.Errorf("node %d shows\n%s", c.o.NodeID, show(img))
		}
	}
}

// TestClusterFailover stops the active controller under callers on another node.
// None of their commands fails, none is lost, and the stopped one comes back.
func TestClusterFailover(t *testing.T) {
	w := newTestCluster(t, 3)
	w.startAll()
	active, other := w.leader()
	w.broker(other, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	made := make([]int, 4)
	for i := range made {
		wg.Go(func() {
			for ; ctx.Err() == nil; made[i]++ {
				r := other.CreateTopics(t.Context(), []CreateTopic{{Name: fmt.Sprintf("t%d-%d", i, made[i])}}, false)
				if r[0].Err != nil || r[0].Topic == nil {
					t.Errorf("%+v", r[0])
					return
				}
			}
		})
	}
	id := active.o.NodeID
	began := time.Now()
	w.stop(id)
	next, _ := w.leader()
	t.Logf("node %d follows node %d after %v", next.o.NodeID, id, time.Since(began))
	w.start(w.options(id))
	cancel()
	wg.Wait()
	back := w.nodes[id]
	if _, err := back.follower.wait(t.Context(), other.Image().Revision); err != nil {
		t.Fatal(err)
	}
	for i, n := range made {
		t.Logf("caller %d: %d topics", i, n)
		for j := range n {
			if back.Image().Topic(fmt.Sprintf("t%d-%d", i, j)) == nil {
				t.Errorf("topic %d of caller %d is lost", j, i)
			}
		}
	}
}

// TestClusterSecret starts a node with another secret beside a cluster: it is told
// so, and changes nothing.
func TestClusterSecret(t *testing.T) {
	w := newTestCluster(t, 1)
	w.startAll()
	o := w.options(2)
	o.Listen = freeAddr(t)
	o.Voters, o.Bootstrap, o.Secret = nil, []string{w.voters[0].Addr}, "another secret, as long"
	o.Advertised = o.Listen
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, brokerOnly := range []bool{false, true} {
		o.BrokerOnly, o.RequestTimeout = brokerOnly, 2*time.Second
		if _, err := Open(ctx, o); err == nil || !strings.Contains(err.Error(), "cluster.secret") {
			t.Errorf("a wrong secret, broker only %v: %v", brokerOnly, err)
		}
	}
	o.Secret = ""
	if _, err := Open(ctx, o); err == nil || !strings.Contains(err.Error(), "cluster.secret") {
		t.Errorf("no secret: %v", err)
	}
	w.stop(1)
	o = w.options(1)
	o.Secret = "another secret, as long"
	if _, err := Open(ctx, o); err == nil || !strings.Contains(err.Error(), "cluster.secret") {
		t.Errorf("a changed secret: %v", err)
	}
	w.startAll()
}

// TestClusterSessions lets a broker send heartbeats through a node that is not
// active. It is alive as long as it does, and is missed soon after its node is gone,
// because the connection broke.
func TestClusterSessions(t *testing.T) {
	w := newTestCluster(t, 3)
	var all []Options
	for _, v := range w.voters {
		o := w.options(v.ID)
		o.SessionTimeout = 20 * time.Second
		all = append(all, o)
	}
	w.start(all...)
	active, other := w.leader()
	id := other.o.NodeID
	stays := w.broker(active, active.o.NodeID)
	epoch := w.broker(other, id)
	if b := active.Image().Broker(id); b == nil || b.Fenced {
		t.Fatalf("after its first heartbeat: %+v", b)
	}
	if _, err := other.Heartbeat(t.Context(), Heartbeat{Broker: id, Epoch: epoch - 1}); !errors.Is(err, ErrStaleBrokerEpoch) {
		t.Errorf("a heartbeat of an older registration: %v", err)
	}
	if _, err := other.Heartbeat(t.Context(), Heartbeat{Broker: 77, Epoch: 1}); !errors.Is(err, ErrUnknownBroker) {
		t.Errorf("a heartbeat of a stranger: %v", err)
	}
	r, err := other.Heartbeat(t.Context(), Heartbeat{Broker: id, Epoch: epoch, Revision: other.Image().Revision})
	if err != nil || r.Fenced || !r.CaughtUp {
		t.Errorf("%+v, %v", r, err)
	}
	began := time.Now()
	w.stop(id)
	for !active.Image().Broker(id).Fenced {
		if time.Since(began) > 15*time.Second { // its session would last longer
			t.Fatal("a broker whose node is gone is taken for alive")
		}
		time.Sleep(10 * time.Millisecond) // the session ends by the clock
	}
	t.Logf("fenced after %v", time.Since(began))
	if b := active.Image().Broker(active.o.NodeID); b.Fenced || b.Epoch != stays {
		t.Errorf("the other one: %+v", b)
	}
}

// TestClusterGrows begins with a node alone, which has a key file and no secret, and
// makes it a cluster of three: what the file had sealed opens on all of them, the new
// ones vote when they have caught up, and one of them is replaced.
func TestClusterGrows(t *testing.T) {
	w := newTestCluster(t, 3)
	alone := w.options(1)
	alone.Voters, alone.Listen, alone.Advertised, alone.Secret = nil, "", "", ""
	w.start(alone)
	w.broker(w.nodes[1], 1)
	create(t, w.nodes[1], "orders", 3)
	const canary = "canary-grows"
	if err := w.nodes[1].CreateMirror(t.Context(), "m", map[string]string{"bootstrap.servers": "a:1", "sasl.jaas.config": canary}); err != nil {
		t.Fatal(err)
	}
	cluster := w.nodes[1].Image().ClusterID
	w.stop(1)

	w.startAll() // node 1 has a cluster, the others are new to it
	admin, err := OpenAdmin(w.options(1))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	voters := func() int {
		n := 0
		members, err := admin.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range members {
			if !m.Learner {
				n++
			}
		}
		return n
	}
	await := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(40 * time.Second); voters() != want; time.Sleep(100 * time.Millisecond) { // etcd wants a member to be well for some seconds
			if time.Now().After(deadline) {
				t.Fatalf("%d controllers vote, not %d", voters(), want)
			}
		}
	}
	await(3)
	for id, c := range w.nodes {
		if _, err := c.follower.wait(t.Context(), w.nodes[1].Image().Revision); err != nil {
			t.Fatal(err)
		}
		img := c.Image()
		if img.ClusterID != cluster || img.Topic("orders") == nil || img.Mirror("m").Config("sasl.jaas.config") != canary {
			t.Errorf("node %d: cluster %s, topic %v, mirror %+v", id, img.ClusterID, img.Topic("orders"), img.Mirror("m"))
		}
	}

	// Node 3 loses its directory: it may not vote again without its memory.
	w.stop(3)
	lost := w.options(3)
	if err := os.RemoveAll(lost.Dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := Open(ctx, lost); err == nil || !strings.Contains(err.Error(), "remove 3") {
		t.Fatalf("a voter without its memory: %v", err)
	}
	if err := admin.Remove(t.Context(), "3"); err != nil {
		t.Fatal(err)
	}
	if err := admin.Remove(t.Context(), "3"); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("removed twice: %v", err)
	}
	w.start(w.options(3))
	await(3)

	// One that was removed and is started again, by mistake, says what it is.
	w.stop(3)
	if err := admin.Remove(t.Context(), "3"); err != nil {
		t.Fatal(err)
	}
	if c, err := Open(ctx, w.options(3)); err == nil || !strings.Contains(err.Error(), "was removed from the controllers") {
		if err == nil {
			c.Close()
		}
		t.Errorf("a controller that was removed: %v", err)
	}
}

// relay passes connections on until it is cut: then it takes them and passes nothing,
// as a network does that swallows packets.
type relay struct {
	l   net.Listener
	to  string
	wg  sync.WaitGroup
	mu  sync.Mutex
	cut bool
	all []net.Conn
}

func newRelay(t *testing.T, addr, to string) *relay {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{l: l, to: to}
	r.wg.Go(r.accept)
	t.Cleanup(func() {
		l.Close()
		r.sever()
		r.wg.Wait()
	})
	return r
}

// startRelayed starts all nodes, each behind a relay.
func (w *testCluster) startRelayed() map[int32]*relay {
	w.t.Helper()
	relays := make(map[int32]*relay)
	var all []Options
	for _, v := range w.voters {
		o := w.options(v.ID)
		o.Listen = freeAddr(w.t)
		relays[v.ID] = newRelay(w.t, v.Addr, o.Listen)
		all = append(all, o)
	}
	w.start(all...)
	return relays
}

func (r *relay) accept() {
	for {
		in, err := r.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil {
			in.Close()
			continue
		}
		r.mu.Lock()
		r.all = append(r.all, in, out)
		r.mu.Unlock()
		r.wg.Go(func() { r.pass(in, out) })
		r.wg.Go(func() { r.pass(out, in) })
	}
}

func (r *relay) pass(from, to net.Conn) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		r.mu.Lock()
		cut := r.cut
		r.mu.Unlock()
		if err != nil {
			if !cut {
				to.Close()
			}
			return
		}
		if cut {
			continue
		}
		if _, err := to.Write(b[:n]); err != nil {
			from.Close()
			return
		}
	}
}

func (r *relay) set(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
}

// sever ends the connections that there are.
func (r *relay) sever() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.all {
		c.Close()
	}
	r.all = nil
}

// TestClusterCut swallows everything that the active controller's node is to be asked
// and to answer. The others elect another one and go on. What the old one, which
// thinks for a while that it is in office, had sent arrives late and is refused; when
// the network is back, it shows what the new one did.
func TestClusterCut(t *testing.T) {
	w := newTestCluster(t, 3)
	relays := w.startRelayed()
	old, other := w.leader()
	w.broker(old, 1)
	create(t, old, "before", 1)
	if _, err := other.follower.wait(t.Context(), old.Image().Revision); err != nil {
		t.Fatal(err)
	}
	standing, _ := old.follower.office()
	holder, _ := standing.holder()
	late := &term{client: other.etcd.client, key: holder.key, rev: holder.created, timeout: time.Minute, clock: clock.System(), meters: other.meters}

	cut := relays[old.o.NodeID]
	cut.set(true)
	began := time.Now()
	short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	lost := old.CreateTopics(short, []CreateTopic{{Name: "lost"}}, false)
	t.Logf("after %v the old controller answers %v", time.Since(began), lost[0].Err)
	for node, _, _ := other.Active(); node == old.o.NodeID || node < 0; node, _, _ = other.Active() {
		if time.Since(began) > 30*time.Second {
			t.Fatal("nobody follows")
		}
		time.Sleep(10 * time.Millisecond) // a lease ends by the clock
	}
	for asked := time.Now(); !slices.Contains(other.lately(), loss{broker: old.o.NodeID}); {
		if time.Since(asked) > 5*time.Second {
			t.Fatal("the old controller does not answer, and its broker gets a whole session")
		}
		time.Sleep(10 * time.Millisecond) // a question times out by the clock
	}
	create(t, other, "made", 1)
	t.Logf("the others go on after %v", time.Since(began))
	if err := late.syncChain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := late.commit(t.Context(), []write{{keyProducerIDs, []byte("7")}}); !errors.Is(err, errDeposed) {
		t.Errorf("a late write of the old controller: %v", err)
	}

	cut.set(false)
	cut.sever()
	for _, c := range w.nodes {
		img, err := c.follower.wait(t.Context(), other.Image().Revision)
		if err != nil {
			t.Fatal(err)
		}
		if img.Topic("made") == nil || img.NextProducerID != 0 {
			t.Errorf("node %d shows\n%s", c.o.NodeID, show(img))
		}
	}
	create(t, old, "after", 1)
}

// TestGone: who finds that a node is gone may be in office already, because another node
// found it first and ended the old office. It once kept that for its next term, and the
// broker had a whole session more: three seconds of partitions without a leader.
func TestGone(t *testing.T) {
	o := testOptions(t, t.TempDir())
	o.SessionTimeout = time.Hour
	c := open(t, o)
	register(t, c, 1)
	here, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	if c.isGone(t.Context(), 1, here.Addr().String()) || c.Image().Broker(1).Fenced {
		t.Fatal("it is gone while somebody listens")
	}
	if !c.isGone(t.Context(), 1, freeAddr(t)) {
		t.Fatal("it is not gone where nobody listens")
	}
	for deadline := time.Now().Add(20 * time.Second); !c.Image().Broker(1).Fenced; time.Sleep(time.Millisecond) { // the controller writes
		if time.Now().After(deadline) {
			t.Fatalf("its broker is not fenced\n%s", show(c.Image()))
		}
	}
}

// TestClusterFollower has a node without metadata of its own follow a controller,
// give commands, and go on after the controller was away.
func TestClusterFollower(t *testing.T) {
	w := newTestCluster(t, 1)
	w.startAll()
	o := w.options(4)
	o.Dir, o.Voters, o.Bootstrap, o.BrokerOnly = "", nil, []string{w.voters[0].Addr}, true
	w.start(o)
	follower := w.nodes[4]
	w.broker(follower, 4)
	if topic := create(t, follower, "orders", 3); topic.Partitions[0].Leader != 4 {
		t.Errorf("%+v", topic.Partitions[0])
	}
	if follower.Leading() || follower.Image().Broker(4) == nil {
		t.Errorf("leading %v\n%s", follower.Leading(), show(follower.Image()))
	}
	w.stop(1)
	w.startAll()
	create(t, follower, "again", 1)
	if w.nodes[1].Image().Topic("again") == nil {
		t.Error("the controller does not show it")
	}
}
