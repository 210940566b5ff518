package mirror

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/ants/v2"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/pipeline"
)

// Manager carries mirrors out on this broker: for each mirror partition it
// leads it brings the actual state to the desired one.
//
// One goroutine, loop, owns every replica and machine; all else talks to it
// through the inbox. What may block runs on the pool, at most Options.Actions and
// beside them Options.Stops failovers at a time, and one per partition.
type Manager struct {
	o      Options // what does not change; see settings
	limits retryLimits
	budget *pipeline.Budget
	sched  *scheduler // nil: goroutines
	// newWorker makes the worker that fetches from one broker of a source.
	newWorker func(p *peer, key workerKey, o pipeline.WorkerOptions) *pipeline.Worker
	pool      *ants.Pool

	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
	watch  func() // ends the metadata watch

	settings atomic.Pointer[Settings] // replaced as a whole, by Set

	states *batcher[stateWrite, controller.MirrorStateResult]
	bumps  *batcher[controller.Bump, error]

	inbox struct {
		sync.Mutex
		// items is bounded by what can be under way per partition: one write,
		// one action, one timer of each kind, one last word of a fetcher.
		items  []any
		image  *metadata.Image // newest one not yet seen by loop
		signal chan struct{}   // cap 1
	}

	// Of loop alone.
	image    *metadata.Image
	replicas map[partitionID]*replica
	lanes    [2]lane // of the pool: tasks that may ask a source, and stops

	// shared is what others look things up in.
	shared struct {
		sync.RWMutex
		replicas map[nameKey]*replica // led by this broker
		peers    map[string]*peer
	}

	stateCounts [len(stateNumbers)]atomic.Int64
	metrics     managerMetrics
}

// partitionID identifies a partition for as long as its topic lives.
type partitionID struct {
	topic metadata.TopicID
	index int32
}

// nameKey identifies a partition as source and destination both name it.
type nameKey struct {
	topic string
	index int32
}

// NewManager makes a Manager; nothing happens before Start.
func NewManager(o Options) (*Manager, error) { return newManager(o, nil) }

func newManager(o Options, s *scheduler) (*Manager, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Truncation == nil {
		o.Truncation = builtinTruncation{}
	}
	if o.UncleanElection == nil {
		o.UncleanElection = builtinUnclean{}
	}
	var pool *ants.Pool // a scheduler runs what it would
	if s == nil {
		var err error
		if pool, err = ants.NewPool(o.Actions + o.Stops); err != nil {
			return nil, err
		}
	}
	m := &Manager{
		o: o, pool: pool, budget: pipeline.NewBudget(o.FetchBytes), watch: func() {},
		limits:   retryLimits{initial: o.RetryInitial, max: o.RetryMax, attempts: o.RetryAttempts},
		replicas: make(map[partitionID]*replica), sched: s,
		newWorker: func(_ *peer, _ workerKey, o pipeline.WorkerOptions) *pipeline.Worker { return pipeline.NewWorker(o) },
	}
	m.settings.Store(&Settings{o.RefreshInterval, o.TruncationTimeout, o.FetchersPerBroker})
	m.lanes[0].most, m.lanes[1].most = o.Actions, o.Stops
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.inbox.signal = make(chan struct{}, 1)
	m.shared.replicas = make(map[nameKey]*replica)
	m.shared.peers = make(map[string]*peer)
	m.states = newBatcher(m.ctx, s, 2000, m.writeStates)
	m.states.crowd, m.states.clock = m.stopping, o.Clock
	m.bumps = newBatcher(m.ctx, s, 2000, m.raiseEpochs)
	m.initMetrics()
	return m, nil
}

// Start begins to follow the metadata. Partitions should follow it already, so
// that a partition is open when its mirror asks for it; if not, the mirror waits
// for it.
func (m *Manager) Start() {
	m.done.Add(1)
	go m.loop()
	m.watch = m.o.Controller.Watch(func(_, next *metadata.Image) {
		m.inbox.Lock()
		m.inbox.image = next
		m.inbox.Unlock()
		m.signal()
	})
}

