package controller

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func decideCreateTopic(img *metadata.Image, c createTopic) ([]Change, error) {
	if err := checkNewTopic(img, c.Name, c.ID); err != nil {
		return nil, err
	}
	if _, ok := c.Configs[metadata.MirrorNameConfig]; ok {
		return nil, fmt.Errorf("create topic %s: %w: %s is changed by mirror requests only (M4)", c.Name, ErrInvalidRequest, metadata.MirrorNameConfig)
	}
	if err := metadata.ValidateTopicConfigs(c.Configs); err != nil {
		return nil, fmt.Errorf("create topic %s: %w", c.Name, err)
	}
	replicas, err := assign(img, c)
	if err != nil {
		return nil, fmt.Errorf("create topic %s: %w", c.Name, err)
	}
	id := c.ID
	if id.IsZero() {
		id = c.newID
	}
	return newTopic(id, c.Name, c.Internal, replicas, c.Configs), nil
}

// checkNewTopic refuses names and ids that cannot become a topic.
func checkNewTopic(img *metadata.Image, name string, id metadata.TopicID) error {
	if err := metadata.ValidateTopicName(name); err != nil {
		return fmt.Errorf("create topic: %w: %w", ErrInvalidTopic, err)
	}
	if img.Topic(name) != nil {
		return fmt.Errorf("create topic: %w: %s", ErrTopicExists, name)
	}
	if other := img.CollidingTopic(name); other != "" {
		return fmt.Errorf("create topic: %w: %s collides with %s, because metric names turn '.' into '_'", ErrInvalidTopic, name, other)
	}
	if id.IsZero() {
		return nil
	}
	if id.Reserved() {
		return fmt.Errorf("create topic %s: %w: the id %s is reserved", name, ErrInvalidRequest, id)
	}
	if other := img.TopicByID(id); other != nil {
		return fmt.Errorf("create topic %s: %w: the id %s belongs to %s", name, ErrTopicExists, id, other.Name)
	}
	return nil
}

// newTopic is a topic's changes, its record last.
func newTopic(id metadata.TopicID, name string, internal bool, replicas [][]int32, configs map[string]string) []Change {
	changes := newPartitions(id, 0, replicas)
	return append(changes, putTopic{id, name, internal, int32(len(replicas)), maps.Clone(configs)})
}

func newPartitions(id metadata.TopicID, first int32, replicas [][]int32) []Change {
	changes := make([]Change, 0, len(replicas)+2)
	for i, r := range replicas {
		changes = append(changes, putPartition{id, &metadata.Partition{
			Index: first + int32(i), Replicas: r, ISR: slices.Clone(r), Leader: r[0],
		}})
	}
	return changes
}

// assign answers the replicas of every partition of a new topic.
func assign(img *metadata.Image, c createTopic) ([][]int32, error) {
	if c.Assignment != nil {
		return manualAssignment(img, c)
	}
	partitions, rf := c.Partitions, c.ReplicationFactor
	if partitions == -1 || partitions == 0 {
		partitions = c.defaults.partitions
	}
	if rf == -1 || rf == 0 {
		rf = c.defaults.replicationFactor
	}
	if partitions < 1 || partitions > c.defaults.maxPartitions {
		return nil, fmt.Errorf("%w: %d, must be 1 to %d", ErrInvalidPartitions, partitions, c.defaults.maxPartitions)
	}
	return place(img, c.Name, 0, partitions, rf)
}

func manualAssignment(img *metadata.Image, c createTopic) ([][]int32, error) {
	if c.Partitions > 0 || c.ReplicationFactor > 0 {
		return nil, fmt.Errorf("%w: an assignment and a count of partitions or replicas exclude each other", ErrInvalidRequest)
	}
	if n := len(c.Assignment); n == 0 || n > int(c.defaults.maxPartitions) {
		return nil, fmt.Errorf("%w: %d, must be 1 to %d", ErrInvalidPartitions, n, c.defaults.maxPartitions)
	}
	replicas := make([][]int32, len(c.Assignment))
	for i := range replicas {
		r, ok := c.Assignment[int32(i)]
		if !ok {
			return nil, fmt.Errorf("%w: partitions must be numbered from 0 without holes; %d is missing", ErrInvalidReplicaAssignment, i)
		}
		replicas[i] = slices.Clone(r)
	}
	return replicas, checkReplicas(img, replicas, len(replicas[0]))
}

// checkReplicas wants known, living, distinct brokers, the same number each.
func checkReplicas(img *metadata.Image, replicas [][]int32, rf int) error {
	for i, r := range replicas {
		if len(r) == 0 || len(r) != rf {
			return fmt.Errorf("%w: partition %d has %d replicas, others %d", ErrInvalidReplicaAssignment, i, len(r), rf)
		}
		for j, id := range r {
			if b := img.Broker(id); b == nil || b.Fenced {
				return fmt.Errorf("%w: partition %d: broker %d is not registered or not alive", ErrInvalidReplicaAssignment, i, id)
			}
			if slices.Contains(r[:j], id) {
				return fmt.Errorf("%w: partition %d: broker %d stands twice", ErrInvalidReplicaAssignment, i, id)
			}
		}
	}
	return nil
}

