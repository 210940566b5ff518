package controller

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// sessionWorld is three brokers that beat, and what sessions make of it.
func sessionWorld(t *testing.T) *cluster {
	c := newCluster(t, 3, true, 2)
	c.beatAll()
	return c
}

func (c *cluster) beatAll() {
	for id := range c.brokers {
		c.heartbeat(id)
	}
}

func (c *cluster) fenced() string {
	var ids []int32
	for _, b := range c.image().Brokers() {
		if b.Fenced {
			ids = append(ids, b.ID)
		}
	}
	return fmt.Sprint(ids)
}

// A broker that is silent for the session's time is fenced, not before; one whose
// connection broke sooner; one that beats never.
func TestSessionsEnd(t *testing.T) {
	c := sessionWorld(t)
	for range 28 {
		c.pass(100 * time.Millisecond)
		c.heartbeat(1)
		c.heartbeat(2)
	}
	if got := c.fenced(); got != "[]" {
		t.Errorf("fenced after 2.8 s: %s", got)
	}
	c.pass(300 * time.Millisecond)
	if got := c.fenced(); got != "[3]" {
		t.Errorf("fenced after 3.1 s: %s", got)
	}
	c.heartbeat(1)
	c.s.lose(c.now, loss{broker: 2})
	c.pass(400 * time.Millisecond)
	if got := c.fenced(); got != "[3]" {
		t.Errorf("fenced 400 ms after the connection broke: %s", got)
	}
	c.pass(200 * time.Millisecond)
	if got := c.fenced(); got != "[2 3]" {
		t.Errorf("fenced 600 ms after the connection broke: %s", got)
	}
	c.heartbeat(2)
	if got := c.fenced(); got != "[3]" {
		t.Errorf("fenced after a heartbeat: %s", got)
	}
}

// A controller that could not run, because the store was slow, has not heard
// heartbeats that were sent: nobody is fenced for that.
func TestSessionsOfASlowController(t *testing.T) {
	c := sessionWorld(t)
	c.now = c.now.Add(time.Minute)
	if cmds := c.s.tick(c.now, c.image()); len(cmds) > 0 {
		t.Errorf("after a minute in the store: %+v", cmds)
	}
	c.pass(3100 * time.Millisecond)
	if got := c.fenced(); got != "[1 2 3]" {
		t.Errorf("fenced 3.1 s later: %s", got)
	}
}

// A new controller gives everybody a fresh session, and those less time whose nodes
// refuse connections.
func TestSessionsBegin(t *testing.T) {
	c := sessionWorld(t)
	c.s.begin(c.now, c.image(), []loss{{broker: 2}})
	if got := fmt.Sprint(c.s.unheard(c.image())); got != "[1 2 3]" {
		t.Errorf("unheard: %s", got)
	}
	c.heartbeat(1)
	if got := fmt.Sprint(c.s.unheard(c.image())); got != "[2 3]" {
		t.Errorf("unheard: %s", got)
	}
	c.pass(600 * time.Millisecond)
	if got := c.fenced(); got != "[2]" {
		t.Errorf("fenced after 600 ms: %s", got)
	}
}

// The session of a process that is known to be gone ends at once, and not that of the
// one that came after it. A new controller hears of it as well.
func TestSessionsGone(t *testing.T) {
	c := sessionWorld(t)
	epoch := c.brokers[2].registered.Epoch
	c.s.lose(c.now, loss{broker: 2, gone: epoch})
	c.pass(100 * time.Millisecond)
	if got := c.fenced(); got != "[2]" {
		t.Errorf("fenced: %s", got)
	}
	c.stop(2, "kill", 0)
	c.start(2)
	c.heartbeat(2)
	c.s.lose(c.now, loss{broker: 2, gone: epoch}) // old news
	c.pass(400 * time.Millisecond)
	if got := c.fenced(); got != "[]" {
		t.Errorf("fenced for what an earlier process was: %s", got)
	}
	c.s.begin(c.now, c.image(), []loss{{broker: 3, gone: c.brokers[3].registered.Epoch}, {broker: 3}, {broker: 2, gone: epoch}})
	c.pass(100 * time.Millisecond)
	if got := c.fenced(); got != "[3]" {
		t.Errorf("fenced by a new controller: %s", got)
	}
	c.s.lose(c.now, loss{broker: 9, gone: 7}) // nobody knows it
}

