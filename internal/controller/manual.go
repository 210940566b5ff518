package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Manual is what an active controller decides in one term, without a store, a clock or
// a goroutine: whoever has it brings the calls and the time, writes the changes, and
// shows them in images. The simulation does; [Controller] does the same with etcd.
type Manual struct {
	s   sessions
	def defaults
}

// ManualOptions are the settings of a [Manual], as in [Options].
type ManualOptions struct {
	Session, AfterLoss time.Duration
	BalanceInterval    time.Duration
	BalancePercentage  int
	MinISR             int32
	Unclean            bool
	ReplicationFactor  int16 // of topics that a mirror creates, 0: one
}

// NewManual makes one; Begin starts a term.
func NewManual(o ManualOptions) *Manual {
	def := defaults{Partitions: 1, ReplicationFactor: max(o.ReplicationFactor, 1), MaxPartitions: 100, MinISR: o.MinISR, Unclean: o.Unclean}
	return &Manual{def: def, s: sessions{o: sessionOptions{
		Timeout: o.Session, AfterLoss: o.AfterLoss, BalanceInterval: o.BalanceInterval, BalancePercentage: o.BalancePercentage, Defaults: def,
	}}}
}

// Begin starts a term; see sessions. The brokers do not answer.
func (m *Manual) Begin(now time.Time, img *metadata.Image, silent []int32) {
	lately := make([]loss, len(silent))
	for i, id := range silent {
		lately[i] = loss{broker: id}
	}
	m.s.begin(now, img, lately)
}

// ConnectionLost notes that a broker's connection broke; with a broker epoch, that its
// process is gone.
func (m *Manual) ConnectionLost(now time.Time, broker int32, gone int64) {
	m.s.lose(now, loss{broker, gone})
}

// AlterISRs is a call of [Controller.AlterISRs].
type AlterISRs struct {
	Broker BrokerEpoch
	Wishes []AlterISR
}

// Ends is a call of [Controller.ReportEnds].
type Ends struct {
	Broker BrokerEpoch
	Ends   []ReplicaEnd
}

// Unregister is a call of [Controller.UnregisterBroker].
type Unregister struct{ ID int32 }

// NewTopic is a call of [Controller.CreateTopics] that draws this id.
type NewTopic struct {
	CreateTopic
	NewID metadata.TopicID
}

// Outcome is what became of one command of a call.
type Outcome struct {
	Changes []Change
	Err     error
	// Cut is set where the command elects a leader that may lack records.
	Cut *Cut
}

// Cut names such a partition. Longest: among those that had every record once.
type Cut struct {
	Topic     metadata.TopicID
	Partition int32
	Longest   bool
}

// Plan decides calls one after the other, each on the image that the ones before it
// leave behind.
type Plan struct {
	m       *Manual
	scratch *builder
}

// Plan begins on an image.
func (m *Manual) Plan(img *metadata.Image) *Plan { return &Plan{m, newBuilder(img)} }

// Call decides one call: RegisterBroker, Unregister, Heartbeat, AlterISRs, Ends, NewTopic,
// ElectLeader, Reassign or AlterConfigs.
func (p *Plan) Call(now time.Time, call any) ([]Outcome, error) {
	m, img := p.m, p.scratch.view()
	var cmds []Command
	var err error
	switch c := call.(type) {
	case RegisterBroker:
		cmds = []Command{m.s.admit(now, img, registerBroker{RegisterBroker: c, Defaults: m.def})}
	case Heartbeat:
		cmds, err = m.s.heartbeat(now, img, c)
	case AlterISRs:
		for _, w := range c.Wishes {
			cmds = append(cmds, alterISR{Broker: c.Broker, AlterISR: w, Defaults: m.def})
		}
	case Ends:
		cmds, err = m.s.reportEnds(now, img, c.Broker, c.Ends)
	case NewTopic:
		cmds = []Command{createTopic{CreateTopic: c.CreateTopic, NewID: c.NewID, Defaults: m.def}}
	case Unregister:
		cmds = []Command{unregisterBroker{c.ID, m.def}}
	case ElectLeader:
		cmds = []Command{electLeader{c, m.def}}
	case Reassign:
		cmds = []Command{reassign{c, true, m.def}}
	case AlterConfigs:
		cmds = []Command{alterConfigs{c, m.def}}
	default:
		var headed, ok bool
		if cmds, headed, ok = m.mirrorCall(call); headed {
			return p.headed(cmds)
		} else if !ok {
			err = fmt.Errorf("%w: call %T", ErrInvalidRequest, call)
		}
	}
	if err != nil {
		return nil, err
	}
	return p.decide(cmds), nil
}

// Tick decides what time asks for; nothing if nothing.
func (p *Plan) Tick(now time.Time) []Outcome { return p.decide(p.m.s.tick(now, p.scratch.view())) }

// Unclean decides the unclean elections that configs allow.
func (p *Plan) Unclean() []Outcome {
	var cmds []Command
	for _, u := range p.m.s.unclean(p.scratch.view()) {
		if leader, err := decideUnclean(context.Background(), nil, u); err == nil {
			cmds = append(cmds, electUnclean{Topic: u.Topic.ID, Partition: u.Partition.Index, Leader: leader, Defaults: p.m.def})
		}
	}
	return p.decide(cmds)
}

func (p *Plan) decide(cmds []Command) []Outcome {
	items := make([]Outcome, len(cmds))
	for i, cmd := range cmds {
		it := &items[i]
		if it.Changes, it.Err = Decide(p.scratch.view(), cmd); it.Err == nil {
			it.Err = p.scratch.apply(it.Changes, p.scratch.view().Revision+1)
		}
		switch c := cmd.(type) {
		case electUnclean:
			it.Cut = &Cut{c.Topic, c.Partition, false}
		case electLongest:
			it.Cut = &Cut{c.Topic, c.Partition, true}
		}
	}
	return items
}

// HeartbeatAnswer is how a broker stands by an image.
func HeartbeatAnswer(img *metadata.Image, hb Heartbeat) HeartbeatResult {
	return heartbeatAnswer(img, hb)
}

// Transactions splits the changes of commands as the controller does, for a store that
// takes at most ops of them at once: those of one command about one topic stay together
// where they fit. They come back as they are read from the store.
func Transactions(commands [][]Change, ops int) ([][]Change, error) {
	p := pack{most: ops}
	for _, changes := range commands {
		groups, err := codec{}.groups(changes)
		if err != nil {
			return nil, err
		}
		for _, g := range groups {
			p.add(g)
		}
	}
	txns := make([][]Change, len(p.txns))
	for i, txn := range p.txns {
		for _, w := range txn {
			ch, err := codec{}.decode(w.key, w.value, 0)
			if err != nil {
				return nil, err
			}
			txns[i] = append(txns[i], ch)
		}
	}
	return txns, nil
}

// Images builds the image of each revision.
type Images struct{ b *builder }

// NewImages begins with an empty cluster.
func NewImages() *Images { return &Images{newBuilder(metadata.NewImage())} }

// Apply answers the image after a transaction.
func (i *Images) Apply(changes []Change, revision int64) (*metadata.Image, error) {
	if err := i.b.apply(changes, revision); err != nil {
		return nil, err
	}
	return i.b.seal(revision), nil
}

// Orphans are the changes that remove what an interrupted command left behind.
func (i *Images) Orphans() []Change { return i.b.orphans() }
