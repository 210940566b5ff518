package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// TestPlanAlarms: each member takes its own alarm back; that of another only if that one
// cannot.
func TestPlanAlarms(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	three := []memberInfo{{ID: 1, Node: 10}, {ID: 2, Node: 20}, {ID: 3, Node: 30}}
	const fresh, old = absentLimit - time.Second, absentLimit
	for name, c := range map[string]struct {
		raised map[uint64]time.Duration // for how long
		want   alarmPlan
	}{
		"none":                            {},
		"ours":                            {map[uint64]time.Duration{1: 0}, alarmPlan{own: true}},
		"another's":                       {map[uint64]time.Duration{2: fresh}, alarmPlan{}},
		"of one that is away":             {map[uint64]time.Duration{2: old}, alarmPlan{others: []uint64{2}}},
		"of one that was removed":         {map[uint64]time.Duration{7: 0}, alarmPlan{others: []uint64{7}}},
		"ours, others', of one removed":   {map[uint64]time.Duration{1: old, 3: old, 2: fresh, 7: 0}, alarmPlan{own: true, others: []uint64{3, 7}}},
		"of two that are away, and 1 not": {map[uint64]time.Duration{3: old, 2: old}, alarmPlan{others: []uint64{2, 3}}},
	} {
		raised := make(map[uint64]time.Time)
		for id, d := range c.raised {
			raised[id] = now.Add(-d)
		}
		if got := planAlarms(1, three, raised, now); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// houseClock is the time of a controller whose housekeeper looks for alarms only when
// told to.
type houseClock struct {
	clock.Clock
	house *clock.Manual

	mu   sync.Mutex
	skew time.Duration
}

func newHouseClock() *houseClock {
	return &houseClock{Clock: clock.System(), house: clock.NewManual(time.Unix(0, 0))}
}

func (c *houseClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Clock.Now().Add(c.skew)
}

func (c *houseClock) NewTimer(d time.Duration) clock.Timer {
	if d == alarmInterval {
		return c.house.NewTimer(d)
	}
	return c.Clock.NewTimer(d)
}

func (c *houseClock) advance(d time.Duration) {
	c.mu.Lock()
	c.skew += d
	c.mu.Unlock()
	c.house.Advance(d)
}

// notes collects what is logged.
type notes struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (n *notes) Write(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.b.Write(p)
}

func (n *notes) String() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.b.String()
}

// fillStore writes history until the store's quota is reached.
func fillStore(t *testing.T, c *Controller) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	junk := string(make([]byte, 1<<20))
	for range 100 { // etcd counts the file, which grows every 100 ms
		switch _, err := c.etcd.client.Put(ctx, "junk", junk); {
		case errors.Is(err, rpctypes.ErrNoSpace):
			return
		case err != nil:
			t.Fatal(err)
		}
	}
	t.Fatal("the quota was never reached")
}

// awaitStore waits until all controllers' stores are full, or until all have room. tick
// has the housekeepers look.
func awaitStore(t *testing.T, full bool, tick func(), all ...*Controller) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) { // etcd's disk and network take their time
		tick()
		same := true
		for _, c := range all {
			same = same && errors.Is(c.StoreAlarm(), ErrStoreFull) == full && (full || !c.house.short())
		}
		if same {
			return
		}
		if time.Now().After(deadline) {
			for _, c := range all {
				t.Errorf("node %d: %v", c.o.NodeID, c.StoreAlarm())
			}
			t.Fatalf("full is not %v everywhere", full)
		}
	}
}

const testQuota = 8 << 20

// TestFull fills the store to its quota with history. Commands fail, and say why; the
// health check and the log say what to do; the controller stays in office; when the
// housekeeper has looked, or after a restart, there is room again.
func TestFull(t *testing.T) {
	dir, clk, log := t.TempDir(), newHouseClock(), new(notes)
	o := testOptions(t, dir)
	o.QuotaBytes, o.Clock, o.Logger = testQuota, clk, slog.New(slog.NewTextHandler(log, nil))
	c := open(t, o)
	register(t, c, 1)
	create(t, c, "before", 1)
	if err := c.StoreAlarm(); err != nil {
		t.Errorf("with room: %v", err)
	}
	fillStore(t, c)
	r := c.CreateTopics(t.Context(), []CreateTopic{{Name: "refused"}}, false)
	if !errors.Is(r[0].Err, ErrStoreFull) || c.Image().Topic("refused") != nil {
		t.Errorf("a full store answers %+v", r[0])
	}
	err := c.StoreAlarm()
	if !errors.Is(err, ErrStoreFull) || !strings.Contains(err.Error(), "at controller 1:") || !strings.Contains(err.Error(), "metadata.etcd.quota.bytes") {
		t.Errorf("the health check says %v", err)
	}
	if !c.Leading() {
		t.Error("a full store cost the office")
	}
	awaitStore(t, false, func() { clk.advance(alarmInterval) }, c)
	for deadline := time.Now().Add(time.Minute); !strings.Contains(log.String(), "can be written again") && time.Now().Before(deadline); time.Sleep(time.Millisecond) { // it is logged after it is so
	}
	for _, want := range []string{`level=ERROR msg="metadata store has reached its quota:`, "raise metadata.etcd.quota.bytes", `full_at="controller 1"`, "metadata store can be written again"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not in the log:\n%s", want, log)
		}
	}
	create(t, c, "between", 1)
	fillStore(t, c)
	closeNow(t, c)

	o = testOptions(t, dir)
	o.QuotaBytes = testQuota
	c = open(t, o)
	create(t, c, "after", 1)
	if c.Image().Topic("before") == nil || c.Image().Topic("refused") != nil {
		t.Errorf("it shows\n%s", show(c.Image()))
	}
	if err := c.StoreAlarm(); err != nil {
		t.Error(err)
	}
}