// A second process with the id of a living broker is let in when the first one's
// session has ended. The old one's heartbeats are refused then.
func TestSessionsOfADuplicate(t *testing.T) {
	c := sessionWorld(t)
	second := registerBroker{RegisterBroker: RegisterBroker{ID: 1, Incarnation: [16]byte{99}, PreviousEpoch: -1}, Defaults: c.def()}
	if err := c.do(c.s.admit(c.now, c.image(), second)); !errors.Is(err, ErrDuplicateBroker) {
		t.Errorf("a living broker was replaced: %v", err)
	}
	c.s.lose(c.now, loss{broker: 1})
	c.pass(600 * time.Millisecond)
	if err := c.do(c.s.admit(c.now, c.image(), second)); err != nil {
		t.Error(err)
	}
	_, err := c.s.heartbeat(c.now, c.image(), Heartbeat{Broker: 1, Epoch: c.brokers[1].registered.Epoch})
	if !errors.Is(err, ErrStaleBrokerEpoch) {
		t.Errorf("the old process goes on: %v", err)
	}
	if _, err := c.s.heartbeat(c.now, c.image(), Heartbeat{Broker: 9}); !errors.Is(err, ErrUnknownBroker) {
		t.Errorf("a broker that nobody knows: %v", err)
	}
}

// A controlled shutdown moves leaders away and answers when none is left to be moved.
func TestSessionsShutdown(t *testing.T) {
	c := sessionWorld(t)
	hb := Heartbeat{Broker: 1, Epoch: c.brokers[1].registered.Epoch, Revision: c.rev, WantShutdown: true}
	if heartbeatAnswer(c.image(), hb).ShouldShutdown {
		t.Error("it leads and should stop")
	}
	cmds, err := c.s.heartbeat(c.now, c.image(), hb)
	if err != nil {
		t.Fatal(err)
	}
	c.do(cmds...)
	if p := c.partition(); p.Leader != 2 || slices.Contains(p.ISR, 1) {
		t.Errorf("%s", showPartition(p))
	}
	if a := heartbeatAnswer(c.image(), hb); !a.ShouldShutdown || a.Fenced {
		t.Errorf("%+v", a)
	}
	hb.WantFence = true
	cmds, err = c.s.heartbeat(c.now, c.image(), hb)
	if err != nil {
		t.Fatal(err)
	}
	c.do(cmds...)
	if a := heartbeatAnswer(c.image(), hb); !a.Fenced || c.fenced() != "[1]" {
		t.Errorf("%+v, fenced: %s", a, c.fenced())
	}
}

// Rule 8: the longest log in the highest epoch leads, and only when all have told, in
// the registrations that they have now.
func TestSessionsElectTheLongest(t *testing.T) {
	c := newCluster(t, 3, false, 2)
	c.beatAll()
	c.s.begin(c.now, c.image(), nil)
	for id := int32(1); id <= 3; id++ {
		c.stop(id, "power", 0)
	}
	c.pass(3100 * time.Millisecond)
	for id := int32(1); id <= 3; id++ {
		c.mayLose = true
		c.start(id)
	}
	if !c.partition().WaitsForEnds() {
		t.Fatalf("nothing to wait for: %s", showPartition(c.partition()))
	}
	for id := int32(1); id <= 3; id++ { // let in, without a report
		cmds, err := c.s.heartbeat(c.now, c.image(), Heartbeat{Broker: id, Epoch: c.brokers[id].registered.Epoch, Revision: c.rev})
		if err != nil {
			t.Fatal(err)
		}
		c.do(cmds...)
	}
	tell := func(id, epoch int32, end int64) {
		cmds, err := c.s.reportEnds(c.now, c.image(), c.brokers[id].registered, []ReplicaEnd{{testID(1), 0, epoch, end}, {testID(7), 0, 1, 1}})
		if err != nil {
			t.Fatal(err)
		}
		c.do(cmds...)
	}
	tell(1, 3, 100)
	tell(2, 4, 50)
	if p := c.partition(); p.Leader != metadata.NoLeader {
		t.Fatalf("elected before all have told: %s", showPartition(p))
	}
	tell(3, 4, 40)
	if p := c.partition(); p.Leader != 2 || fmt.Sprint(p.ISR) != "[2]" {
		t.Errorf("%s", showPartition(p))
	}
	c.pass(watchInterval)
	if len(c.s.ends) != 0 {
		t.Errorf("reports are kept: %v", c.s.ends)
	}
}

