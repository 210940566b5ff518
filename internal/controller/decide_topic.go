package controller

import (
	"fmt"
	"maps"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
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
		id = c.NewID
	}
	var lives metadata.Lives
	if !c.ID.IsZero() {
		lives = img.Lives
	}
	changes, err := newTopic(img, id, c.Name, c.Internal, replicas, c.Configs, lives)
	if err != nil {
		return nil, fmt.Errorf("create topic %s: %w", c.Name, err)
	}
	return changes, nil
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

// newTopic is a topic's changes, its record last. lives is zero where the id is new.
func newTopic(img *metadata.Image, id metadata.TopicID, name string, internal bool, replicas [][]int32, configs map[string]string, lives metadata.Lives) ([]Change, error) {
	changes, err := newPartitions(img, id, 0, replicas, lives)
	return append(changes, putTopic{id, name, internal, int32(len(replicas)), maps.Clone(configs), lives.Barrier}), err
}

// newPartitions are led by the first of their replicas that is alive, and in sync are
// those that are.
func newPartitions(img *metadata.Image, id metadata.TopicID, first int32, replicas [][]int32, lives metadata.Lives) ([]Change, error) {
	changes := make([]Change, 0, len(replicas)+2)
	for i, r := range replicas {
		isr := slices.DeleteFunc(slices.Clone(r), func(id int32) bool { return !img.Broker(id).Eligible() })
		if len(isr) == 0 {
			return nil, fmt.Errorf("%w: partition %d: no broker of %v is alive", ErrInvalidReplicaAssignment, first+int32(i), r)
		}
		p := &metadata.Partition{Index: first + int32(i), Replicas: r, ISR: isr, Leader: isr[0]}
		if !invariants.Planted("livesForgotten") {
			lives.Begin(p)
		}
		if lives != (metadata.Lives{}) {
			// A deletion that was cut short may have left what a mirror recorded of an
			// earlier life.
			changes = append(changes, deleteState{id, p.Index})
		}
		changes = append(changes, putPartition{ID: id, Partition: p})
	}
	return changes, nil
}

// assign answers the replicas of every partition of a new topic.
func assign(img *metadata.Image, c createTopic) ([][]int32, error) {
	if c.Assignment != nil {
		return manualAssignment(img, c)
	}
	partitions, rf := c.Partitions, c.ReplicationFactor
	if partitions == -1 || partitions == 0 {
		partitions = c.Defaults.Partitions
	}
	if rf == -1 || rf == 0 {
		rf = c.Defaults.ReplicationFactor
	}
	if partitions < 1 || partitions > c.Defaults.MaxPartitions {
		return nil, fmt.Errorf("%w: %d, must be 1 to %d", ErrInvalidPartitions, partitions, c.Defaults.MaxPartitions)
	}
	return place(img, c.Name, nil, partitions, rf)
}

func manualAssignment(img *metadata.Image, c createTopic) ([][]int32, error) {
	if c.Partitions > 0 || c.ReplicationFactor > 0 {
		return nil, fmt.Errorf("%w: an assignment and a count of partitions or replicas exclude each other", ErrInvalidRequest)
	}
	if n := len(c.Assignment); n == 0 || n > int(c.Defaults.MaxPartitions) {
		return nil, fmt.Errorf("%w: %d, must be 1 to %d", ErrInvalidPartitions, n, c.Defaults.MaxPartitions)
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

// checkReplicas wants known, distinct brokers, the same number each.
func checkReplicas(img *metadata.Image, replicas [][]int32, rf int) error {
	for i, r := range replicas {
		if len(r) == 0 || len(r) != rf {
			return fmt.Errorf("%w: partition %d has %d replicas, others %d", ErrInvalidReplicaAssignment, i, len(r), rf)
		}
		for j, id := range r {
			if img.Broker(id) == nil {
				return fmt.Errorf("%w: partition %d: broker %d is not registered", ErrInvalidReplicaAssignment, i, id)
			}
			if slices.Contains(r[:j], id) {
				return fmt.Errorf("%w: partition %d: broker %d stands twice", ErrInvalidReplicaAssignment, i, id)
			}
		}
	}
	return nil
}

// decideDeleteTopic removes a topic with all that is recorded about it, its
// mirror states and LMEs included (9.17). What stays is where one of its id would begin.
func decideDeleteTopic(img *metadata.Image, c deleteTopicByID) ([]Change, error) {
	t := img.TopicByID(c.ID)
	if t == nil {
		return nil, fmt.Errorf("delete topic: %w: %s", ErrUnknownTopicID, c.ID)
	}
	if err := refuseMirroring(t); err != nil {
		return nil, fmt.Errorf("delete topic %s: %w", t.Name, err)
	}
	var changes []Change
	if after := img.Lives.After(t); after != img.Lives {
		changes = append(changes, setLives{after})
	}
	changes = append(changes, deleteTopic{t.ID})
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
	if c.Total > c.Defaults.MaxPartitions {
		return nil, fmt.Errorf("%w: %d, at most %d", ErrInvalidPartitions, c.Total, c.Defaults.MaxPartitions)
	}
	replicas, err := growthReplicas(img, t, c, have)
	if err != nil {
		return nil, err
	}
	var lives metadata.Lives
	if t.MirrorRevision != 0 { // its id is not its own: it may have had more partitions once
		lives = img.Lives
	}
	changes, err := newPartitions(img, t.ID, have, replicas, lives)
	if err != nil {
		return nil, err
	}
	return append(changes, putTopic{t.ID, t.Name, t.Internal, c.Total, t.Configs, t.Life}), nil
}

func growthReplicas(img *metadata.Image, t *metadata.Topic, c growTopic, have int32) ([][]int32, error) {
	// A reassignment may be under way, or have changed some of them.
	rf := len(minus(t.Partitions[0].Replicas, t.Partitions[0].AddingReplicas))
	if c.Assignment == nil {
		return place(img, t.Name, t.Partitions, c.Total-have, int16(rf))
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
