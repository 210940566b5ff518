package controller

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/goleak"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimDir); dir != "" {
		victim(dir)
		return
	}
	if dir := os.Getenv(externalDir); dir != "" {
		external(dir, os.Getenv(externalAddr))
		return
	}
	goleak.VerifyTestMain(m)
}

// testLog shows the log in the test's output. etcd may still speak while a failed
// test is being torn down, hence the lock.
type testLog struct {
	mu   sync.Mutex
	t    *testing.T
	done bool
}

func (l *testLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.done {
		l.t.Log(strings.TrimSuffix(string(p), "\n"))
	}
	return len(p), nil
}

func testOptions(t *testing.T, dir string) Options {
	l := &testLog{t: t}
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.done = true
	})
	return Options{
		Dir: filepath.Join(dir, "metadata"), NodeID: 1, ElectionTTL: time.Second,
		SessionTimeout: time.Hour, // these brokers send one heartbeat and no more
		Logger:         slog.New(slog.NewTextHandler(l, nil)),
	}
}

func open(t *testing.T, o Options) *Controller {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func closeNow(t *testing.T, c *Controller) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

func register(t *testing.T, c *Controller, incarnation byte) int64 {
	t.Helper()
	epoch, err := c.RegisterBroker(t.Context(), RegisterBroker{ID: 1, Incarnation: [16]byte{incarnation},
		Endpoints: []metadata.Endpoint{{Name: "PLAINTEXT", Host: "localhost", Port: 9092, Protocol: "PLAINTEXT"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Heartbeat(t.Context(), Heartbeat{Broker: 1, Epoch: epoch, Revision: c.Image().Revision}); err != nil {
		t.Fatal(err)
	}
	return epoch
}

func create(t *testing.T, c *Controller, name string, partitions int32) *metadata.Topic {
	t.Helper()
	r := c.CreateTopics(t.Context(), []CreateTopic{{Name: name, Partitions: partitions}}, false)
	if r[0].Err != nil {
		t.Fatal(r[0].Err)
	}
	return r[0].Topic
}

// TestRestart closes a controller and opens it again: everything is there, and no
// secret ever stood in a file in clear.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	c := open(t, testOptions(t, dir))
	cluster := c.Image().ClusterID
	if len(cluster) != 22 {
		t.Errorf("cluster id %q", cluster)
	}
	first := register(t, c, 1)
	create(t, c, "orders", 300) // more than one transaction
	const canary = "canary-9c41-password"
	if err := c.CreateMirror(t.Context(), "m", map[string]string{
		"bootstrap.servers": "a:9092", "security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": canary}); err != nil {
		t.Fatal(err)
	}
	r, err := c.StartMirrorTopics(t.Context(), StartMirrorTopics{Mirror: "m", Validation: -1, Include: []string{"o.*"},
		Topics: []MirrorTopic{{Name: "orders", ID: c.Image().Topic("orders").ID, Partitions: 300}}})
	if err != nil || r[0].Err != nil || r[0].Topic.MirrorRevision == 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	pid, err := c.AllocateProducerIDs(t.Context(), 1000)
	if err != nil || pid != 0 {
		t.Fatalf("%d, %v", pid, err)
	}
	if dry := c.CreateTopics(t.Context(), []CreateTopic{{Name: "dry"}, {Name: "orders"}}, true); dry[0].Err != nil || !errors.Is(dry[1].Err, ErrTopicExists) {
		t.Errorf("validate only: %+v", dry)
	}
	before := show(c.Image())

	if _, err := Open(t.Context(), testOptions(t, dir)); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second one on the same directory: %v", err)
	}
	closeNow(t, c)
	if err := c.CreateMirror(t.Context(), "late", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	findInFiles(t, dir, canary)

	c = open(t, testOptions(t, dir))
	if got := show(c.Image()); afterFirstLine(got) != afterFirstLine(before) {
		t.Errorf("before the restart\n%s\nafter it\n%s", before, got)
	}
	if c.Image().ClusterID != cluster || c.Image().Mirror("m").Config("sasl.jaas.config") != canary {
		t.Error("the cluster id or the secret is gone")
	}
	if pid, err := c.AllocateProducerIDs(t.Context(), 1); err != nil || pid != 1000 {
		t.Errorf("producer ids begin anew: %d, %v", pid, err)
	}
	if c.Image().Topic("dry") != nil {
		t.Error("validate only created a topic")
	}
	if second := register(t, c, 2); second <= first {
		t.Errorf("broker epoch %d after %d", second, first)
	}
	for _, p := range c.Image().Topic("orders").Partitions {
		// One for the broker that went, one for the broker that came.
		if p.LeaderEpoch != 2 || p.Leader != 1 {
			t.Fatalf("partition %d is in leader epoch %d after a restart", p.Index, p.LeaderEpoch)
		}
	}
	closeNow(t, c)

	o := testOptions(t, dir)
	o.ClusterID = "another"
	if _, err := Open(t.Context(), o); err == nil || !strings.Contains(err.Error(), cluster) {
		t.Errorf("opened for another cluster: %v", err)
	}
}

// afterFirstLine drops the revision, which a new term moves.
func afterFirstLine(s string) string {
	_, rest, _ := strings.Cut(s, "\n")
	return rest
}

func findInFiles(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), text) {
			t.Errorf("%s holds %q", path, text)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestDeposed takes the office away from a controller, without telling it, and
// gives it to a rival. Nothing that the deposed one tries is written; when the
// rival leaves, it goes on.
//
// MIR-341: so no state goes backwards.
func TestDeposed(t *testing.T) {
	c := open(t, testOptions(t, t.TempDir()))
	register(t, c, 1)
	create(t, c, "before", 1)
	client := c.etcd.client
	rival, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	if err != nil {
		t.Fatal(err)
	}
	election := concurrency.NewElection(rival, keyElection)
	won := make(chan error, 1)
	go func() { won <- election.Campaign(t.Context(), "node-2") }()

	keys, err := client.Get(t.Context(), keyElection+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range keys.Kvs {
		if parseContender(kv).node == 1 {
			if _, err := client.Revoke(t.Context(), clientv3.LeaseID(kv.Lease)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := <-won; err != nil {
		t.Fatal(err)
	}
	at, err := client.Get(t.Context(), keyChain)
	if err != nil {
		t.Fatal(err)
	}
	// Callers wait for a controller as long as their contexts allow.
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	for _, r := range c.CreateTopics(short, []CreateTopic{{Name: "one"}, {Name: "two"}}, false) {
		if !errors.Is(r.Err, ErrNotController) {
			t.Errorf("the deposed controller answers %+v", r)
		}
	}
	cancel()
	short, cancel = context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := c.CreateMirror(short, "m", map[string]string{"bootstrap.servers": "a:1"}); !errors.Is(err, ErrNotController) {
		t.Errorf("the deposed controller answers %v", err)
	}
	now, err := client.Get(t.Context(), keyRoot, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range now.Kvs {
		if !strings.HasPrefix(string(kv.Key), keyElection) && kv.ModRevision > at.Kvs[0].ModRevision {
			t.Errorf("the deposed controller wrote %s", kv.Key)
		}
	}

	if err := rival.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.waitActive(t.Context()); err != nil {
		t.Fatal(err)
	}
	create(t, c, "after", 1)
}

// TestUncertainWrite holds that a transaction whose fate was unknown cannot take
// effect after the next one, and that one which did take effect is taken into
// account by what is decided next.
func TestUncertainWrite(t *testing.T) {
	c := open(t, testOptions(t, t.TempDir()))
	register(t, c, 1)

	// The chain moved behind the controller's back.
	if _, err := c.etcd.client.Put(t.Context(), keyChain, "late"); err != nil {
		t.Fatal(err)
	}
	create(t, c, "orders", 200)

	// A copy of the term is the request that was sent and not heard of again.
	zombie := &term{client: c.etcd.client, timeout: time.Minute, clock: clock.System(), meters: c.meters}
	keys, err := c.etcd.client.Get(t.Context(), keyElection+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	zombie.key, zombie.rev = string(keys.Kvs[0].Key), keys.Kvs[0].CreateRevision
	if err := zombie.syncChain(t.Context()); err != nil {
		t.Fatal(err)
	}
	create(t, c, "next", 1)
	if _, err := zombie.commit(t.Context(), []write{{"lockstep/pids", []byte("7")}}); !errors.Is(err, errChain) {
		t.Errorf("a late transaction: %v", err)
	}
	if c.Image().NextProducerID != 0 {
		t.Error("it took effect")
	}
}

// TestSweep leaves behind what a controller leaves that dies between two
// transactions. The next one removes it, before a topic of the same id could find
// the old states.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	c := open(t, testOptions(t, dir))
	register(t, c, 1)
	create(t, c, "orders", 1)
	live, dead := c.Image().Topic("orders").ID, testID(9)
	state := &metadata.MirrorPartition{Mirror: "m", State: metadata.StateStopped, HasLME: true, LME: 3, LMO: 7}
	groups, err := c.codec.groups([]Change{
		putPartition{ID: live, Partition: &metadata.Partition{Index: 1, Replicas: []int32{1}}},
		putPartition{ID: dead, Partition: &metadata.Partition{Replicas: []int32{1}}},
		putState{dead, 0, state}, putState{dead, 1, state}, setAttachment{ID: dead, Value: "m.removed"},
	})
	if err != nil {
		t.Fatal(err)
	}
	left := 0
	for _, g := range groups {
		for _, w := range g {
			left++
			if _, err := c.etcd.client.Put(t.Context(), w.key, string(w.value)); err != nil {
				t.Fatal(err)
			}
		}
	}
	closeNow(t, c)
	c = open(t, testOptions(t, dir))
	all, err := c.etcd.client.Get(t.Context(), keyRoot, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range all.Kvs {
		key := string(kv.Key)
		if strings.Contains(key, dead.String()) || strings.HasSuffix(key, live.String()+"/1") {
			t.Errorf("%s is still there (%d were left)", key, left)
		}
	}
	if got := c.Image().Topic("orders"); len(got.Partitions) != 1 {
		t.Errorf("%+v", got)
	}
}

// TestCompactedWatch lets a follower fall behind compacted history. It reads
// everything anew and shows the same as one that was always there.
//
// MIR-344: what is read anew from compacted history is what was there.
func TestCompactedWatch(t *testing.T) {
	c := open(t, testOptions(t, t.TempDir()))
	register(t, c, 1)
	create(t, c, "stays", 2)
	create(t, c, "goes", 2)
	behind := newFollower(c.etcd.client, c.codec, c.o.Logger, clock.System(), c.meters)
	if err := behind.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := behind.image()

	c.DeleteTopics(t.Context(), []metadata.TopicID{c.Image().Topic("goes").ID})
	create(t, c, "comes", 2)
	want := c.Image()
	if _, err := c.etcd.client.Compact(t.Context(), want.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if err := behind.watch(t.Context()); !errors.Is(err, errCompacted) {
		t.Fatalf("a watch from compacted history: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { behind.run(ctx) })
	got, err := behind.wait(t.Context(), want.Revision)
	if err != nil {
		t.Fatal(err)
	}
	if show(got) != show(want) || behind.mu.rereads != 1 {
		t.Errorf("%d rereads; it shows\n%s\nwant\n%s", behind.mu.rereads, show(got), show(want))
	}
	if got.Topic("stays") != old.Topic("stays") {
		t.Error("what did not change is not shared with the image before")
	}

	// And it goes on from there.
	create(t, c, "later", 1)
	if got, err = behind.wait(t.Context(), c.Image().Revision); err != nil || got.Topic("later") == nil {
		t.Errorf("after the reread: %v, %v", got.Topic("later"), err)
	}
	cancel()
	wg.Wait()
}

// TestManyStates writes ten thousand partition states, and prints how long it took.
func TestManyStates(t *testing.T) {
	o := testOptions(t, t.TempDir())
	o.ElectionTTL = 30 * time.Second // a busy machine takes more than one second for parts of this; the office is not asked about
	c := open(t, o)
	register(t, c, 1)
	if err := c.CreateMirror(t.Context(), "m", map[string]string{"bootstrap.servers": "a:1"}); err != nil {
		t.Fatal(err)
	}
	start := StartMirrorTopics{Mirror: "m", Validation: -1}
	for i := range 20 {
		start.Topics = append(start.Topics, MirrorTopic{Name: fmt.Sprint("t", i), Partitions: 500})
	}
	began := time.Now()
	topics, err := c.StartMirrorTopics(t.Context(), start)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("20 topics of 500 partitions created in %v", time.Since(began))
	var writes []MirrorStateWrite
	for _, r := range topics {
		for _, p := range r.Topic.Partitions {
			writes = append(writes, MirrorStateWrite{Topic: r.Topic.ID, Partition: p.Index, State: metadata.StatePreparing, LeaderEpoch: p.LeaderEpoch})
		}
	}
	began = time.Now()
	for i, r := range c.WriteMirrorStates(t.Context(), "m", writes) {
		if r.Err != nil || r.StateEpoch != 1 {
			t.Fatalf("%+v: %+v", writes[i], r)
		}
	}
	t.Logf("%d states written in %v", len(writes), time.Since(began))

	// The same, fenced: every answer names the epoch to go on from.
	for _, r := range c.WriteMirrorStates(t.Context(), "m", writes[:3]) {
		if !errors.Is(r.Err, ErrFencedStateEpoch) || r.StateEpoch != 1 {
			t.Errorf("%+v", r)
		}
	}

	// One caller per partition, at once: they share transactions.
	began = time.Now()
	var wg sync.WaitGroup
	for _, w := range writes[:1000] {
		wg.Go(func() {
			w.State, w.StateEpoch = metadata.StateMirroring, 1
			if r := c.WriteMirrorStates(t.Context(), "m", []MirrorStateWrite{w}); r[0].Err != nil {
				t.Error(r[0].Err)
			}
		})
	}
	wg.Wait()
	t.Logf("1000 states written by as many callers in %v", time.Since(began))
	if errs := c.BumpLeaderEpochs(t.Context(), []Bump{{writes[0].Topic, 0, 10}, {writes[0].Topic, 0, 10}, {testID(1), 0, 1}}); errs[0] != nil || errs[1] != nil || !errors.Is(errs[2], ErrUnknownTopicID) {
		t.Errorf("%v", errs)
	}
	if p := c.Image().Partition(writes[0].Topic, 0); p.LeaderEpoch != 11 {
		t.Errorf("leader epoch %d", p.LeaderEpoch)
	}
}

// TestWatch holds the order of calls: nil first, no image twice, each from where the
// last one ended, the earlier watcher before the later one.
func TestWatch(t *testing.T) {
	c := open(t, testOptions(t, t.TempDir()))
	register(t, c, 1)
	var firstSeen, secondSeen *metadata.Image
	calls := 0
	cancelFirst := c.Watch(func(prev, next *metadata.Image) {
		if prev != firstSeen || next == prev {
			t.Errorf("called with %p, %p; the last image was %p", prev, next, firstSeen)
		}
		firstSeen = next
	})
	cancelSecond := c.Watch(func(prev, next *metadata.Image) {
		if prev != secondSeen || next != firstSeen {
			t.Errorf("the second watcher sees %p, the first saw %p", next, firstSeen)
		}
		secondSeen = next
		calls++
	})
	for i := range 20 {
		create(t, c, fmt.Sprint("t", i), 1)
	}
	if err := c.WaitWatchers(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancelSecond()
	cancelFirst() // returns when no call is under way, so that the fields can be read
	if firstSeen == nil || firstSeen.NumTopics() != 20 || secondSeen != firstSeen || calls == 0 {
		t.Errorf("%d calls; the last image has %d topics", calls, firstSeen.NumTopics())
	}
	create(t, c, "unseen", 1)
	if secondSeen != firstSeen || firstSeen.Topic("unseen") != nil {
		t.Error("called after cancel")
	}
}

// TestCloseUnderLoad closes while commands are under way: each gets an answer.
func TestCloseUnderLoad(t *testing.T) {
	c := open(t, testOptions(t, t.TempDir()))
	register(t, c, 1)
	var wg sync.WaitGroup
	started := make(chan struct{}, 8)
	for w := range 8 {
		wg.Go(func() {
			for i := 0; ; i++ {
				r := c.CreateTopics(context.Background(), []CreateTopic{{Name: fmt.Sprintf("t-%d-%d", w, i)}}, false)
				if i == 0 {
					started <- struct{}{}
				}
				if r[0].Err != nil {
					if !errors.Is(r[0].Err, ErrClosed) && !errors.Is(r[0].Err, ErrNotController) {
						t.Errorf("%v", r[0].Err)
					}
					return
				}
			}
		})
	}
	for range 8 {
		<-started
	}
	closeNow(t, c)
	wg.Wait()
}

const victimDir = "LOCKSTEP_TEST_VICTIM"

// victim creates topics until it is killed, and says which ones were acknowledged.
func victim(dir string) {
	ctx := context.Background()
	c, err := Open(ctx, Options{Dir: filepath.Join(dir, "metadata"), NodeID: 1, ElectionTTL: 10 * time.Minute})
	if err != nil {
		fmt.Println("error", err)
		return
	}
	epoch, err := c.RegisterBroker(ctx, RegisterBroker{ID: 1, Incarnation: [16]byte{byte(os.Getpid()), byte(os.Getpid() >> 8)}})
	if err == nil {
		_, err = c.Heartbeat(ctx, Heartbeat{Broker: 1, Epoch: epoch, Revision: c.Image().Revision})
	}
	if err != nil {
		fmt.Println("error", err)
		return
	}
	for i := c.Image().NumTopics(); ; i++ {
		name := fmt.Sprint("t", i)
		if r := c.CreateTopics(ctx, []CreateTopic{{Name: name, Partitions: 150}}, false); r[0].Err != nil {
			fmt.Println("error", r[0].Err)
			return
		}
		fmt.Println(name)
	}
}

// TestKill kills the process that holds the metadata, several times, without
// warning, in the middle of creations of two transactions each. What was
// acknowledged is there, nothing is there by half, and the office is taken again
// without waiting for the ten minutes of the dead one's lease.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	var acked []string
	for round := range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), victimDir+"="+dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; n < 5+round && lines.Scan(); n++ {
			if strings.HasPrefix(lines.Text(), "error") {
				t.Error(lines.Text())
			}
			acked = append(acked, lines.Text())
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // acknowledged before the blow
			acked = append(acked, lines.Text())
		}
		_ = cmd.Wait()
	}
	began := time.Now()
	c := open(t, testOptions(t, dir))
	t.Logf("open after the kill took %v", time.Since(began))
	for _, name := range acked {
		if topic := c.Image().Topic(name); topic == nil || len(topic.Partitions) != 150 {
			t.Errorf("%s was acknowledged and is lost", name)
		}
	}
	if len(c.follower.orphans()) != 0 {
		t.Error("fragments were not swept")
	}
	t.Logf("%d acknowledged, %d there", len(acked), c.Image().NumTopics())
}
