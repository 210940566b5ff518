package controller

import (
	"fmt"
	"maps"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Command is one thing that is asked of the controller, for one topic, partition,
// mirror or broker. A request over many is many commands.
type Command interface{ command() }

// defaults is what a decision needs to know besides the image.
type defaults struct {
	partitions        int32
	replicationFactor int16
	maxPartitions     int32
}

type (
	registerBroker struct{ RegisterBroker }
	createTopic    struct {
		CreateTopic
		newID    metadata.TopicID // used if CreateTopic names no id
		defaults defaults
	}
	deleteTopicByID struct{ id metadata.TopicID }
	growTopic       struct {
		CreatePartitions
		defaults defaults
	}
	alterConfigs        struct{ AlterConfigs }
	allocateProducerIDs struct{ n int32 }
	createMirror        struct {
		name    string
		configs map[string]string
	}
	removeMirror struct {
		name       string
		validation int64
	}
	// A mirror request of several topics is one head, which checks the request
	// as a whole and changes the mirror's filters, and a command per topic.
	startHead  struct{ StartMirrorTopics }
	startTopic struct {
		mirror   string
		topic    MirrorTopic
		newID    metadata.TopicID
		defaults defaults
	}
	setHead  struct{ SetMirrorTopics }
	setTopic struct {
		mirror, topic string
		desired       metadata.Desired
	}
	recoverHead  struct{ mirror string }
	recoverTopic struct {
		mirror, topic string
		all           bool // the whole mirror was named, not this topic
	}
	writeState struct {
		mirror string
		MirrorStateWrite
	}
	bumpEpoch   struct{ Bump }
	alterScram  struct{ AlterScram }
	alterQuotas struct{ AlterQuotas }
	createACL   struct{ acl metadata.ACL }
	deleteACLs  struct{ filter metadata.ACLFilter }
)

func (registerBroker) command()      {}
func (createTopic) command()         {}
func (deleteTopicByID) command()     {}
func (growTopic) command()           {}
func (alterConfigs) command()        {}
func (allocateProducerIDs) command() {}
func (createMirror) command()        {}
func (removeMirror) command()        {}
func (startHead) command()           {}
func (startTopic) command()          {}
func (setHead) command()             {}
func (setTopic) command()            {}
func (recoverHead) command()         {}
func (recoverTopic) command()        {}
func (writeState) command()          {}
func (bumpEpoch) command()           {}
func (alterScram) command()          {}
func (alterQuotas) command()         {}
func (createACL) command()           {}
func (deleteACLs) command()          {}

// Decide answers the changes that carry a command out on an image, or why it is
// refused. It is a function of its arguments alone. No changes and no error:
// what was asked is so already.
func Decide(img *metadata.Image, cmd Command) ([]Change, error) {
	switch c := cmd.(type) {
	case registerBroker:
		return decideRegisterBroker(img, c)
	case createTopic:
		return decideCreateTopic(img, c)
	case deleteTopicByID:
		return decideDeleteTopic(img, c)
	case growTopic:
		return decideGrowTopic(img, c)
	case alterConfigs:
		return decideAlterConfigs(img, c)
	case allocateProducerIDs:
		return decideAllocateProducerIDs(img, c)
	case createMirror:
		return decideCreateMirror(img, c)
	case removeMirror:
		return decideRemoveMirror(img, c)
	case startHead:
		return decideStartHead(img, c)
	case startTopic:
		return decideStartTopic(img, c)
	case setHead:
		return decideSetHead(img, c)
	case setTopic:
		return decideSetTopic(img, c)
	case recoverHead:
		return nil, requireMirror(img, c.mirror)
	case recoverTopic:
		return decideRecoverTopic(img, c)
	case writeState:
		return decideWriteState(img, c)
	case bumpEpoch:
		return decideBumpEpoch(img, c)
	case alterScram:
		return decideAlterScram(img, c)
	case alterQuotas:
		return decideAlterQuotas(img, c)
	case createACL:
		return decideCreateACL(img, c)
	case deleteACLs:
		return decideDeleteACLs(img, c)
	}
	return nil, fmt.Errorf("%w: command %T", ErrInvalidRequest, cmd)
}

// decideRegisterBroker lets a new incarnation lead again what it led, in a leader
// epoch one higher: whoever still holds the old epoch is fenced, the broker's own
// former process included. The broker's record comes last, so that a registration
// cut short is not taken for one that was finished.
func decideRegisterBroker(img *metadata.Image, c registerBroker) ([]Change, error) {
	if c.ID < 0 {
		return nil, fmt.Errorf("%w: broker id %d", ErrInvalidRequest, c.ID)
	}
	epoch := img.Revision + 1
	if old := img.Broker(c.ID); old != nil {
		if old.Incarnation == c.Incarnation && !old.Fenced {
			return nil, nil
		}
		epoch = max(epoch, old.Epoch+1)
	}
	var changes []Change
	for t := range img.AllTopics() {
		for _, p := range t.Partitions {
			leads := p.Leader == c.ID || p.Leader == -1 && slices.Contains(p.ISR, c.ID)
			if !leads {
				continue
			}
			next := *p
			next.Leader = c.ID
			next.LeaderEpoch++
			next.PartitionEpoch++
			changes = append(changes, putPartition{t.ID, &next})
		}
	}
	return append(changes, putBroker{&metadata.Broker{
		ID: c.ID, Incarnation: c.Incarnation, Epoch: epoch, Rack: c.Rack, Endpoints: slices.Clone(c.Endpoints),
	}}), nil
}

func decideAllocateProducerIDs(img *metadata.Image, c allocateProducerIDs) ([]Change, error) {
	if c.n < 1 {
		return nil, fmt.Errorf("%w: %d producer ids", ErrInvalidRequest, c.n)
	}
	next := img.NextProducerID + int64(c.n)
	if next < img.NextProducerID {
		return nil, fmt.Errorf("%w: producer ids are used up", ErrInvalidRequest)
	}
	return []Change{setProducerIDs{next}}, nil
}

// decideBumpEpoch raises a leader epoch above a minimum, leader and ISR unchanged
// (W32). A partition without a leader is raised as well (O14).
func decideBumpEpoch(img *metadata.Image, c bumpEpoch) ([]Change, error) {
	t := img.TopicByID(c.Topic)
	if t == nil {
		return nil, fmt.Errorf("raise leader epoch: %w: %s", ErrUnknownTopicID, c.Topic)
	}
	p := t.Partition(c.Partition)
	switch {
	case p == nil:
		return nil, fmt.Errorf("raise leader epoch: %w: %s-%d", ErrUnknownTopic, t.Name, c.Partition)
	case p.LeaderEpoch > c.MinLeaderEpoch:
		return nil, nil
	case c.MinLeaderEpoch+1 < 0:
		return nil, fmt.Errorf("raise leader epoch of %s-%d: %w: no epoch is above %d", t.Name, p.Index, ErrInvalidRequest, c.MinLeaderEpoch)
	}
	next := *p
	next.LeaderEpoch = c.MinLeaderEpoch + 1
	next.PartitionEpoch++
	return []Change{putPartition{t.ID, &next}}, nil
}

// decideAlterConfigs changes one resource, all operations or none.
func decideAlterConfigs(img *metadata.Image, c alterConfigs) ([]Change, error) {
	switch c.Type {
	case ResourceTopic:
		return alterTopic(img, c.AlterConfigs)
	case ResourceBroker:
		return alterBroker(img, c.AlterConfigs)
	case ResourceGroup:
		return alterGroup(img, c.AlterConfigs)
	case ResourceMirror:
		return alterMirror(img, c.AlterConfigs)
	}
	return nil, fmt.Errorf("%w: config resource type %d", ErrInvalidRequest, c.Type)
}

func alterTopic(img *metadata.Image, a AlterConfigs) ([]Change, error) {
	t := img.Topic(a.Name)
	if t == nil {
		return nil, fmt.Errorf("alter configs: %w: %s", ErrUnknownTopic, a.Name)
	}
	for _, op := range a.Ops {
		if op.Name == metadata.MirrorNameConfig {
			return nil, fmt.Errorf("alter configs of topic %s: %w: %s is changed by mirror requests only (M4)", t.Name, ErrInvalidRequest, op.Name)
		}
	}
	configs, err := applyOps(t.Configs, a.Ops, metadata.TopicConfigDef, nil)
	if err == nil {
		err = metadata.ValidateTopicConfigs(configs)
	}
	if err != nil {
		return nil, fmt.Errorf("alter configs of topic %s: %w", t.Name, err)
	}
	if maps.Equal(configs, t.Configs) {
		return nil, nil
	}
	return []Change{putTopic{t.ID, t.Name, t.Internal, int32(len(t.Partitions)), configs}}, nil
}

func alterBroker(img *metadata.Image, a AlterConfigs) ([]Change, error) {
	id, err := brokerResource(img, a.Name)
	if err != nil {
		return nil, fmt.Errorf("alter configs: %w", err)
	}
	cur := img.BrokerConfigs(id)
	configs, err := applyOps(cur, a.Ops, metadata.BrokerConfigDef, nil)
	if err == nil {
		err = metadata.ValidateBrokerConfigs(configs)
	}
	if err == nil {
		err = checkBroker(img, id, a.Static, configs)
	}
	if err != nil {
		return nil, fmt.Errorf("alter configs of broker %q: %w", a.Name, err)
	}
	if maps.Equal(configs, cur) {
		return nil, nil
	}
	return []Change{setBrokerConfigs{id, configs}}, nil
}

func alterMirror(img *metadata.Image, a AlterConfigs) ([]Change, error) {
	m := img.Mirror(a.Name)
	if m == nil {
		return nil, fmt.Errorf("alter configs: %w: %s", ErrUnknownMirror, a.Name)
	}
	ops := slices.Clone(a.Ops)
	for i := range ops {
		ops[i].Name = metadata.CanonicalMirrorConfig(ops[i].Name)
		d := metadata.MirrorConfigDef(ops[i].Name)
		if d != nil && (d.ReadOnly || ops[i].Name == metadata.MirrorBootstrapServers && ops[i].Op == ConfigDelete) {
			return nil, fmt.Errorf("alter configs of mirror %s: %w: %s cannot be removed or replaced (C7)", m.Name, ErrInvalidConfig, ops[i].Name)
		}
	}
	configs, err := applyOps(m.Configs, ops, metadata.MirrorConfigDef, m.Config)
	if err == nil {
		configs, _, err = metadata.ValidateMirrorConfigs(configs)
	}
	if err != nil {
		return nil, fmt.Errorf("alter configs of mirror %s: %w", m.Name, err)
	}
	next := &metadata.Mirror{Name: m.Name, Configs: configs, Unopened: maps.Clone(m.Unopened)}
	for _, op := range ops {
		delete(next.Unopened, op.Name)
	}
	if maps.Equal(configs, m.Configs) && maps.Equal(next.Unopened, m.Unopened) {
		return nil, nil
	}
	return []Change{putMirror{next}}, nil
}