// TestKeysFill: where keys fill the quota, and not history, the alarm stays, says that
// the quota has to be raised, and does so once a minute; with a higher one it goes.
func TestKeysFill(t *testing.T) {
	dir, clk, log := t.TempDir(), newHouseClock(), new(notes)
	o := testOptions(t, dir)
	o.QuotaBytes, o.Clock, o.Logger = testQuota, clk, slog.New(slog.NewTextHandler(log, nil))
	c := open(t, o)
	register(t, c, 1)
	junk, keys, fills := string(make([]byte, 1<<20)), 0, 0
	fill := func() {
		t.Helper()
		for fills++; ; keys++ {
			_, err := c.etcd.client.Put(t.Context(), fmt.Sprint("junk", keys), junk)
			if errors.Is(err, rpctypes.ErrNoSpace) {
				break
			} else if err != nil || keys > 40 {
				t.Fatal(keys, err)
			}
		}
		for deadline := time.Now().Add(time.Minute); c.StoreAlarm() == nil; time.Sleep(time.Millisecond) { // raised behind the refusal
			if time.Now().After(deadline) {
				t.Fatal("no alarm is raised")
			}
		}
	}
	fill()
	const tried, done, why = "compacting and rewriting", "is compacted and rewritten", "filled by its keys, not by history"
	for deadline := time.Now().Add(time.Minute); !strings.Contains(log.String(), why); time.Sleep(10 * time.Millisecond) { // the housekeeper works
		if time.Now().After(deadline) {
			t.Fatalf("the log does not say that keys fill the store:\n%s", log)
		}
		if strings.Count(log.String(), tried) > strings.Count(log.String(), done) {
			continue // no minute passes while it rewrites
		}
		clk.advance(alarmInterval)
		if c.StoreAlarm() == nil {
			fill() // the file had holes, and was large enough without them
		}
	}
	if n := strings.Count(log.String(), tried); n != fills {
		t.Errorf("room was made %d times, the store was full %d times", n, fills)
	}
	if err := c.StoreAlarm(); !errors.Is(err, ErrStoreFull) {
		t.Errorf("the health check says %v", err)
	}
	closeNow(t, c)

	o = testOptions(t, dir)
	o.QuotaBytes = 4 * testQuota
	c = open(t, o)
	create(t, c, "after", 1)
}

// TestShort: a store that fills up with history while nobody is in a hurry gets room
// before its quota, and refuses nothing.
func TestShort(t *testing.T) {
	o := testOptions(t, t.TempDir())
	o.QuotaBytes = 2 * testQuota
	clk := newHouseClock()
	o.Clock = clk
	c := open(t, o)
	junk := string(make([]byte, 1<<20))
	for i := range 40 {
		if _, err := c.etcd.client.Put(t.Context(), "junk", junk); err != nil {
			t.Fatalf("put %d: %v", i, err)
		}
		c.etcd.member.Server.Backend().ForceCommit()                                                 // the file grows with it
		for deadline := time.Now().Add(time.Minute); c.house.short(); time.Sleep(time.Millisecond) { // the housekeeper works
			clk.advance(alarmInterval)
			if time.Now().After(deadline) {
				t.Fatal("no room was made")
			}
		}
	}
}

// TestFullCluster does it to three members, of which one raises the alarm for all. All
// of them show it, commands are refused on all, and one can be restarted meanwhile. It
// ends when the one has made room; and when that one does not come back.
func TestFullCluster(t *testing.T) {
	w := newTestCluster(t, 3)
	clk := newHouseClock()
	options := func(id int32) Options {
		o := w.options(id)
		o.QuotaBytes, o.Clock = testQuota, clk
		return o
	}
	w.start(options(1), options(2), options(3))
	active, other := w.leader()
	w.broker(active, active.o.NodeID)
	create(t, active, "before", 1)

	// Only the file of the one who writes counts before a write is proposed.
	fillStore(t, other)
	still := func() {}
	awaitStore(t, true, still, w.nodes[1], w.nodes[2], w.nodes[3])
	for id, c := range w.nodes {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		if r := c.CreateTopics(ctx, []CreateTopic{{Name: "refused"}}, false); !errors.Is(r[0].Err, ErrStoreFull) {
			t.Errorf("node %d answers %v", id, r[0].Err)
		}
		cancel()
	}
	third := 1 + 2 + 3 - active.o.NodeID - other.o.NodeID
	w.stop(third)
	w.start(options(third))
	awaitStore(t, true, still, w.nodes[third])
	tick := func() { clk.advance(alarmInterval) }
	awaitStore(t, false, tick, w.nodes[1], w.nodes[2], w.nodes[3])
	create(t, w.nodes[third], "between", 1)

	fillStore(t, w.nodes[third])
	awaitStore(t, true, still, w.nodes[1], w.nodes[2], w.nodes[3])
	w.stop(third)
	awaitStore(t, false, tick, active, other)
	next, _ := w.leader() // the one that was stopped may have been it
	create(t, next, "after", 1)
	w.start(options(third))
	if _, err := w.nodes[third].follower.wait(t.Context(), next.Image().Revision); err != nil {
		t.Fatal(err)
	}
	for id, c := range w.nodes {
		img := c.Image()
		if img.Topic("before") == nil || img.Topic("between") == nil || img.Topic("after") == nil || img.Topic("refused") != nil {
			t.Errorf("node %d shows\n%s", id, show(img))
		}
	}
}
