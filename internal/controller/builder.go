package controller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// builder turns changes into images. It belongs to one goroutine.
//
// A topic of many partitions does not fit into one transaction, so its
// partitions arrive before it does, and leave after it has. What belongs to no
// visible topic waits in pending; what is still there when no command is under
// way was left behind by a controller that died, and is swept (orphans).
type builder struct {
	ed      *metadata.Editor
	pending map[metadata.TopicID]*fragments
}

// fragments is what the store holds of a topic that is not visible, or beyond
// the partition count of one that is.
type fragments struct {
	partitions map[int32]*metadata.Partition
	states     map[int32]*metadata.MirrorPartition
	attachment *setAttachment
}

func (f *fragments) empty() bool {
	return len(f.partitions) == 0 && len(f.states) == 0 && f.attachment == nil
}

func newBuilder(img *metadata.Image) *builder {
	return &builder{ed: img.Edit(), pending: make(map[metadata.TopicID]*fragments)}
}

// view is the image as it stands; see [metadata.Editor.View].
func (b *builder) view() *metadata.Image { return b.ed.View() }

// seal answers the image as of a revision, and goes on from it.
func (b *builder) seal(revision int64) *metadata.Image {
	img := b.ed.Image(revision)
	b.ed = img.Edit()
	return img
}

// rank orders the changes of one revision, which is a set and comes in any
// order: a topic leaves before its parts do and appears after them.
func rank(c Change) int {
	switch c.(type) {
	case deleteTopic:
		return 0
	case putTopic:
		return 2
	}
	return 1
}

// apply applies the changes of one revision.
func (b *builder) apply(changes []Change, revision int64) error {
	if !slices.IsSortedFunc(changes, compareRank) {
		changes = slices.Clone(changes)
		slices.SortStableFunc(changes, compareRank)
	}
	for _, c := range changes {
		if err := b.applyOne(c, revision); err != nil {
			return err
		}
	}
	return nil
}

func compareRank(a, c Change) int { return cmp.Compare(rank(a), rank(c)) }

func (b *builder) applyOne(c Change, revision int64) error {
	switch c := c.(type) {
	case putTopic:
		return b.putTopic(c)
	case deleteTopic:
		b.deleteTopic(c.ID)
	case setAttachment:
		if c.Revision == 0 {
			c.Revision = revision
		}
		if !b.ed.SetAttachment(c.ID, c.Value, c.Revision) {
			b.fragments(c.ID).attachment = &c
		}
	case deleteAttachment:
		if !b.ed.SetAttachment(c.ID, "", revision) {
			b.drop(c.ID, func(f *fragments) { f.attachment = nil })
		}
	case putPartition:
		if c.Revision == 0 {
			c.Revision = revision
		}
		b.putPartition(c)
	case deletePartition:
		// A visible topic never loses a partition.
		b.drop(c.ID, func(f *fragments) { delete(f.partitions, c.Index) })
	case putState:
		if !b.ed.SetMirrorState(c.ID, c.Index, c.State) {
			b.fragments(c.ID).states[c.Index] = c.State
		}
	case deleteState:
		if !b.ed.SetMirrorState(c.ID, c.Index, nil) {
			b.drop(c.ID, func(f *fragments) { delete(f.states, c.Index) })
		}
	case putMirror:
		b.ed.PutMirror(c.Mirror)
	case deleteMirror:
		b.ed.DeleteMirror(c.Name)
	case putBroker:
		b.ed.PutBroker(c.Broker)
	case deleteBroker:
		b.ed.DeleteBroker(c.ID)
	case setBrokerConfigs:
		b.ed.SetBrokerConfigs(c.ID, c.Configs)
	case setGroupConfigs:
		b.ed.SetGroupConfigs(c.Group, c.Configs)
	case putScram:
		b.ed.PutScram(c.Credential)
	case deleteScram:
		b.ed.DeleteScram(c.User, c.Mechanism)
	case setQuotas:
		b.ed.SetQuota(c.Entity, c.Quotas)
	case putACL:
		b.ed.PutACL(c.ACL, c.Sources)
	case deleteACL:
		b.ed.DeleteACL(c.ACL)
	case setLives:
		b.ed.SetLives(c.Lives)
	case setProducerIDs:
		b.ed.SetNextProducerID(c.Next)
	case setClusterID:
		b.ed.SetClusterID(c.ID)
	case setRestored:
		b.ed.SetRestored(c.ID)
	default:
		return fmt.Errorf("apply %T: unknown change", c)
	}
	return nil
}

