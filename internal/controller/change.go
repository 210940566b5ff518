package controller

import "github.com/lockstep-kafka/lockstep/internal/metadata"

// Change is one key of the store put or deleted. Decide answers changes, a
// transaction writes them, the watch reads them back, and a builder applies them
// to an image: the same type on every stretch of the way, so that what was
// decided and what is shown cannot differ.
type Change interface {
	// topic is what the change belongs to, zero if to no topic. Changes of one
	// topic in one command stay in one transaction where they fit.
	topic() metadata.TopicID
}

type (
	// putTopic makes a topic visible with its first n partitions, which were
	// written before it or with it. It is the last word of a creation and of a
	// growth, so that a reader never sees half of either.
	putTopic struct {
		ID         metadata.TopicID
		Name       string
		Internal   bool
		Partitions int32
		Configs    map[string]string
		Life       int32
	}
	// deleteTopic makes a topic invisible; it is the first word of a deletion.
	deleteTopic struct{ ID metadata.TopicID }

	// setAttachment is the value of mirror.name. An emptied value is kept as a
	// key, because the revision of its last change is asked for (M5).
	setAttachment struct {
		ID       metadata.TopicID
		Value    string
		Revision int64 // filled by the store
	}
	deleteAttachment struct{ ID metadata.TopicID }

	putPartition struct {
		ID        metadata.TopicID
		Partition *metadata.Partition // Mirror and Revision are not looked at
		Revision  int64               // filled by the store
	}
	deletePartition struct {
		ID    metadata.TopicID
		Index int32
	}

	putState struct {
		ID    metadata.TopicID
		Index int32
		State *metadata.MirrorPartition
	}
	deleteState struct {
		ID    metadata.TopicID
		Index int32
	}

	putMirror    struct{ Mirror *metadata.Mirror }
	deleteMirror struct{ Name string }

	putBroker        struct{ Broker *metadata.Broker }
	deleteBroker     struct{ ID int32 }
	setBrokerConfigs struct {
		ID      int32
		Configs map[string]string
	}

	setGroupConfigs struct {
		Group   string
		Configs map[string]string
	}

	putScram    struct{ Credential *metadata.ScramCredential }
	deleteScram struct {
		User      string
		Mechanism metadata.ScramMechanism
	}
	// setQuotas are all the quotas of an entity; none removes it.
	setQuotas struct {
		Entity metadata.QuotaEntity
		Quotas map[string]float64
	}
	putACL struct {
		ACL     metadata.ACL
		Sources []metadata.ACLSource // none: our own
	}
	deleteACL struct{ ACL metadata.ACL }

	setProducerIDs struct{ Next int64 }
	setLives       struct{ metadata.Lives }
	setClusterID   struct{ ID string }
	setRestored    struct{ ID string }
)

func (c putTopic) topic() metadata.TopicID         { return c.ID }
func (c deleteTopic) topic() metadata.TopicID      { return c.ID }
func (c setAttachment) topic() metadata.TopicID    { return c.ID }
func (c deleteAttachment) topic() metadata.TopicID { return c.ID }
func (c putPartition) topic() metadata.TopicID     { return c.ID }
func (c deletePartition) topic() metadata.TopicID  { return c.ID }
func (c putState) topic() metadata.TopicID         { return c.ID }
func (c deleteState) topic() metadata.TopicID      { return c.ID }
func (putMirror) topic() metadata.TopicID          { return metadata.TopicID{} }
func (deleteMirror) topic() metadata.TopicID       { return metadata.TopicID{} }
func (putBroker) topic() metadata.TopicID          { return metadata.TopicID{} }
func (deleteBroker) topic() metadata.TopicID       { return metadata.TopicID{} }
func (setBrokerConfigs) topic() metadata.TopicID   { return metadata.TopicID{} }
func (setGroupConfigs) topic() metadata.TopicID    { return metadata.TopicID{} }
func (putScram) topic() metadata.TopicID           { return metadata.TopicID{} }
func (deleteScram) topic() metadata.TopicID        { return metadata.TopicID{} }
func (setQuotas) topic() metadata.TopicID          { return metadata.TopicID{} }
func (putACL) topic() metadata.TopicID             { return metadata.TopicID{} }
func (deleteACL) topic() metadata.TopicID          { return metadata.TopicID{} }
func (setProducerIDs) topic() metadata.TopicID     { return metadata.TopicID{} }
func (setLives) topic() metadata.TopicID           { return metadata.TopicID{} }
func (setClusterID) topic() metadata.TopicID       { return metadata.TopicID{} }
func (setRestored) topic() metadata.TopicID        { return metadata.TopicID{} }
