package controller

import "github.com/lockstep-kafka/lockstep/internal/metadata"

// Calls of a [Manual] that concern mirrors, beside [StartMirrorTopics] and
// [SetMirrorTopics]; each is what the method of that name on a [Controller] decides.
type (
	// NewMirror is CreateMirror.
	NewMirror struct {
		Name    string
		Configs map[string]string
	}
	// DropMirror is DeleteMirror.
	DropMirror struct {
		Name       string
		Validation int64
	}
	// RecoverMirror is RecoverMirrorTopics, with every topic named.
	RecoverMirror struct {
		Mirror string
		Topics []string
	}
	// WriteStates is WriteMirrorStates.
	WriteStates struct {
		Mirror string
		Writes []MirrorStateWrite
	}
	// BumpEpochs is BumpLeaderEpochs.
	BumpEpochs []Bump
	// GrowTopics is CreatePartitions.
	GrowTopics []CreatePartitions
	// DropTopic is DeleteTopics of one.
	DropTopic metadata.TopicID
)

// mirrorCall is what a call about mirrors asks for. The first command of a headed one
// stands for the request as a whole: its error is that of all.
func (m *Manual) mirrorCall(call any) (cmds []Command, headed, ok bool) {
	switch c := call.(type) {
	case NewMirror:
		cmds = []Command{createMirror{c.Name, c.Configs}}
	case DropMirror:
		cmds = []Command{removeMirror{c.Name, c.Validation}}
	case StartMirrorTopics:
		cmds, headed = []Command{startHead{c}}, true
		for _, t := range c.Topics {
			cmds = append(cmds, startTopic{Mirror: c.Mirror, Topic: t, NewID: t.ID, Defaults: m.def})
		}
	case SetMirrorTopics:
		cmds, headed = []Command{setHead{c}}, true
		for _, t := range c.Topics {
			cmds = append(cmds, setTopic{c.Mirror, t, c.Desired})
		}
	case RecoverMirror:
		cmds, headed = []Command{recoverHead{c.Mirror}}, true
		for _, t := range c.Topics {
			cmds = append(cmds, recoverTopic{c.Mirror, t, false})
		}
	case WriteStates:
		for _, w := range c.Writes {
			cmds = append(cmds, writeState{c.Mirror, w})
		}
	case BumpEpochs:
		for _, b := range c {
			cmds = append(cmds, bumpEpoch{b})
		}
	case GrowTopics:
		for _, t := range c {
			cmds = append(cmds, growTopic{t, m.def})
		}
	case DropTopic:
		cmds = []Command{deleteTopicByID{metadata.TopicID(c)}}
	default:
		return nil, false, false
	}
	return cmds, headed, true
}

// headed decides a headed call: nothing of it where its head is refused.
func (p *Plan) headed(cmds []Command) ([]Outcome, error) {
	head := p.decide(cmds[:1])
	if err := head[0].Err; err != nil {
		return nil, err
	}
	return append(head, p.decide(cmds[1:])...), nil
}