// place spreads n partitions from first on over the living brokers, round robin
// from a start that the topic's name gives, so that small topics do not all
// begin at the same broker. Racks are not looked at.
func place(img *metadata.Image, topic string, first, n int32, rf int16) ([][]int32, error) {
	var alive []int32
	for _, b := range img.Brokers() {
		if !b.Fenced {
			alive = append(alive, b.ID)
		}
	}
	if rf < 1 || int(rf) > len(alive) {
		return nil, fmt.Errorf("%w: %d, there are %d living brokers", ErrInvalidReplicationFactor, rf, len(alive))
	}
	h := fnv.New32a()
	h.Write([]byte(topic))
	start := int(h.Sum32() % uint32(len(alive)))
	replicas := make([][]int32, n)
	for i := range replicas {
		replicas[i] = make([]int32, rf)
		for j := range replicas[i] {
			replicas[i][j] = alive[(start+int(first)+i+j)%len(alive)]
		}
	}
	return replicas, nil
}

// decideDeleteTopic removes a topic with all that is recorded about it, its
// mirror states and LMEs included (9.17).
func decideDeleteTopic(img *metadata.Image, c deleteTopicByID) ([]Change, error) {
	t := img.TopicByID(c.id)
	if t == nil {
		return nil, fmt.Errorf("delete topic: %w: %s", ErrUnknownTopicID, c.id)
	}
	if err := refuseMirroring(t); err != nil {
		return nil, fmt.Errorf("delete topic %s: %w", t.Name, err)
	}
	changes := []Change{deleteTopic{t.ID}}
	if t.MirrorRevision != 0 {
		changes = append(changes, deleteAttachment{t.ID})
	}
	for _, p := range t.Partitions {
		if p.Mirror != nil {
			changes = append(changes, deleteState{t.ID, p.Index})
		}
		changes = append(changes, deletePartition{t.ID, p.Index})
	}
	return changes, nil
}

// refuseMirroring refuses what may be done only to an ordinary topic, or to one
// whose failover is complete (10.5).
func refuseMirroring(t *metadata.Topic) error {
	if a := t.Attachment(); a.Desired != metadata.DesiredNone && !t.Stopped() {
		return fmt.Errorf("%w: it is mirrored by %s and not stopped", ErrMirrorStates, a.Mirror)
	}
	return nil
}

func decideGrowTopic(img *metadata.Image, c growTopic) ([]Change, error) {
	t := img.Topic(c.Topic)
	if t == nil {
		return nil, fmt.Errorf("create partitions: %w: %s", ErrUnknownTopic, c.Topic)
	}
	changes, err := growth(img, t, c)
	if err != nil {
		return nil, fmt.Errorf("create partitions of %s: %w", t.Name, err)
	}
	return changes, nil
}

func growth(img *metadata.Image, t *metadata.Topic, c growTopic) ([]Change, error) {
	have := int32(len(t.Partitions))
	switch {
	case c.FromMirror:
		if t.Attachment().Desired == metadata.DesiredNone {
			return nil, fmt.Errorf("%w: it is in no mirror", ErrTopicNotInMirror)
		}
		if c.Total <= have {
			return nil, nil
		}
	default:
		if err := refuseMirroring(t); err != nil {
			return nil, err
		}
	}
	if c.Total <= have {
		return nil, fmt.Errorf("%w: it has %d partitions already, %d were asked for", ErrInvalidPartitions, have, c.Total)
	}
	if c.Total > c.defaults.maxPartitions {
		return nil, fmt.Errorf("%w: %d, at most %d", ErrInvalidPartitions, c.Total, c.defaults.maxPartitions)
	}
	replicas, err := growthReplicas(img, t, c, have)
	if err != nil {
		return nil, err
	}
	changes := newPartitions(t.ID, have, replicas)
	return append(changes, putTopic{t.ID, t.Name, t.Internal, c.Total, t.Configs}), nil
}

func growthReplicas(img *metadata.Image, t *metadata.Topic, c growTopic, have int32) ([][]int32, error) {
	rf := len(t.Partitions[0].Replicas)
	if c.Assignment == nil {
		return place(img, t.Name, have, c.Total-have, int16(rf))
	}
	if len(c.Assignment) != int(c.Total-have) {
		return nil, fmt.Errorf("%w: %d partitions are new, %d are assigned", ErrInvalidReplicaAssignment, c.Total-have, len(c.Assignment))
	}
	replicas := make([][]int32, len(c.Assignment))
	for i, r := range c.Assignment {
		replicas[i] = slices.Clone(r)
	}
	return replicas, checkReplicas(img, replicas, rf)
}
