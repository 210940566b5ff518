package metadata

import (
	"iter"
	"maps"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/RaduBerinde/btreemap"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// Image is the cluster as of one revision of the metadata store. It never
// changes, and neither does anything that its methods return: callers share it.
type Image struct {
	// Revision is the store's revision that this image shows. It is what the
	// spec calls the metadata offset (D7).
	Revision int64
	// ClusterID is the 22 character id of this cluster, given at its first start.
	ClusterID string
	// Restored is the id of the backup that the metadata began with, empty if they did
	// with none. What was decided after that backup is not known to them.
	Restored string
	// NextProducerID is the first producer id that no broker has been given.
	NextProducerID int64
	// Lives is where a topic begins that may have been here before.
	Lives Lives

	// Three trees over the same topics, so that none of the questions asked
	// per request or per state write scans all topics. Clones share nodes
	// until one of them is written.
	topics   *btreemap.BTreeMap[string, *Topic]
	ids      *btreemap.BTreeMap[TopicID, *Topic]
	attached *btreemap.BTreeMap[attachedKey, *Topic]

	brokers       *btreemap.BTreeMap[int32, *Broker]
	brokerConfigs *btreemap.BTreeMap[int32, map[string]string]
	groupConfigs  *btreemap.BTreeMap[string, map[string]string]
	mirrors       *btreemap.BTreeMap[string, *Mirror]
	acls          *btreemap.BTreeMap[ACL, []ACLSource] // values are never changed

	// ACLRevision is the revision of the last change of the ACLs: images that
	// agree in it have the same.
	ACLRevision int64
	quotas      *btreemap.BTreeMap[QuotaEntity, map[string]float64]
	// QuotaRevision is the revision of the last change of the client quotas.
	QuotaRevision int64
	scram         *btreemap.BTreeMap[scramKey, *ScramCredential]

	// editMu is held while Edit clones the trees: cloning marks nodes as shared,
	// which readers never look at.
	editMu sync.Mutex

	// sorted is Topics' answer, made when first asked for. Losing a race costs
	// a second identical slice.
	sorted atomic.Pointer[[]*Topic]
}

// attachedKey orders attached topics by mirror first, so that one mirror's
// topics are one range.
type attachedKey struct{ mirror, topic string }

func compareAttached(a, b attachedKey) int {
	if c := strings.Compare(a.mirror, b.mirror); c != 0 {
		return c
	}
	return strings.Compare(a.topic, b.topic)
}

// Broker is one registered broker.
type Broker struct {
	ID int32
	// Incarnation is new with every start of the process, so that a restarted
	// broker is never taken for one that stayed.
	Incarnation [16]byte
	// Epoch grows with every registration.
	Epoch     int64
	Rack      string
	Endpoints []Endpoint
	// Durability is what holds on this broker for topics that do not set
	// [DurabilityConfig]; empty is the default of the table.
	Durability string
	// Fenced brokers are registered and not alive: they lead nothing, and are in
	// the ISR of no partition that has a leader (KIP-841). Every registration
	// begins fenced.
	Fenced bool
	// ControlledShutdown brokers are about to stop: they keep what nobody else can
	// lead, get nothing new, and count as gone when ISRs are formed.
	ControlledShutdown bool
}

// Eligible reports whether the broker may be given leaderships and ISR
// memberships; also on nil, which is a broker that is not registered.
func (b *Broker) Eligible() bool { return b != nil && !b.Fenced && !b.ControlledShutdown }

// Endpoint is one advertised listener.
type Endpoint struct {
	Name, Host string
	Port       int32
	Protocol   string // PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL
}

// Mirror is a named source cluster: its connection settings and filters (M1).
// Secrets stand in clear here and nowhere else; String and LogValue hide them.
type Mirror struct {
	Name    string
	Configs map[string]string
	// Unopened holds stored secrets that could not be opened, because the key
	// that sealed them is gone, still sealed. They are carried along until set
	// anew: with the right key file they come back.
	Unopened map[string]string
}

// Lives bounds what is left of topics that were deleted. A mirror gives a topic the id
// that it has on the source, and so a topic may come back with the id that it had here:
// clients, the other cluster and brokers that were away remember its first life, and its
// logs. So its partitions begin above the leader epochs and barriers of all topics that
// were ever deleted. Zero: none was.
type Lives struct {
	LeaderEpoch, Barrier int32
}

// After is what holds once t is deleted too.
func (l Lives) After(t *Topic) Lives {
	for _, p := range t.Partitions {
		l.LeaderEpoch = max(l.LeaderEpoch, min(p.LeaderEpoch, math.MaxInt32-1)+1)
		l.Barrier = max(l.Barrier, min(p.Barrier, math.MaxInt32-1)+1)
	}
	return l
}

// Begin has a new partition begin in a life of its own: nobody takes a log for its own
// that a replica has from another one.
func (l Lives) Begin(p *Partition) {
	if l.Barrier == 0 {
		return
	}
	p.LeaderEpoch, p.Barrier = l.LeaderEpoch, l.Barrier
	for _, id := range p.Replicas {
		p.Stale = append(p.Stale, StaleReplica{ID: id, Barrier: l.Barrier})
	}
}

// Topic is one topic with its partitions.
type Topic struct {
	ID       TopicID
	Name     string
	Internal bool
	// Partitions is indexed by partition number and has no holes.
	Partitions []*Partition
	// Life tells topics that had this id one after the other apart; see Lives.
	Life int32
	// Configs holds the overrides only; Config adds the defaults.
	Configs map[string]string
	// MirrorName is the raw value of the internal config mirror.name (M4).
	MirrorName string
	// MirrorRevision is the revision of the last change of MirrorName (M5), or
	// zero if it never had one. Start, stop, pause, resume and delete compare it
	// with the revision at which their caller looked (P14).
	MirrorRevision int64
}

// Partition is one partition.
type Partition struct {
	Index          int32
	Replicas, ISR  []int32
	Leader         int32 // -1: none
	LeaderEpoch    int32
	PartitionEpoch int32
	// AddingReplicas and RemovingReplicas are those of a reassignment under way
	// (KIP-455), both in Replicas until it is complete. Who is in both was added by one
	// that was taken back, and goes when it may.
	AddingReplicas, RemovingReplicas []int32
	// ELR are replicas outside of the ISR that have every committed record, because
	// they left it while it had too few members for the high watermark to move
	// (KIP-966). They may lead when nobody in the ISR can.
	//
	// LastKnownELR are replicas that left ISR or ELR because their broker came back
	// from an unclean stop; with durability=replicated also those that were taken out
	// of the ISR when one member was left, which may have lost what they have. They
	// matter to nobody while somebody of the other two can lead. If these are empty,
	// the partition waits for all of them to report their ends (rule 8; see
	// WaitsForEnds). They are forgotten once a member of an ISR that is large enough
	// for the high watermark to move is known to be alive after they came back, or
	// were taken out.
	ELR, LastKnownELR []int32
	// Revision is that of the image in which the partition changed last, or a later one.
	Revision int64
	// Barrier counts the cuts of a mirror that left replicas out, and Stale are those
	// replicas, by id (spec O4). A new replica of such a partition is one too, and so are
	// the first ones where the topic may have been here before: they may have old logs.
	Barrier int32
	Stale   []StaleReplica
	// Mirror is what the mirror leader recorded, nil if nothing yet (UNKNOWN).
	Mirror *MirrorPartition
}

// StaleReplica was away when the others cut their logs for a mirror. It cuts its own
// to Offset before it follows or leads again, once for each Barrier.
type StaleReplica struct {
	ID, Barrier int32
	Offset      int64
}

// StaleReplica is the cut that a replica has to make, nil if none. Whether it has
// made it already, it knows itself.
func (p *Partition) StaleReplica(id int32) *StaleReplica {
	for i := range p.Stale {
		if p.Stale[i].ID == id {
			return &p.Stale[i]
		}
	}
	return nil
}

// MirrorPartition is the recorded state of one mirror partition, and its last
// mirrored epoch (spec M8; here both live in cluster metadata, D7).
type MirrorPartition struct {
	// Mirror is the mirror under which this was recorded. A topic that moved to
	// another mirror is UNKNOWN there, whatever it was before.
	Mirror string
	State  MirrorState
	// StateEpoch grows by one with every accepted write (S5).
	StateEpoch int32
	// LeaderEpoch is the highest leader epoch of a writer, -1 if none (S6).
	LeaderEpoch int32
	// HasLME says that an LME record exists: exactly while nothing was mirrored
	// since the last start (W66). LME -1 is then "certainly never mirrored".
	HasLME bool
	LME    int32 // epoch of the last mirrored batch
	LMO    int64 // log end offset at that moment, exclusive
	// Failure info (S13). RetryAttempt -1 is non-retryable, 0 is "no failure".
	ErrorMessage  string
	RetryAttempt  int16
	PreviousState MirrorState
}

// NewImage is an empty cluster.
func NewImage() *Image {
	return &Image{
		topics:        btreemap.New[string, *Topic](treeDegree, strings.Compare),
		ids:           btreemap.New[TopicID, *Topic](treeDegree, TopicID.Compare),
		attached:      btreemap.New[attachedKey, *Topic](treeDegree, compareAttached),
		brokers:       btreemap.New[int32, *Broker](treeDegree, compareInt32),
		brokerConfigs: btreemap.New[int32, map[string]string](treeDegree, compareInt32),
		groupConfigs:  btreemap.New[string, map[string]string](treeDegree, strings.Compare),
		mirrors:       btreemap.New[string, *Mirror](treeDegree, strings.Compare),
		acls:          btreemap.New[ACL, []ACLSource](treeDegree, ACL.Compare),
		quotas:        btreemap.New[QuotaEntity, map[string]float64](treeDegree, QuotaEntity.Compare),
		scram:         btreemap.New[scramKey, *ScramCredential](treeDegree, compareScram),
	}
}

// treeDegree bounds a node at 2*degree-1 entries, which is what one change
// copies per level: 31 entries of 24 to 40 bytes stay near 1 KiB, and 100 000
// topics are four levels deep.
const treeDegree = 16

func compareInt32(a, b int32) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Topic returns the topic of that name, or nil.
func (img *Image) Topic(name string) *Topic {
	_, t, _ := img.topics.Get(name)
	return t
}

// TopicByID returns the topic of that id, or nil.
func (img *Image) TopicByID(id TopicID) *Topic {
	_, t, _ := img.ids.Get(id)
	return t
}

// Topics returns all topics by name. The slice is shared: do not write to it.
func (img *Image) Topics() []*Topic {
	if s := img.sorted.Load(); s != nil {
		return *s
	}
	s := make([]*Topic, 0, img.topics.Len())
	for t := range img.AllTopics() {
		s = append(s, t)
	}
	img.sorted.Store(&s)
	return s
}

// AllTopics walks all topics by name without building a slice.
func (img *Image) AllTopics() iter.Seq[*Topic] {
	return values(img.topics)
}

// NumTopics counts the topics.
func (img *Image) NumTopics() int { return img.topics.Len() }

// Partition returns one partition, or nil.
func (img *Image) Partition(id TopicID, partition int32) *Partition {
	return img.TopicByID(id).Partition(partition)
}

// Broker returns the broker of that id, fenced or not, or nil.
func (img *Image) Broker(id int32) *Broker {
	_, b, _ := img.brokers.Get(id)
	return b
}

// Brokers returns all registered brokers by id, fenced ones included.
func (img *Image) Brokers() []*Broker { return collect(img.brokers) }

// BrokerConfigs returns the dynamic configs of a broker, or with
// [DefaultBroker] those that hold for all; nil if there are none.
func (img *Image) BrokerConfigs(id int32) map[string]string {
	_, c, _ := img.brokerConfigs.Get(id)
	return c
}

// DefaultBroker is the broker id under which cluster-wide dynamic broker configs
// stand (Kafka's empty resource name).
const DefaultBroker int32 = -1

// Mirror returns the mirror of that name, or nil.
func (img *Image) Mirror(name string) *Mirror {
	_, m, _ := img.mirrors.Get(name)
	return m
}

// Mirrors returns all mirrors by name.
func (img *Image) Mirrors() []*Mirror { return collect(img.mirrors) }

// MirrorTopics returns the topics attached to a mirror in any form, stopped ones
// included, by name.
func (img *Image) MirrorTopics(mirror string) []*Topic {
	var topics []*Topic
	from := btreemap.GE(attachedKey{mirror: mirror})
	for k, t := range img.attached.Ascend(from, btreemap.Max[attachedKey]()) {
		if k.mirror != mirror {
			break
		}
		topics = append(topics, t)
	}
	return topics
}

// ACLs walks all ACLs, those of one resource together.
func (img *Image) ACLs() iter.Seq[ACL] {
	return func(yield func(ACL) bool) {
		for a := range img.acls.Ascend(btreemap.Min[ACL](), btreemap.Max[ACL]()) {
			if !yield(a) {
				return
			}
		}
	}
}

// HasACL tells whether that very ACL exists.
func (img *Image) HasACL(a ACL) bool {
	_, _, ok := img.acls.Get(a)
	return ok
}

// ACLSources are the mirrors that have copied an ACL here, by name; none if it is this
// cluster's own, or is not there. They must not be changed.
func (img *Image) ACLSources(a ACL) []ACLSource {
	_, sources, _ := img.acls.Get(a)
	return sources
}

// NumACLs counts the ACLs.
func (img *Image) NumACLs() int { return img.acls.Len() }

func values[K, V any](m *btreemap.BTreeMap[K, V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range m.Ascend(btreemap.Min[K](), btreemap.Max[K]()) {
			if !yield(v) {
				return
			}
		}
	}
}

func collect[K, V any](m *btreemap.BTreeMap[K, V]) []V {
	s := make([]V, 0, m.Len())
	for v := range values(m) {
		s = append(s, v)
	}
	return s
}

// OnlyPartitionsDiffer reports whether t is what an earlier state of it was, but for its
// partitions.
func (t *Topic) OnlyPartitionsDiffer(was *Topic) bool {
	return was != nil && t.ID == was.ID && t.Name == was.Name && t.Internal == was.Internal && t.Life == was.Life &&
		t.MirrorName == was.MirrorName && t.MirrorRevision == was.MirrorRevision && maps.Equal(t.Configs, was.Configs)
}

// Attachment reads MirrorName.
func (t *Topic) Attachment() Attachment { return ParseMirrorName(t.MirrorName) }

// Partition returns the partition of that index, or nil; also on a nil topic.
func (t *Topic) Partition(index int32) *Partition {
	if t == nil || index < 0 || int(index) >= len(t.Partitions) {
		return nil
	}
	return t.Partitions[index]
}

// Reassigning reports whether replicas are being moved.
func (p *Partition) Reassigning() bool { return len(p.AddingReplicas)+len(p.RemovingReplicas) > 0 }

// WaitsForEnds reports that every replica which had all records came back from an
// unclean stop. The one whose log reaches furthest will lead when all of
// LastKnownELR have told how far theirs do. They tell again as long as this holds:
// a new controller has not heard what the old one was told.
func (p *Partition) WaitsForEnds() bool {
	return p.Leader == NoLeader && len(p.ISR) == 0 && len(p.ELR) == 0 && len(p.LastKnownELR) > 0
}

// NoLeader is the leader of a partition that has none.
const NoLeader int32 = -1

// MirrorState is the actual state of p in the mirror that t is attached to now,
// UNKNOWN if nothing was recorded there.
func (t *Topic) MirrorState(p *Partition) MirrorState {
	if m := t.MirrorPartition(p); m != nil {
		return m.State
	}
	return StateUnknown
}

// MirrorPartition is what was recorded for p in the mirror that t is attached to
// now. What another mirror left behind does not count.
func (t *Topic) MirrorPartition(p *Partition) *MirrorPartition {
	if p.Mirror == nil || p.Mirror.Mirror != t.Attachment().Mirror {
		return nil
	}
	return p.Mirror
}

// ReadOnly reports whether clients may not write to p (L18): the topic is
// attached, and not both asked to stop and stopped. That the desired state
// counts as well makes a topic read-only from the moment of start (W60), before
// its leader has written PREPARING.
func (t *Topic) ReadOnly(p *Partition) bool {
	a := t.Attachment()
	if a.Desired == DesiredNone {
		return false
	}
	return a.Desired != DesiredStopped || t.MirrorState(p) != StateStopped && !invariants.Planted("writableWhileStopping")
}

// Sourced reports whether the source has what the log of a mirror partition holds and is
// still asked for it, so that nothing is lost here for good: since the gate of this run
// was passed, and until it is asked to stop. Before that the log holds what clients wrote
// here, and a stop would keep it; after it nothing is fetched again.
func (t *Topic) Sourced(p *Partition) bool {
	m := t.MirrorPartition(p)
	if m == nil || !t.ReadOnly(p) || t.Attachment().Desired == DesiredStopped {
		return false
	}
	state := m.State
	if state == StateFailed {
		state = m.PreviousState
	}
	switch state {
	case StateUnknown, StatePreparing, StateStopping, StateStopped:
		return false
	}
	return !m.HasLME || m.LMO >= 0
}

// Stopped reports whether every partition of an attached topic has finished its
// failover.
func (t *Topic) Stopped() bool {
	for _, p := range t.Partitions {
		if t.MirrorState(p) != StateStopped {
			return false
		}
	}
	return t.Attachment().Desired == DesiredStopped
}