// Close ends every goroutine and every connection to a source. Nothing is
// written: the next leader goes on from the recorded states.
func (m *Manager) Close() {
	m.watch()
	m.cancel()
	m.done.Wait()
	m.shared.RLock()
	peers := make([]*peer, 0, len(m.shared.peers))
	for _, p := range m.shared.peers {
		peers = append(peers, p)
	}
	m.shared.RUnlock()
	for _, p := range peers {
		p.close()
		p.dropMetrics()
	}
	// Tasks under way end with their context; Release waits for them.
	_ = m.pool.ReleaseTimeout(30 * time.Second)
	m.states.wait()
	m.bumps.wait()
	m.dropMetrics()
}

func (m *Manager) signal() {
	select {
	case m.inbox.signal <- struct{}{}:
	default:
	}
}

// send puts an item into the inbox; it never blocks.
func (m *Manager) send(item any) {
	m.inbox.Lock()
	m.inbox.items = append(m.inbox.items, item)
	m.inbox.Unlock()
	m.signal()
}

// Items of the inbox.
type (
	// forReplica is an input for a machine. generation guards timers that were
	// stopped when they had already fired.
	forReplica struct {
		r  *replica
		in any
	}
	timerFired struct {
		r          *replica
		kind       timerKind
		generation int
	}
	// taskEnded frees the partition for its next action.
	taskEnded struct{ t *task }
)

// post sends an input to the machine of a partition, if this broker leads it.
func (m *Manager) post(key nameKey, in any) {
	if r := m.replicaOf(key); r != nil {
		m.send(forReplica{r, in})
	}
}

func (m *Manager) replicaOf(key nameKey) *replica {
	m.shared.RLock()
	defer m.shared.RUnlock()
	return m.shared.replicas[key]
}

func (m *Manager) peer(mirror string) *peer {
	m.shared.RLock()
	defer m.shared.RUnlock()
	return m.shared.peers[mirror]
}

func (m *Manager) loop() {
	defer m.done.Done()
	for {
		select {
		case <-m.ctx.Done():
			for _, r := range m.replicas {
				r.stopTimers()
			}
			return
		case <-m.inbox.signal:
		}
		m.handle()
	}
}

// handle takes what is in the inbox.
func (m *Manager) handle() {
	m.inbox.Lock()
	items, image := m.inbox.items, m.inbox.image
	m.inbox.items, m.inbox.image = nil, nil
	m.inbox.Unlock()
	if image != nil {
		m.follow(image)
	}
	for _, item := range items {
		switch item := item.(type) {
		case forReplica:
			m.step(item.r, item.in)
		case timerFired:
			if item.r.timers[item.kind].generation == item.generation {
				m.step(item.r, due{item.kind})
			}
		case taskEnded:
			m.taskEnded(item.t)
		}
	}
	m.startReady()
}

// follow compares the newest image with the last one seen.
func (m *Manager) follow(next *metadata.Image) {
	prev := m.image
	m.image = next
	m.followMirrors(prev, next)
	if prev != nil {
		for _, t := range prev.Topics() {
			if next.TopicByID(t.ID) == nil {
				for i := range t.Partitions {
					m.drop(partitionID{t.ID, int32(i)})
				}
			}
		}
	}
	for _, t := range next.Topics() {
		if prev != nil && prev.TopicByID(t.ID) == t {
			continue // images share what did not change
		}
		m.followTopic(t, prev != nil && t.OnlyPartitionsDiffer(prev.TopicByID(t.ID)))
	}
}

func (m *Manager) followMirrors(prev, next *metadata.Image) {
	if prev != nil {
		for _, old := range prev.Mirrors() {
			if next.Mirror(old.Name) == nil {
				m.removePeer(old.Name)
			}
		}
	}
	for _, mirror := range next.Mirrors() {
		p := m.peer(mirror.Name)
		if p != nil && prev != nil && !m.owns(prev, mirror.Name) && m.owns(next, mirror.Name) {
			p.log.Info("this broker does the mirror's own work from now on")
			p.wake()
		}
		switch {
		case p == nil:
			p = newPeer(m, mirror)
			m.shared.Lock()
			m.shared.peers[mirror.Name] = p
			m.shared.Unlock()
		case prev != nil && prev.Mirror(mirror.Name) == mirror:
		case prev != nil && metadata.ConnectionConfigsEqual(prev.Mirror(mirror.Name).Configs, mirror.Configs):
			p.setFilters(mirror.Configs)
		default:
			p.configure(mirror.Configs)
			for _, r := range m.sorted() {
				if r.peer == p {
					m.step(r, reconnect{})
				}
			}
		}
	}
}

