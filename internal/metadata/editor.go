package metadata

import "github.com/RaduBerinde/btreemap"

// Editor makes the next image out of one. It copies what it is told to change
// and shares the rest; a topic is copied once per edit, however many of its
// partitions change. It belongs to one goroutine and ends with Image.
type Editor struct {
	next *Image
	// owned holds the topics that this edit has copied already and may write to.
	owned  map[*Topic]struct{}
	acls   bool // some ACL has changed
	quotas bool // some client quota has
}

// Edit starts an edit. The image itself stays as it is.
func (img *Image) Edit() *Editor {
	img.editMu.Lock()
	defer img.editMu.Unlock()
	return &Editor{
		owned: make(map[*Topic]struct{}),
		next: &Image{
			Revision:       img.Revision,
			ClusterID:      img.ClusterID,
			Restored:       img.Restored,
			NextProducerID: img.NextProducerID,
			Lives:          img.Lives,
			topics:         img.topics.Clone(),
			ids:            img.ids.Clone(),
			attached:       img.attached.Clone(),
			brokers:        img.brokers.Clone(),
			brokerConfigs:  img.brokerConfigs.Clone(),
			groupConfigs:   img.groupConfigs.Clone(),
			mirrors:        img.mirrors.Clone(),
			acls:           img.acls.Clone(),
			ACLRevision:    img.ACLRevision,
			quotas:         img.quotas.Clone(),
			QuotaRevision:  img.QuotaRevision,
			scram:          img.scram.Clone(),
		},
	}
}

// Image seals the edit as of a revision. The editor must not be used afterwards.
func (e *Editor) Image(revision int64) *Image {
	img := e.next
	img.Revision = revision
	if e.quotas {
		img.QuotaRevision = revision
	}
	if e.acls {
		img.ACLRevision = revision
	}
	e.next, e.owned = nil, nil
	return img
}

// View is the edit as it stands, for a reader who decides the next change by it.
// Neither it nor what it returns may be kept beyond the next call on the editor.
func (e *Editor) View() *Image { return e.next }

// Topic is the topic as the edit has it now.
func (e *Editor) Topic(id TopicID) *Topic { return e.next.TopicByID(id) }

// PutTopic adds a topic or replaces the one with the same id. The editor takes
// t over; it must not be shared with an image.
func (e *Editor) PutTopic(t *Topic) {
	if old := e.next.TopicByID(t.ID); old != nil {
		e.unlink(old)
	}
	e.owned[t] = struct{}{}
	e.link(t)
}

// DeleteTopic removes a topic with its partitions.
func (e *Editor) DeleteTopic(id TopicID) {
	if old := e.next.TopicByID(id); old != nil {
		e.unlink(old)
		delete(e.owned, old)
	}
}

// MutableTopic returns a topic that may be written to until Image, or nil. Its
// name, id and MirrorName must be left alone (SetAttachment changes the last),
// and its partitions are shared: replace pointers, do not write through them.
func (e *Editor) MutableTopic(id TopicID) *Topic {
	t := e.next.TopicByID(id)
	if t == nil {
		return nil
	}
	if _, ok := e.owned[t]; ok {
		return t
	}
	c := *t
	c.Partitions = append(make([]*Partition, 0, len(t.Partitions)), t.Partitions...)
	e.owned[&c] = struct{}{}
	e.link(&c)
	return &c
}

// PutPartition replaces a partition, or appends the next one. It reports false,
// and changes nothing, if the topic is unknown or the index would leave a hole.
func (e *Editor) PutPartition(id TopicID, p *Partition) bool {
	t := e.MutableTopic(id)
	switch {
	case t == nil || p.Index < 0 || int(p.Index) > len(t.Partitions):
		return false
	case int(p.Index) == len(t.Partitions):
		t.Partitions = append(t.Partitions, p)
	default:
		t.Partitions[p.Index] = p
	}
	return true
}

// SetMirrorState records the mirror state of one partition, nil to forget it.
func (e *Editor) SetMirrorState(id TopicID, index int32, m *MirrorPartition) bool {
	if e.next.Partition(id, index) == nil {
		return false
	}
	t := e.MutableTopic(id)
	p := *t.Partitions[index]
	p.Mirror = m
	t.Partitions[index] = &p
	return true
}

// SetAttachment changes mirror.name of a topic as of a revision.
func (e *Editor) SetAttachment(id TopicID, value string, revision int64) bool {
	t := e.MutableTopic(id)
	if t == nil {
		return false
	}
	if a := t.Attachment(); a.Mirror != "" {
		e.next.attached.Delete(attachedKey{a.Mirror, t.Name})
	}
	t.MirrorName, t.MirrorRevision = value, revision
	e.link(t)
	return true
}

// PutBroker adds or replaces a broker.
func (e *Editor) PutBroker(b *Broker) { e.next.brokers.ReplaceOrInsert(b.ID, b) }

// DeleteBroker removes a broker. Replicas keep its id.
func (e *Editor) DeleteBroker(id int32) { e.next.brokers.Delete(id) }

// SetBrokerConfigs replaces the dynamic configs of a broker; empty removes them.
func (e *Editor) SetBrokerConfigs(id int32, configs map[string]string) {
	if len(configs) == 0 {
		e.next.brokerConfigs.Delete(id)
		return
	}
	e.next.brokerConfigs.ReplaceOrInsert(id, configs)
}

// PutMirror adds or replaces a mirror.
func (e *Editor) PutMirror(m *Mirror) { e.next.mirrors.ReplaceOrInsert(m.Name, m) }

// DeleteMirror removes a mirror. Its topics are not touched.
func (e *Editor) DeleteMirror(name string) { e.next.mirrors.Delete(name) }

// PutACL adds an ACL, or says anew which mirrors have copied it here.
func (e *Editor) PutACL(a ACL, sources []ACLSource) {
	e.next.acls.ReplaceOrInsert(a, sources)
	e.acls = true
}

// DeleteACL removes an ACL.
func (e *Editor) DeleteACL(a ACL) {
	e.next.acls.Delete(a)
	e.acls = true
}

// SetRestored names the backup that the cluster began with.
func (e *Editor) SetRestored(id string) { e.next.Restored = id }

// SetClusterID names the cluster.
func (e *Editor) SetClusterID(id string) { e.next.ClusterID = id }

// SetLives says where topics begin that may have been here before.
func (e *Editor) SetLives(l Lives) { e.next.Lives = l }

// SetNextProducerID moves the allocation of producer ids.
func (e *Editor) SetNextProducerID(id int64) { e.next.NextProducerID = id }

// link puts t into every tree that it belongs to.
func (e *Editor) link(t *Topic) {
	e.next.sorted.Store(nil)
	e.next.topics.ReplaceOrInsert(t.Name, t)
	e.next.ids.ReplaceOrInsert(t.ID, t)
	if a := t.Attachment(); a.Mirror != "" {
		e.next.attached.ReplaceOrInsert(attachedKey{a.Mirror, t.Name}, t)
	}
}

func (e *Editor) unlink(t *Topic) {
	e.next.sorted.Store(nil)
	deleteIf(e.next.topics, t.Name, t)
	deleteIf(e.next.ids, t.ID, t)
	if a := t.Attachment(); a.Mirror != "" {
		deleteIf(e.next.attached, attachedKey{a.Mirror, t.Name}, t)
	}
}

// deleteIf removes a key only if it still holds v: a name can have passed to a
// topic with another id within one edit (delete and create).
func deleteIf[K any](m *btreemap.BTreeMap[K, *Topic], key K, t *Topic) {
	if _, cur, ok := m.Get(key); ok && cur == t {
		m.Delete(key)
	}
}