// putPartition keeps the mirror state that is there: it has a key of its own.
func (b *builder) putPartition(c putPartition) {
	next := *c.Partition
	next.Revision, next.Mirror = c.Revision, nil
	cur := b.view().Partition(c.ID, next.Index)
	if cur == nil {
		b.fragments(c.ID).partitions[next.Index] = &next
		return
	}
	next.Mirror = cur.Mirror
	b.ed.PutPartition(c.ID, &next)
}

func (b *builder) putTopic(c putTopic) error {
	t := b.ed.MutableTopic(c.ID)
	if t != nil && t.Name != c.Name {
		return fmt.Errorf("topic id %s: stored under the names %q and %q", c.ID, t.Name, c.Name)
	}
	if old := b.view().Topic(c.Name); old != nil && old.ID != c.ID {
		return fmt.Errorf("topic %q: stored under the ids %s and %s", c.Name, old.ID, c.ID)
	}
	f := b.pending[c.ID]
	if f == nil {
		f = new(fragments)
	}
	if t == nil {
		t = &metadata.Topic{ID: c.ID, Name: c.Name}
		if a := f.attachment; a != nil {
			t.MirrorName, t.MirrorRevision = a.Value, a.Revision
			f.attachment = nil
		}
		defer func() { b.ed.PutTopic(t) }()
	}
	t.Internal, t.Configs, t.Life = c.Internal, c.Configs, c.Life
	for i := int32(len(t.Partitions)); i < c.Partitions; i++ {
		p, ok := f.partitions[i]
		if !ok {
			return fmt.Errorf("topic %q (%s): partition %d of %d is missing in the store", c.Name, c.ID, i, c.Partitions)
		}
		next := *p
		next.Mirror = f.states[i]
		t.Partitions = append(t.Partitions, &next)
		delete(f.partitions, i)
		delete(f.states, i)
	}
	if f.empty() {
		delete(b.pending, c.ID)
	}
	return nil
}

// deleteTopic keeps the parts as fragments until they are deleted in turn.
func (b *builder) deleteTopic(id metadata.TopicID) {
	t := b.view().TopicByID(id)
	if t == nil {
		return
	}
	f := b.fragments(id)
	for _, p := range t.Partitions {
		f.partitions[p.Index] = p
		if p.Mirror != nil {
			f.states[p.Index] = p.Mirror
		}
	}
	if t.MirrorRevision != 0 {
		f.attachment = &setAttachment{ID: id, Value: t.MirrorName, Revision: t.MirrorRevision}
	}
	b.ed.DeleteTopic(id)
}

func (b *builder) fragments(id metadata.TopicID) *fragments {
	f := b.pending[id]
	if f == nil {
		f = &fragments{
			partitions: make(map[int32]*metadata.Partition),
			states:     make(map[int32]*metadata.MirrorPartition),
		}
		b.pending[id] = f
	}
	return f
}

func (b *builder) drop(id metadata.TopicID, from func(*fragments)) {
	f := b.pending[id]
	if f == nil {
		return
	}
	from(f)
	if f.empty() {
		delete(b.pending, id)
	}
}

// orphans answers the changes that delete what an interrupted command left behind:
// what belongs to no visible topic, and states recorded in a mirror that the topic
// is not in any more.
func (b *builder) orphans() []Change {
	var changes []Change
	for t := range b.view().AllTopics() {
		for _, p := range t.Partitions {
			if p.Mirror != nil && t.MirrorPartition(p) == nil {
				changes = append(changes, deleteState{t.ID, p.Index})
			}
		}
	}
	ids := slices.SortedFunc(maps.Keys(b.pending), metadata.TopicID.Compare)
	for _, id := range ids {
		f := b.pending[id]
		for _, i := range slices.Sorted(maps.Keys(f.states)) {
			changes = append(changes, deleteState{id, i})
		}
		for _, i := range slices.Sorted(maps.Keys(f.partitions)) {
			changes = append(changes, deletePartition{id, i})
		}
		if f.attachment != nil {
			changes = append(changes, deleteAttachment{id})
		}
	}
	return changes
}