// sorted are the replicas by topic and partition.
func (m *Manager) sorted() []*replica {
	return slices.SortedFunc(maps.Values(m.replicas), func(a, b *replica) int {
		return cmp.Or(bytes.Compare(a.id.topic[:], b.id.topic[:]), cmp.Compare(a.id.index, b.id.index))
	})
}

func (m *Manager) removePeer(name string) {
	m.shared.Lock()
	p := m.shared.peers[name]
	delete(m.shared.peers, name)
	m.shared.Unlock()
	if p != nil {
		// At once, and not when it is closed: a mirror of that name may be
		// created meanwhile, and its series are the same.
		p.dropMetrics()
		m.done.Add(1)
		m.sched.run(func() { // its workers may take a moment to end
			defer m.done.Done()
			p.close()
		})
	}
}

// followTopic brings the replicas of one topic up to date; alike says that only partitions
// of it have changed.
func (m *Manager) followTopic(t *metadata.Topic, alike bool) {
	attachment := t.Attachment()
	p := m.peer(attachment.Mirror)
	for _, mp := range t.Partitions {
		id := partitionID{t.ID, mp.Index}
		if attachment.Desired == metadata.DesiredNone || p == nil || mp.Leader != m.o.NodeID {
			m.drop(id)
			continue
		}
		r := m.replicas[id]
		if r == nil {
			r = &replica{m: m, id: id, key: nameKey{t.Name, mp.Index}}
			m.replicas[id] = r
		}
		if r.machine == nil || r.peer != p || r.life != t.Life {
			m.lead(r, p)
		} else if alike && r.assigned == mp {
			continue
		}
		r.life, r.assigned = t.Life, mp
		m.step(r, assigned{
			desired: attachment.Desired, touch: t.MirrorRevision,
			view: viewOf(t, mp), record: t.MirrorPartition(mp),
		})
	}
}

// lead begins a machine for a partition this broker leads, also when its topic
// moved to another mirror.
func (m *Manager) lead(r *replica, p *peer) {
	if r.machine != nil {
		m.forget(r)
	}
	r.peer = p
	r.seen.forgetSource()
	r.machine = &machine{limits: m.limits, random: m.o.Rand.Float64, state: metadata.StateUnknown}
	m.countState(metadata.StateUnknown, 1)
	r.addMetrics()
	m.shared.Lock()
	m.shared.replicas[r.key] = r
	m.shared.Unlock()
}

// drop lets go of a partition: leadership lost, topic deleted or detached (S10).
func (m *Manager) drop(id partitionID) {
	r := m.replicas[id]
	if r == nil || r.machine == nil {
		return
	}
	m.forget(r)
	if r.task == nil {
		delete(m.replicas, id)
	}
}

// forget ends a machine. Its fetcher is taken away by a task, because that
// waits for an append under way; what it appends meanwhile is fenced by the
// leader epoch.
func (m *Manager) forget(r *replica) {
	m.countState(r.machine.state, -1)
	r.machine = nil
	r.watchFollowers()
	r.stopTimers()
	r.dropMetrics()
	m.shared.Lock()
	if m.shared.replicas[r.key] == r {
		delete(m.shared.replicas, r.key)
	}
	m.shared.Unlock()
	if r.task != nil || r.attached() {
		m.begin(r, &task{r: r, action: actDetach})
	}
}

func viewOf(t *metadata.Topic, p *metadata.Partition) gateView {
	return gateView{
		leader: p.Leader, leaderEpoch: p.LeaderEpoch, partitionEpoch: p.PartitionEpoch, replicas: p.Replicas, isr: p.ISR,
		minISR: int(t.ConfigInt("min.insync.replicas")), unclean: t.ConfigBool(metadata.MirrorULEConfig),
	}
}

