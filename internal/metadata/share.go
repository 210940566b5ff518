package metadata

import (
	"maps"
	"reflect"
)

// ShareWith makes an image that was read anew share with old whatever is equal,
// so that a reader who compares pointers sees only what changed. img must not be
// published yet.
func (img *Image) ShareWith(old *Image) {
	e := img.Edit()
	for t := range img.AllTopics() {
		o := old.TopicByID(t.ID)
		if o == nil {
			continue
		}
		if reflect.DeepEqual(t, o) {
			e.unlink(t)
			e.link(o)
			continue
		}
		m := e.MutableTopic(t.ID)
		for i, p := range m.Partitions {
			if i < len(o.Partitions) && reflect.DeepEqual(p, o.Partitions[i]) {
				m.Partitions[i] = o.Partitions[i]
			}
		}
	}
	for _, b := range img.Brokers() {
		if o := old.Broker(b.ID); o != nil && reflect.DeepEqual(b, o) {
			e.PutBroker(o)
		}
	}
	for _, m := range img.Mirrors() {
		if o := old.Mirror(m.Name); o != nil && maps.Equal(m.Configs, o.Configs) && maps.Equal(m.Unopened, o.Unopened) {
			e.PutMirror(o)
		}
	}
	if sameACLs(img, old) { // an index of them stays good
		img.ACLRevision = old.ACLRevision
	}
	next := e.Image(img.Revision)
	img.topics, img.ids, img.attached = next.topics, next.ids, next.attached
	img.brokers, img.mirrors = next.brokers, next.mirrors
	img.sorted.Store(nil)
}

func sameACLs(a, b *Image) bool {
	if a.NumACLs() != b.NumACLs() {
		return false
	}
	for x := range a.ACLs() {
		if !b.HasACL(x) {
			return false
		}
	}
	return true
}
