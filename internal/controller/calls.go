package controller

import (
	"context"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func (c *Controller) defaults() defaults {
	return defaults{
		Partitions: c.o.DefaultPartitions, ReplicationFactor: c.o.DefaultReplicationFactor, MaxPartitions: c.o.MaxPartitionsPerTopic,
		MinISR: c.o.DefaultMinISR, Unclean: c.o.DefaultUncleanElection,
	}
}

// CreateTopics creates topics, each for itself.
func (c *Controller) CreateTopics(ctx context.Context, topics []CreateTopic, validateOnly bool) []TopicResult {
	results := make([]TopicResult, len(topics))
	cmds := make([]Command, len(topics))
	for i, t := range topics {
		results[i].Name = t.Name
		id, err := metadata.NewTopicID(c.o.Rand)
		if err != nil {
			return failAll(results, err)
		}
		cmds[i] = createTopic{CreateTopic: t, NewID: id, Defaults: c.defaults()}
	}
	rep := c.do(ctx, validateOnly, false, cmds)
	for i, cmd := range cmds {
		t := cmd.(createTopic)
		rep.done(i, ErrTopicExists, func(img *metadata.Image) bool {
			made := img.Topic(t.Name)
			return made != nil && (made.ID == t.NewID || made.ID == t.ID)
		})
	}
	return c.topicResults(results, rep, 0)
}

// DeleteTopics deletes topics by id, each for itself.
func (c *Controller) DeleteTopics(ctx context.Context, ids []metadata.TopicID) []TopicResult {
	img := c.Image()
	results := make([]TopicResult, len(ids))
	cmds := make([]Command, len(ids))
	for i, id := range ids {
		if t := img.TopicByID(id); t != nil {
			results[i].Name = t.Name
		}
		cmds[i] = deleteTopicByID{id}
	}
	rep := c.do(ctx, false, false, cmds)
	for i := range cmds {
		rep.done(i, ErrUnknownTopicID, always)
	}
	return c.topicResults(results, rep, 0)
}

// CreatePartitions grows topics, each for itself.
func (c *Controller) CreatePartitions(ctx context.Context, topics []CreatePartitions, validateOnly bool) []TopicResult {
	results := make([]TopicResult, len(topics))
	cmds := make([]Command, len(topics))
	for i, t := range topics {
		results[i].Name = t.Topic
		cmds[i] = growTopic{t, c.defaults()}
	}
	rep := c.do(ctx, validateOnly, false, cmds)
	for i, t := range topics {
		rep.done(i, ErrInvalidPartitions, func(img *metadata.Image) bool {
			grown := img.Topic(t.Topic)
			return grown != nil && len(grown.Partitions) == int(t.Total)
		})
	}
	return c.topicResults(results, rep, 0)
}

// AlterConfigs changes configs, each resource for itself.
func (c *Controller) AlterConfigs(ctx context.Context, resources []AlterConfigs, validateOnly bool) []error {
	cmds := make([]Command, len(resources))
	for i, r := range resources {
		cmds[i] = alterConfigs{r, c.defaults()}
	}
	return itemErrors(c.do(ctx, validateOnly, false, cmds), len(cmds))
}

// AlterQuotas changes client quotas, each entity for itself.
func (c *Controller) AlterQuotas(ctx context.Context, entities []AlterQuotas, validateOnly bool) []error {
	cmds := make([]Command, len(entities))
	for i, e := range entities {
		cmds[i] = alterQuotas{e}
	}
	return itemErrors(c.do(ctx, validateOnly, false, cmds), len(cmds))
}

// AllocateProducerIDs hands out n producer ids that nobody else gets.
func (c *Controller) AllocateProducerIDs(ctx context.Context, n int32) (first int64, err error) {
	rep := c.submit(ctx, true, allocateProducerIDs{n})
	if rep.err != nil {
		return 0, fmt.Errorf("allocate producer ids: %w", rep.err)
	}
	return rep.items[0].changes[0].(setProducerIDs).Next - int64(n), nil
}

// CreateMirror stores a mirror (9.1). Nothing is mirrored by it.
func (c *Controller) CreateMirror(ctx context.Context, name string, configs map[string]string) error {
	return c.submit(ctx, true, createMirror{name, configs}).err
}

// DeleteMirror removes a mirror whose topics are all STOPPED, and makes them
// ordinary topics (9.17). Their LMEs are lost: a later failback copies everything
// (W64).
func (c *Controller) DeleteMirror(ctx context.Context, name string, validation int64) error {
	return c.submit(ctx, true, removeMirror{name, validation}).err
}

// StartMirrorTopics attaches topics to a mirror, creating those that are missing
// (9.2). The error is for the request as a whole, results are per topic (P16). A
// topic whose partition count is not known is not created yet: no error, no topic.
func (c *Controller) StartMirrorTopics(ctx context.Context, r StartMirrorTopics) ([]TopicResult, error) {
	results := make([]TopicResult, len(r.Topics))
	cmds := []Command{startHead{r}}
	img := c.Image()
	for i, t := range r.Topics {
		results[i].Name = t.Name
		if img.Topic(t.Name) == nil {
			_, results[i].SkippedConfigs = sourceConfigs(t.Configs)
		}
		id, err := metadata.NewTopicID(c.o.Rand)
		if err != nil {
			return nil, err
		}
		cmds = append(cmds, startTopic{Mirror: r.Mirror, Topic: t, NewID: id, Defaults: c.defaults()})
	}
	return c.mirrorResults(ctx, results, cmds)
}

// SetMirrorTopics stops, pauses or resumes topics of a mirror. It returns when
// that is durable; partitions follow (W58).
func (c *Controller) SetMirrorTopics(ctx context.Context, r SetMirrorTopics) ([]TopicResult, error) {
	results := make([]TopicResult, len(r.Topics))
	cmds := []Command{setHead{r}}
	for i, t := range r.Topics {
		results[i].Name = t
		cmds = append(cmds, setTopic{r.Mirror, t, r.Desired})
	}
	return c.mirrorResults(ctx, results, cmds)
}

// RecoverMirrorTopics takes FAILED partitions out of FAILED (S20). No topics: every
// topic of the mirror that has one.
func (c *Controller) RecoverMirrorTopics(ctx context.Context, mirror string, topics []string) ([]TopicResult, error) {
	all := len(topics) == 0
	if all {
		for _, t := range c.Image().MirrorTopics(mirror) {
			topics = append(topics, t.Name)
		}
	}
	results := make([]TopicResult, len(topics))
	cmds := []Command{recoverHead{mirror}}
	for i, t := range topics {
		results[i].Name = t
		cmds = append(cmds, recoverTopic{mirror, t, all})
	}
	return c.mirrorResults(ctx, results, cmds)
}

// WriteMirrorStates writes states of mirror partitions, each for itself (8.3).
func (c *Controller) WriteMirrorStates(ctx context.Context, mirror string, writes []MirrorStateWrite) []MirrorStateResult {
	results := make([]MirrorStateResult, len(writes))
	cmds := make([]Command, len(writes))
	for i, w := range writes {
		cmds[i] = writeState{mirror, w}
	}
	rep := c.do(ctx, false, false, cmds)
	img := rep.img
	if img == nil {
		img = c.Image()
	}
	for i, w := range writes {
		results[i].StateEpoch = -1
		if t := img.TopicByID(w.Topic); t != nil {
			if p := t.Partition(w.Partition); p != nil && p.Mirror != nil && p.Mirror.Mirror == mirror {
				results[i].StateEpoch = p.Mirror.StateEpoch
			}
		}
		if results[i].Err = rep.err; rep.err == nil {
			results[i].Err = rep.items[i].err
			for _, ch := range rep.items[i].changes {
				if ch, ok := ch.(putState); ok {
					results[i].StateEpoch = ch.State.StateEpoch
				}
			}
		}
	}
	return results
}

// BumpLeaderEpochs raises leader epochs above minima, each for itself (W32).
func (c *Controller) BumpLeaderEpochs(ctx context.Context, bumps []Bump) []error {
	cmds := make([]Command, len(bumps))
	for i, b := range bumps {
		cmds[i] = bumpEpoch{b}
	}
	return itemErrors(c.do(ctx, false, false, cmds), len(cmds))
}

// AlterScram changes SCRAM credentials, each user for itself.
func (c *Controller) AlterScram(ctx context.Context, users []AlterScram) []error {
	cmds := make([]Command, len(users))
	for i, u := range users {
		cmds[i] = alterScram{u}
	}
	return itemErrors(c.do(ctx, false, false, cmds), len(cmds))
}

// DeriveSecret is a secret of this cluster for one purpose, the same at every
// start. It tells nothing about the key that seals, or about other purposes.
func (c *Controller) DeriveSecret(purpose string) []byte { return c.codec.seal.derive(purpose) }

// do submits commands, or only decides them.
func (c *Controller) do(ctx context.Context, validateOnly, headed bool, cmds []Command) reply {
	switch {
	case len(cmds) == 0:
		return reply{img: c.Image()}
	case validateOnly:
		return c.dry(ctx, headed, cmds...)
	}
	return c.submit(ctx, headed, cmds...)
}

func (c *Controller) mirrorResults(ctx context.Context, results []TopicResult, cmds []Command) ([]TopicResult, error) {
	rep := c.do(ctx, false, true, cmds)
	if rep.err != nil {
		return nil, rep.err
	}
	return c.topicResults(results, rep, 1), nil
}

// topicResults fills in what became of each topic; the first skip commands of the
// request are not about one.
func (c *Controller) topicResults(results []TopicResult, rep reply, skip int) []TopicResult {
	if rep.err != nil {
		return failAll(results, rep.err)
	}
	for i := range results {
		results[i].Err = rep.items[i+skip].err
		results[i].Topic = rep.img.Topic(results[i].Name)
	}
	return results
}

func failAll(results []TopicResult, err error) []TopicResult {
	for i := range results {
		results[i].Err = err
	}
	return results
}

func itemErrors(rep reply, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		if errs[i] = rep.err; rep.err == nil {
			errs[i] = rep.items[i].err
		}
	}
	return errs
}