// step gives a machine an input and carries the effects out.
func (m *Manager) step(r *replica, in any) {
	if r.machine == nil {
		return
	}
	r.machine.gateMax = max(m.settings.Load().TruncationTimeout, 0)
	before, failed := r.machine.state, r.machine.failure
	effects := r.machine.step(in)
	after := r.machine.state
	if after != before {
		m.countState(before, -1)
		m.countState(after, 1)
	}
	if after != before || r.machine.failure != failed {
		r.logState(before, after, failed)
	}
	r.watchFollowers()
	r.clearing.Store(r.machine.state == metadata.StateMirroring && r.machine.failure != (failure{}))
	for _, e := range effects {
		m.carryOut(r, e)
	}
}

func (m *Manager) carryOut(r *replica, e effect) {
	switch e.kind {
	case effectWrite:
		m.states.submit(r.stateWrite(e.write), func(res controller.MirrorStateResult) { r.wrote(res) })
	case effectRun:
		m.begin(r, &task{r: r, action: e.action, seq: e.seq, target: e.target, fenceMin: e.epoch, leaderEpoch: r.machine.view.leaderEpoch})
	case effectTimer:
		r.startTimer(e.timer, e.delay)
	case effectStop:
		r.stopTimer(e.timer)
	case effectEpochs:
		r.setEpochs(r.machine.view.leaderEpoch)
	case effectBump:
		r.bump(e.epoch, r.machine.view.leaderEpoch)
	case effectRefresh:
		r.peer.wake()
	case effectGaveUp:
		r.log().Error("retries are used up; recover or start it again", "attempts", r.machine.failure.attempt, "err", r.machine.failure.message)
	}
}

// begin runs a task after the one that runs now has ended; what waited between
// the two, or for a place in the pool, is forgotten.
func (m *Manager) begin(r *replica, t *task) {
	t.ctx, t.cancel = context.WithCancel(m.ctx)
	t.peer = r.peer
	if r.task != nil && !r.task.started {
		r.task.cancel()
		m.laneOf(r.task).drop(r.task)
		r.task = nil
	}
	if r.task != nil {
		r.task.cancel()
		if r.next != nil {
			r.next.cancel()
		}
		r.next = t
		return
	}
	r.task = t
	m.laneOf(t).add(t)
}

// lane is a part of the pool. Stops have one of their own: they never ask a source, so
// they must not wait behind those who wait for one that has burnt down (W59), and what
// they ask of the controller goes together the better the more of them there are.
type lane struct {
	most    int
	ready   []*task // wait for a place
	running int
}

func (l *lane) add(t *task) { l.ready = append(l.ready, t) }

// drop takes a task out that has not begun.
func (l *lane) drop(t *task) {
	if i := slices.Index(l.ready, t); i >= 0 {
		l.ready = slices.Delete(l.ready, i, i+1)
	}
}

func (m *Manager) laneOf(t *task) *lane {
	if t.action == actStop {
		return &m.lanes[1]
	}
	return &m.lanes[0]
}

func (m *Manager) startReady() {
	for i := range m.lanes {
		l := &m.lanes[i]
		for len(l.ready) > 0 && l.running < l.most {
			t := l.ready[0]
			l.ready = l.ready[1:]
			l.running++
			t.started = true
			if m.sched != nil {
				m.sched.run(t.run)
				continue
			}
			if err := m.pool.Submit(t.run); err != nil { // only after Release
				l.running--
				return
			}
		}
		if len(l.ready) == 0 {
			l.ready = nil
		}
	}
}

func (m *Manager) taskEnded(t *task) {
	m.laneOf(t).running--
	t.cancel()
	r := t.r
	r.task = nil
	if r.next != nil {
		r.task, r.next = r.next, nil
		m.laneOf(r.task).add(r.task)
		return
	}
	if r.machine == nil && !r.attached() {
		if m.replicas[r.id] == r {
			delete(m.replicas, r.id)
		}
	}
}

// replicaTimer is one timer of a replica. The generation tells a fired timer
// from one that was stopped or started anew after it had fired.
type replicaTimer struct {
	timer      clock.Timer
	generation int
}