// Who came back from an unclean stop is waited for until somebody of the ISR has told of
// having seen it come back, and not because of a heartbeat from before.
func TestSessionsForgetWhoCameBack(t *testing.T) {
	c := newCluster(t, 3, false, 1)
	c.beatAll()
	c.stop(1, "kill", 0)
	before := c.rev
	c.s.lose(c.now, loss{broker: 1})
	for range 2 {
		c.now = c.now.Add(300 * time.Millisecond)
		c.heartbeat(2)
	}
	c.start(1)
	beat := func(id int32, revision int64) int {
		cmds, err := c.s.heartbeat(c.now, c.image(), Heartbeat{Broker: id, Epoch: c.brokers[id].registered.Epoch, Revision: revision})
		if err != nil {
			t.Fatal(err)
		}
		c.do(cmds...)
		return len(cmds)
	}
	beat(2, before)
	beat(1, c.rev)
	if p := c.partition(); !slices.Equal(p.ISR, []int32{2, 3}) || !slices.Equal(p.LastKnownELR, []int32{1}) {
		t.Fatalf("before anybody has seen 1: %s", showPartition(p))
	}
	beat(2, c.rev)
	if p := c.partition(); len(p.LastKnownELR) > 0 {
		t.Errorf("2 has seen it: %s", showPartition(p))
	}
	if n := beat(2, c.rev); n > 0 {
		t.Errorf("the next heartbeat asks for %d commands", n)
	}

	// So is the rest of those whose logs were compared, by the one that won.
	c.beatAll()
	for id := range c.brokers {
		c.stop(id, "kill", 0)
	}
	c.pass(3100 * time.Millisecond)
	for id := int32(1); id <= 3; id++ {
		c.start(id)
	}
	for id := int32(1); id <= 3; id++ { // the last one to tell decides
		c.heartbeat(id)
	}
	p := c.partition()
	if p.Leader == metadata.NoLeader || len(p.LastKnownELR) != 1 {
		t.Fatalf("elected: %s", showPartition(p))
	}
	beat(p.Leader, c.rev)
	if p := c.partition(); len(p.LastKnownELR) > 0 {
		t.Errorf("the winner is there: %s", showPartition(p))
	}
}

// The transaction that lets a broker in timed out, and takes effect when its session has
// been given up: it gets one, and does not count as alive for ever.
func TestSessionsUnfencedLate(t *testing.T) {
	c := sessionWorld(t)
	c.stop(3, "kill", 0)
	for range 35 {
		c.pass(100 * time.Millisecond)
		c.heartbeat(1)
		c.heartbeat(2)
	}
	if c.fenced() != "[3]" || c.s.brokers[3] != nil {
		t.Fatalf("fenced: %s, sessions %v", c.fenced(), c.s.brokers)
	}
	late := *c.image().Broker(3)
	late.Fenced = false
	c.rev++
	if err := c.b.apply([]Change{putBroker{&late}}, c.rev); err != nil {
		t.Fatal(err)
	}
	c.b.seal(c.rev)
	for range 33 {
		c.pass(100 * time.Millisecond)
		c.heartbeat(1)
		c.heartbeat(2)
	}
	if got := c.fenced(); got != "[3]" {
		t.Errorf("fenced 3.3 s later: %s", got)
	}
}

// Leaders go back where they belong when more than the percentage is elsewhere.
func TestSessionsBalance(t *testing.T) {
	c := sessionWorld(t)
	c.do(createTopic{CreateTopic{Name: "u", Assignment: map[int32][]int32{0: {1, 2}, 1: {1, 2}, 2: {2, 1}}}, testID(2), c.def()})
	c.stop(1, "clean", 0)
	c.s.lose(c.now, loss{broker: 1})
	c.pass(600 * time.Millisecond)
	c.start(1)
	c.beatAll()
	u := c.image().Topic("u")
	for _, p := range u.Partitions {
		if p.Leader == 2 {
			c.do(alterISR{Broker: c.brokers[2].registered, Defaults: c.def(), AlterISR: AlterISR{Topic: u.ID, Partition: p.Index, LeaderEpoch: p.LeaderEpoch,
				PartitionEpoch: p.PartitionEpoch, ISR: []ISRMember{{1, -1}, {2, -1}}}})
		}
	}
	if cmds := unbalanced(c.image(), c.def(), 100, nil); len(cmds) != 0 {
		t.Errorf("balanced at 100 %%: %+v", cmds)
	}
	if cmds := unbalanced(c.image(), c.def(), 10, []int32{1}); len(cmds) != 0 {
		t.Errorf("given to a broker that nobody has heard of: %+v", cmds)
	}
	c.s.o.BalanceInterval, c.s.o.BalancePercentage = time.Minute, 10
	c.s.balance = c.now.Add(time.Minute)
	for range 59 {
		c.beatAll()
		c.pass(time.Second)
	}
	if l := c.image().Topic("u").Partition(0).Leader; l != 2 {
		t.Errorf("balanced before its time: %d", l)
	}
	c.beatAll()
	c.pass(1200 * time.Millisecond)
	for i, want := range []int32{1, 1, 2} {
		if got := c.image().Topic("u").Partition(int32(i)).Leader; got != want {
			t.Errorf("u-%d is led by %d, want %d", i, got, want)
		}
	}
}

