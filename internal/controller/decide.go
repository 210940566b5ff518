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
// It is what the file of the node says that was asked; what was set for all brokers
// while they ran stands in the image and goes before it.
type defaults struct {
	Partitions        int32
	ReplicationFactor int16
	MaxPartitions     int32
	// MinISR and Unclean are the defaults of min.insync.replicas and
	// unclean.leader.election.enable.
	MinISR  int32
	Unclean bool
}

type (
	registerBroker struct {
		RegisterBroker
		// Ended says that the session of the registration before has ended, or that
		// its process cannot be there any more.
		Ended bool
		// Unheard are brokers that nobody has heard of in this controller's term:
		// unfenced, and perhaps long gone.
		Unheard  []int32
		Defaults defaults
	}
	unregisterBroker struct {
		ID       int32
		Defaults defaults
	}
	fenceBrokers struct {
		Brokers  []BrokerEpoch
		Defaults defaults
	}
	// unfenceBroker's Revision is that of the image which the broker has.
	unfenceBroker struct {
		BrokerEpoch
		Revision int64
		Unheard  []int32
		Defaults defaults
	}
	// drainBroker begins or goes on with a controlled shutdown.
	drainBroker struct {
		BrokerEpoch
		Max      int // partitions at once
		Defaults defaults
	}
	// resignReplicas takes replicas out that their broker cannot use.
	resignReplicas struct {
		BrokerEpoch
		Replicas []OfflineReplica
		Unheard  []int32
		Defaults defaults
	}
	// electOffline elects leaders for partitions without one, if that can be done
	// cleanly.
	electOffline struct {
		Unheard  []int32
		Defaults defaults
	}
	electLeader struct {
		ElectLeader
		Defaults defaults
	}
	// electUnclean makes a replica outside of ISR and ELR lead. The policy was asked.
	electUnclean struct {
		Topic     metadata.TopicID
		Partition int32
		Leader    int32
		// Unusable are replicas of it whose brokers cannot use them, as far as the active
		// controller has heard.
		Unusable []int32
		Defaults defaults
	}
	// electLongest makes the replica lead whose log reaches furthest, after all that
	// had every record came back from an unclean stop (rule 8).
	electLongest struct {
		Topic     metadata.TopicID
		Partition int32
		Leader    int32
		Reported  []int32
		Defaults  defaults
	}
	alterISR struct {
		Broker BrokerEpoch
		AlterISR
		Defaults defaults
	}
	reassign struct {
		Reassign
		AllowRFChange bool
		Defaults      defaults
	}
	createTopic struct {
		CreateTopic
		NewID    metadata.TopicID // used if CreateTopic names no id
		Defaults defaults
	}
	deleteTopicByID struct{ ID metadata.TopicID }
	growTopic       struct {
		CreatePartitions
		Defaults defaults
	}
	alterConfigs struct {
		AlterConfigs
		Defaults defaults
	}
	allocateProducerIDs struct{ N int32 }
	createMirror        struct {
		Name    string
		Configs map[string]string
	}
	removeMirror struct {
		Name       string
		Validation int64
	}
	// A mirror request of several topics is one head, which checks the request
	// as a whole and changes the mirror's filters, and a command per topic.
	startHead  struct{ StartMirrorTopics }
	startTopic struct {
		Mirror   string
		Topic    MirrorTopic
		NewID    metadata.TopicID
		Defaults defaults
	}
	setHead  struct{ SetMirrorTopics }
	setTopic struct {
		Mirror, Topic string
		Desired       metadata.Desired
	}
	recoverHead  struct{ Mirror string }
	recoverTopic struct {
		Mirror, Topic string
		All           bool // the whole mirror was named, not this topic
	}
	writeState struct {
		Mirror string
		MirrorStateWrite
	}
	bumpEpoch   struct{ Bump }
	alterScram  struct{ AlterScram }
	alterQuotas struct{ AlterQuotas }
	createACL   struct{ ACL metadata.ACL }
	deleteACLs  struct{ Filter metadata.ACLFilter }
	copyACL     struct{ CopyACL }
)

func (registerBroker) command()      {}
func (unregisterBroker) command()    {}
func (fenceBrokers) command()        {}
func (unfenceBroker) command()       {}
func (drainBroker) command()         {}
func (resignReplicas) command()      {}
func (electOffline) command()        {}
func (electLeader) command()         {}
func (electUnclean) command()        {}
func (electLongest) command()        {}
func (alterISR) command()            {}
func (reassign) command()            {}
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
func (copyACL) command()             {}

// Decide answers the changes that carry a command out on an image, or why it is
// refused. It is a function of its arguments alone. No changes and no error:
// what was asked is so already.
func Decide(img *metadata.Image, cmd Command) ([]Change, error) {
	switch c := cmd.(type) {
	case registerBroker:
		return decideRegisterBroker(img, c)
	case unregisterBroker:
		return decideUnregisterBroker(img, c)
	case fenceBrokers:
		return decideFenceBrokers(img, c)
	case unfenceBroker:
		return decideUnfenceBroker(img, c)
	case drainBroker:
		return decideDrainBroker(img, c)
	case resignReplicas:
		return decideResignReplicas(img, c)
	case electOffline:
		return decideElectOffline(img, c)
	case electLeader:
		return decideElectLeader(img, c)
	case electUnclean:
		return decideElectUnclean(img, c)
	case electLongest:
		return decideElectLongest(img, c)
	case alterISR:
		return decideAlterISR(img, c)
	case reassign:
		return decideReassign(img, c)
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
		return nil, requireMirror(img, c.Mirror)
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
	case copyACL:
		return decideCopyACL(img, c)
	}
	return nil, fmt.Errorf("%w: command %T", ErrInvalidRequest, cmd)
}

func decideAllocateProducerIDs(img *metadata.Image, c allocateProducerIDs) ([]Change, error) {
	if c.N < 1 {
		return nil, fmt.Errorf("%w: %d producer ids", ErrInvalidRequest, c.N)
	}
	next := img.NextProducerID + int64(c.N)
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
	return []Change{putPartition{ID: t.ID, Partition: &next}}, nil
}

// decideAlterConfigs changes one resource, all operations or none.
func decideAlterConfigs(img *metadata.Image, c alterConfigs) ([]Change, error) {
	switch c.Type {
	case ResourceTopic:
		return alterTopic(img, c)
	case ResourceBroker:
		return alterBroker(img, c)
	case ResourceGroup:
		return alterGroup(img, c.AlterConfigs)
	case ResourceMirror:
		return alterMirror(img, c.AlterConfigs)
	}
	return nil, fmt.Errorf("%w: config resource type %d", ErrInvalidRequest, c.Type)
}

func alterTopic(img *metadata.Image, a alterConfigs) ([]Change, error) {
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
	next := *t
	next.Configs = configs
	r := replicasOf(img, a.Defaults)
	return append(r.shrinkELR(nil, t, &next), putTopic{t.ID, t.Name, t.Internal, int32(len(t.Partitions)), configs, t.Life}), nil
}

func alterBroker(img *metadata.Image, a alterConfigs) ([]Change, error) {
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
	if _, ok := configs[metadata.MinISRConfig]; ok && id != metadata.DefaultBroker {
		return nil, fmt.Errorf("alter configs of broker %q: %w: %s is set for all brokers (an empty name) or for topics: elections depend on it, whoever leads (KIP-966)",
			a.Name, metadata.ErrInvalidConfig, metadata.MinISRConfig)
	}
	return append(minISRChange(img, a.Defaults, id, configs), setBrokerConfigs{id, configs}), nil
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
