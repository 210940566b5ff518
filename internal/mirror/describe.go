package mirror

import (
	"context"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// Listing is one mirror in a list (key 98).
type Listing struct {
	Name            string
	SourceBootstrap string
	SourceClusterID string
	TopicCount      int      // topics asked to be mirrored
	Topics          []string // topics asked to be mirrored or paused
	// Origins are the clusters from which topics come beyond the source, as the source
	// told us.
	Origins map[string]source.Origin
}

// List lists all mirrors by name.
func (c *Coordinator) List() []Listing {
	img := c.image()
	var out []Listing
	for _, m := range img.Mirrors() {
		l := Listing{Name: m.Name, SourceBootstrap: m.Config(metadata.MirrorBootstrapServers), SourceClusterID: m.SourceClusterID()}
		for _, t := range mirroredTopics(img, m.Name) {
			l.Topics = append(l.Topics, t.Name)
			if p := c.m.peer(m.Name); p != nil {
				if o := p.originOf(t.Name); len(o.ClusterIDs) > 0 || o.Stale {
					if l.Origins == nil {
						l.Origins = make(map[string]source.Origin)
					}
					l.Origins[t.Name] = o
				}
			}
			if t.Attachment().Desired == metadata.DesiredMirroring {
				l.TopicCount++
			}
		}
		out = append(out, l)
	}
	return out
}

// Description is one mirror as key 99 tells it. Err is set, and Topics empty,
// for a mirror that was named and does not exist (P11).
type Description struct {
	Name   string
	Err    error
	Topics []DescribedTopic
	// Syncs are the mirror's recurring tasks, empty if the broker that does them does
	// not answer.
	Syncs []wire.MirrorSync
}

// DescribedTopic is one attached topic, stopped ones included.
type DescribedTopic struct {
	Name       string
	Partitions []DescribedPartition
}

// DescribedPartition is the state and the position of one partition. Offsets and
// lag are -1 while they mean nothing (P9), and while the partition's leader does not
// answer.
type DescribedPartition struct {
	Index             int32
	State             metadata.MirrorState
	SourceOffset      int64 // high watermark of the source at the last fetch
	DestinationOffset int64 // high watermark here
	Lag               int64
	RetryAttempt      int16 // -1: only recover, start or stop ends the failure
	ErrorMessage      string
	// Progress is what is known of the source, whatever the state; nil while the
	// topic is STOPPED.
	Progress *wire.MirrorProgress
}

// Describe tells of the named mirrors, or of all: any broker of all partitions
// (P8). States are the metadata's, offsets the leaders'.
func (c *Coordinator) Describe(ctx context.Context, names []string) []Description {
	img := c.image()
	if len(names) == 0 {
		for _, m := range img.Mirrors() {
			names = append(names, m.Name)
		}
	}
	out := make([]Description, 0, len(names))
	for _, name := range names {
		d := Description{Name: name}
		if img.Mirror(name) == nil {
			d.Err = fmt.Errorf("%w: %s", controller.ErrUnknownMirror, name)
		}
		topics := img.MirrorTopics(name)
		offsets, syncs := c.m.offsets(ctx, name, topics, false, func(t *metadata.Topic, p *metadata.Partition) bool {
			return t.MirrorState(p) != metadata.StateStopped
		})
		d.Syncs = syncs
		for _, t := range topics {
			dt := DescribedTopic{Name: t.Name, Partitions: make([]DescribedPartition, len(t.Partitions))}
			for i, p := range t.Partitions {
				o, known := offsets[nameKey{t.Name, p.Index}]
				dt.Partitions[i] = describe(t, p, o, known)
			}
			d.Topics = append(d.Topics, dt)
		}
		out = append(out, d)
	}
	return out
}

func describe(t *metadata.Topic, p *metadata.Partition, o wire.MirrorOffsets, known bool) DescribedPartition {
	d := DescribedPartition{Index: p.Index, State: t.MirrorState(p), SourceOffset: -1, DestinationOffset: -1, Lag: -1}
	if m := t.MirrorPartition(p); m != nil {
		d.RetryAttempt, d.ErrorMessage = m.RetryAttempt, m.ErrorMessage
	}
	if d.State != metadata.StateStopped {
		if d.Progress = o.Progress; d.Progress == nil { // its leader does not answer, or has just begun
			d.Progress = &wire.MirrorProgress{Contact: string(ContactUnknown), SourceSeen: -1, LogEnd: -1, HeardMillis: -1, LagMillis: -1, MilliRate: -1}
		}
	}
	if !known || !copies(d.State) || o.SourceOffset < 0 {
		return d
	}
	d.SourceOffset, d.DestinationOffset = o.SourceOffset, o.DestinationOffset
	d.Lag = max(0, d.SourceOffset-d.DestinationOffset)
	return d
}

// LocalOffsets is how far a partition is that this broker leads (key 107).
func (c *Coordinator) LocalOffsets(topic string, partition int32, epochs bool) (wire.MirrorOffsets, bool) {
	return c.m.LocalOffsets(topic, partition, epochs)
}

// LocalSyncs is how a mirror's recurring tasks do, if this broker does them (key 107).
func (c *Coordinator) LocalSyncs(mirror string) []wire.MirrorSync { return c.m.Syncs(mirror) }

// EpochQuery asks for the last mirrored epoch of a partition. A topic id counts
// instead of the name.
type EpochQuery struct {
	Topic     string
	ID        metadata.TopicID
	Partition int32
}

// LastMirroredEpoch answers key 97 for one partition (W61): which epoch of the
// requester had we mirrored last. requester is its cluster id; without one, the
// mirror of that name answers. Epoch -1 without an error is certain: never
// mirrored (P7). The image holds every record, so there is no "do not know".
func (c *Coordinator) LastMirroredEpoch(mirror string, requester *string, q EpochQuery) (epoch int32, offset int64, err error) {
	img := c.image()
	t := img.Topic(q.Topic)
	if !q.ID.IsZero() {
		t = img.TopicByID(q.ID)
	}
	p := t.Partition(q.Partition)
	if p == nil {
		return -1, -1, fmt.Errorf("%w: %s-%d", controller.ErrUnknownTopic, q.Topic, q.Partition)
	}
	a := t.Attachment()
	m := img.Mirror(a.Mirror)
	switch {
	case m == nil:
		return -1, -1, nil // in no mirror
	case requester != nil && m.SourceClusterID() != *requester:
		return -1, -1, nil // mirrored, but from somebody else
	case requester == nil && m.Name != mirror:
		return -1, -1, nil
	}
	if s := t.MirrorState(p); s != metadata.StateStopped || a.Desired != metadata.DesiredStopped {
		return -1, -1, fmt.Errorf("%w: %s-%d is %s in mirror %s, not STOPPED", controller.ErrMirrorStates, t.Name, p.Index, s, m.Name)
	}
	if r := t.MirrorPartition(p); r.HasLME {
		return r.LME, r.LMO, nil
	}
	return -1, -1, nil
}