// Unclean elections are put before the policy once, and again when something changes.
func TestSessionsAskOnce(t *testing.T) {
	c := newCluster(t, 3, true, 1)
	c.beatAll()
	c.do(alterConfigs{AlterConfigs{Type: ResourceTopic, Name: "t", Ops: []ConfigOp{{Name: metadata.UncleanElectionConfig, Value: ptr("true")}}}, c.def()})
	p := c.partition()
	c.do(alterISR{Broker: c.brokers[1].registered, Defaults: c.def(), AlterISR: AlterISR{Topic: testID(1), LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch, ISR: []ISRMember{{1, -1}}}})
	c.s.lose(c.now, loss{broker: 1})
	c.pass(600 * time.Millisecond)
	open := c.s.unclean(c.image())
	if len(open) != 1 || fmt.Sprint(open[0].Live) != "[2 3]" || !open[0].Allowed {
		t.Fatalf("%+v", open)
	}
	if again := c.s.unclean(c.image()); len(again) != 0 {
		t.Errorf("asked again: %+v", again)
	}
	c.s.lose(c.now, loss{broker: 2})
	c.heartbeat(3)
	c.pass(600 * time.Millisecond)
	if open = c.s.unclean(c.image()); len(open) != 1 || fmt.Sprint(open[0].Live) != "[3]" {
		t.Errorf("%+v", open)
	}
	for range 20 {
		c.heartbeat(3)
		c.pass(2 * time.Second)
	}
	if open = c.s.unclean(c.image()); len(open) != 1 {
		t.Fatalf("not asked again after a while: %+v", open)
	}
	leader, err := decideUnclean(t.Context(), nil, open[0])
	if err != nil {
		t.Fatal(err)
	}
	c.do(electUnclean{Topic: open[0].Topic.ID, Partition: open[0].Partition.Index, Leader: leader, Defaults: c.def()})
	if p := c.partition(); p.Leader != 3 || fmt.Sprint(p.ISR) != "[3]" {
		t.Errorf("%s", showPartition(p))
	}
}

// A broker that comes back with lost logs names them with the heartbeat that lets it in,
// and is not given to lead what it cannot read. One that has more to name than fits
// into a heartbeat waits outside; one that names too many is refused.
func TestSessionsOfABrokerWithLostLogs(t *testing.T) {
	c := sessionWorld(t)
	for id := range int32(3) {
		c.stop(id+1, "clean", 0)
	}
	c.pass(3100 * time.Millisecond)
	c.start(1)
	beat := func(offline []OfflineReplica) (cmds []Command, err error) {
		return c.s.heartbeat(c.now, c.image(), Heartbeat{Broker: 1, Epoch: c.brokers[1].registered.Epoch, Revision: c.rev, Offline: offline})
	}
	many := make([]OfflineReplica, MaxOffline+1)
	if _, err := beat(many); !errors.Is(err, ErrInvalidRequest) {
		t.Errorf("%d replicas: %v", len(many), err)
	}
	if cmds, err := beat(many[:MaxOffline]); err != nil || len(cmds) != 1 {
		t.Errorf("%d replicas: %+v, %v", MaxOffline, cmds, err)
	}
	c.brokers[1].damaged = true
	c.heartbeat(1)
	if got := showPartition(c.partition()); got != "replicas=[1 2 3] isr=[2 3] leader=-1@2 partition-epoch=2" || c.image().Broker(1).Fenced {
		t.Errorf("fenced %v: %s", c.image().Broker(1).Fenced, got)
	}
	c.start(2)
	c.heartbeat(2)
	if got := showPartition(c.partition()); got != "replicas=[1 2 3] isr=[2] leader=2@3 partition-epoch=3 elr=[3]" {
		t.Errorf("the next one is back: %s", got)
	}
}
