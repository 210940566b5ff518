package controller

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// The store's keys. One key per partition and per partition state, never one per
// topic with everything in it: a request is bounded at 1.5 MiB, and every write
// keeps a whole copy of its value until history is compacted.
//
//	lockstep/format                       number of this layout
//	lockstep/cluster                      cluster id
//	lockstep/restoring                    id of the backup that is being restored
//	lockstep/restored                     id of the backup that the cluster began with
//	lockstep/secret                       fingerprint of the key that cluster.secret gives
//	lockstep/chain                        put by every transaction; see term
//	lockstep/election/<lease>             the controller election
//	lockstep/pids                         next producer id
//	lockstep/broker/<id>                  JSON
//	lockstep/brokerconfig/<id>            JSON; -1 holds for all brokers
//	lockstep/groupconfig/<group>          JSON, the group escaped
//	lockstep/mirror/<name>                JSON, secrets sealed
//	lockstep/scram/<mechanism>/<user>     JSON, the user escaped, the keys sealed
//	lockstep/acl/<content>                see codec_acl.go
//	lockstep/quota/<entity>               JSON, see codec_quota.go
//	lockstep/lives                        JSON, what deleted topics have left
//	lockstep/topic/<topic id>             JSON
//	lockstep/attach/<topic id>            raw mirror.name; its revision is MirrorRevision
//	lockstep/part/<topic id>/<index>      compact
//	lockstep/state/<topic id>/<index>     compact
const (
	keyRoot          = "lockstep/"
	keyFormat        = keyRoot + "format"
	keyCluster       = keyRoot + "cluster"
	keySecret        = keyRoot + "secret"
	keyChain         = keyRoot + "chain"
	keyElection      = keyRoot + "election"
	keyProducerIDs   = keyRoot + "pids"
	keyLives         = keyRoot + "lives"
	dirBroker        = keyRoot + "broker/"
	dirBrokerConfigs = keyRoot + "brokerconfig/"
	dirGroupConfigs  = keyRoot + "groupconfig/"
	dirMirror        = keyRoot + "mirror/"
	dirScram         = keyRoot + "scram/"
	dirQuota         = keyRoot + "quota/"
	dirTopic         = keyRoot + "topic/"
	dirAttach        = keyRoot + "attach/"
	dirPartition     = keyRoot + "part/"
	dirState         = keyRoot + "state/"
)

// formatVersion is what keyFormat holds. It rises when an older binary would
// misread the store; values carry versions of their own for smaller changes.
const formatVersion = 1

// recordVersion starts every compact value.
const recordVersion byte = 1

// maxErrorMessage bounds the failure text of a partition: it comes from a
// source, and ten thousand of them stand in every broker's memory.
const maxErrorMessage = 1024

var errBadRecord = errors.New("bad record")

// codec writes changes as keys and values and reads them back. The sealer is
// its only state.
type codec struct{ seal *sealer }

// write is one key put, or deleted if value is nil.
type write struct {
	key   string
	value []byte
}

func (w write) size() int { return len(w.key) + len(w.value) }

type topicRecord struct {
	V          int               `json:"v"`
	Name       string            `json:"name"`
	Internal   bool              `json:"internal,omitempty"`
	Partitions int32             `json:"partitions"`
	Configs    map[string]string `json:"configs,omitempty"`
	Life       int32             `json:"life,omitempty"`
}

type livesRecord struct {
	V           int   `json:"v"`
	LeaderEpoch int32 `json:"leaderEpoch"`
	Barrier     int32 `json:"barrier"`
}

func decodeLives(value []byte) (metadata.Lives, error) {
	var r livesRecord
	if err := getJSON(value, &r); err != nil {
		return metadata.Lives{}, err
	}
	if r.LeaderEpoch < 0 || r.Barrier < 0 {
		return metadata.Lives{}, fmt.Errorf("%w: leader epoch %d, barrier %d", errBadRecord, r.LeaderEpoch, r.Barrier)
	}
	return metadata.Lives{LeaderEpoch: r.LeaderEpoch, Barrier: r.Barrier}, nil
}

type brokerRecord struct {
	V           int                 `json:"v"`
	Incarnation []byte              `json:"incarnation"`
	Epoch       int64               `json:"epoch"`
	Rack        string              `json:"rack,omitempty"`
	Endpoints   []metadata.Endpoint `json:"endpoints"`
	Durability  string              `json:"durability,omitempty"`
	Fenced      bool                `json:"fenced,omitempty"`
	Shutdown    bool                `json:"shutdown,omitempty"`
}

type configsRecord struct {
	V       int               `json:"v"`
	Configs map[string]string `json:"configs"`
}

// encode writes a change.
func (c codec) encode(change Change) (write, error) {
	switch ch := change.(type) {
	case putTopic:
		return putJSON(dirTopic+ch.ID.String(), topicRecord{1, ch.Name, ch.Internal, ch.Partitions, ch.Configs, ch.Life})
	case deleteTopic:
		return write{key: dirTopic + ch.ID.String()}, nil
	case setAttachment:
		return write{dirAttach + ch.ID.String(), append([]byte{}, ch.Value...)}, nil
	case deleteAttachment:
		return write{key: dirAttach + ch.ID.String()}, nil
	case putPartition:
		return write{partKey(dirPartition, ch.ID, ch.Partition.Index), encodePartition(ch.Partition)}, nil
	case deletePartition:
		return write{key: partKey(dirPartition, ch.ID, ch.Index)}, nil
	case putState:
		return write{partKey(dirState, ch.ID, ch.Index), encodeState(ch.State)}, nil
	case deleteState:
		return write{key: partKey(dirState, ch.ID, ch.Index)}, nil
	case putMirror:
		configs, err := c.seal.sealMirror(ch.Mirror)
		if err != nil {
			return write{}, err
		}
		return putJSON(dirMirror+ch.Mirror.Name, configsRecord{1, configs})
	case deleteMirror:
		return write{key: dirMirror + ch.Name}, nil
	case putBroker:
		b := ch.Broker
		return putJSON(brokerKey(b.ID), brokerRecord{1, b.Incarnation[:], b.Epoch, b.Rack, b.Endpoints, b.Durability, b.Fenced, b.ControlledShutdown})
	case deleteBroker:
		return write{key: brokerKey(ch.ID)}, nil
	case setBrokerConfigs:
		return putJSON(dirBrokerConfigs+strconv.Itoa(int(ch.ID)), configsRecord{1, ch.Configs})
	case setGroupConfigs:
		key := dirGroupConfigs + url.PathEscape(ch.Group)
		if len(ch.Configs) == 0 {
			return write{key: key}, nil
		}
		return putJSON(key, configsRecord{1, ch.Configs})
	case putScram:
		return c.encodeScram(ch.Credential)
	case deleteScram:
		return write{key: scramKey(ch.User, ch.Mechanism)}, nil
	case setQuotas:
		return encodeQuotas(ch)
	case putACL:
		return encodeACL(ch)
	case deleteACL:
		return write{key: aclKey(ch.ACL)}, nil
	case setLives:
		return putJSON(keyLives, livesRecord{1, ch.LeaderEpoch, ch.Barrier})
	case setProducerIDs:
		return write{keyProducerIDs, strconv.AppendInt(nil, ch.Next, 10)}, nil
	case setClusterID:
		return write{keyCluster, []byte(ch.ID)}, nil
	case setRestored:
		return write{keyRestored, []byte(ch.ID)}, nil
	}
	return write{}, fmt.Errorf("encode %T: unknown change", change)
}

// groups encodes the changes of one command. Changes of one topic that follow each
// other are one group, to be written together where that fits.
func (c codec) groups(changes []Change) ([][]write, error) {
	var groups [][]write
	for i, ch := range changes {
		w, err := c.encode(ch)
		if err != nil {
			return nil, err
		}
		if w.size() > maxTxnBytes {
			return nil, fmt.Errorf("%w: %s would take %d bytes, more than %d", ErrInvalidRequest, w.key, w.size(), maxTxnBytes)
		}
		if i == 0 || ch.topic() != changes[i-1].topic() {
			groups = append(groups, nil)
		}
		groups[len(groups)-1] = append(groups[len(groups)-1], w)
	}
	return groups, nil
}

// decode reads a key of the store back; nil for keys that are no part of an
// image. A nil value is a deletion.
func (c codec) decode(key string, value []byte, revision int64) (Change, error) {
	ch, err := c.decodeKey(key, value, revision)
	if err != nil {
		return nil, fmt.Errorf("metadata key %s: %w", key, err)
	}
	return ch, nil
}

func (c codec) decodeKey(key string, value []byte, revision int64) (Change, error) {
	deleted := value == nil
	switch key {
	case keyChain, keySecret, keyRestoring:
		return nil, nil
	case keyRestored:
		return setRestored{string(value)}, nil
	case keyFormat:
		if deleted || string(value) != strconv.Itoa(formatVersion) {
			return nil, fmt.Errorf("%w: format %q, this binary reads %d", errBadRecord, value, formatVersion)
		}
		return nil, nil
	case keyCluster:
		return setClusterID{string(value)}, nil
	case keyLives:
		r, err := decodeLives(value)
		return setLives{r}, err
	case keyProducerIDs:
		next, err := strconv.ParseInt(string(value), 10, 64)
		if err != nil || next < 0 {
			return nil, fmt.Errorf("%w: %q", errBadRecord, value)
		}
		return setProducerIDs{next}, nil
	}
	rest, ok := strings.CutPrefix(key, keyRoot)
	dir, name, ok2 := strings.Cut(rest, "/")
	if !ok || !ok2 {
		return nil, fmt.Errorf("%w: unknown key", errBadRecord)
	}
	switch keyRoot + dir + "/" {
	case keyElection + "/":
		return nil, nil
	case dirTopic:
		return decodeTopic(name, value)
	case dirAttach:
		id, err := metadata.ParseTopicID(name)
		if err != nil || deleted {
			return deleteAttachment{id}, err
		}
		return setAttachment{id, string(value), revision}, nil
	case dirPartition:
		id, index, err := parsePartKey(name)
		if err != nil || deleted {
			return deletePartition{id, index}, err
		}
		p, err := decodePartition(value)
		if err == nil {
			p.Index = index
		}
		return putPartition{id, p, revision}, err
	case dirState:
		id, index, err := parsePartKey(name)
		if err != nil || deleted {
			return deleteState{id, index}, err
		}
		s, err := decodeState(value)
		return putState{id, index, s}, err
	case dirMirror:
		if deleted {
			return deleteMirror{name}, nil
		}
		var r configsRecord
		if err := getJSON(value, &r); err != nil {
			return nil, err
		}
		return putMirror{c.seal.openMirror(name, r.Configs)}, nil
	case dirGroupConfigs:
		group, err := url.PathUnescape(name)
		if err != nil || group == "" {
			return nil, fmt.Errorf("%w: group", errBadRecord)
		}
		var r configsRecord
		if !deleted {
			err = getJSON(value, &r)
		}
		return setGroupConfigs{group, r.Configs}, err
	case dirScram:
		return c.decodeScram(name, value)
	case dirQuota:
		return decodeQuotas(name, value)
	case dirACL:
		return decodeACL(name, value)
	case dirBroker, dirBrokerConfigs:
		id, err := strconv.ParseInt(name, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%w: broker id", errBadRecord)
		}
		if keyRoot+dir+"/" == dirBroker {
			return decodeBroker(int32(id), value)
		}
		var r configsRecord
		if !deleted {
			err = getJSON(value, &r)
		}
		return setBrokerConfigs{int32(id), r.Configs}, err
	}
	return nil, fmt.Errorf("%w: unknown key", errBadRecord)
}

func decodeTopic(name string, value []byte) (Change, error) {
	id, err := metadata.ParseTopicID(name)
	if err != nil || value == nil {
		return deleteTopic{id}, err
	}
	var r topicRecord
	if err := getJSON(value, &r); err != nil {
		return nil, err
	}
	if r.Partitions < 1 || r.Name == "" {
		return nil, fmt.Errorf("%w: topic %q with %d partitions", errBadRecord, r.Name, r.Partitions)
	}
	return putTopic{id, r.Name, r.Internal, r.Partitions, r.Configs, r.Life}, nil
}

func decodeBroker(id int32, value []byte) (Change, error) {
	if value == nil {
		return deleteBroker{id}, nil
	}
	var r brokerRecord
	if err := getJSON(value, &r); err != nil {
		return nil, err
	}
	b := &metadata.Broker{ID: id, Epoch: r.Epoch, Rack: r.Rack, Endpoints: r.Endpoints,
		Durability: r.Durability, Fenced: r.Fenced, ControlledShutdown: r.Shutdown}
	if copy(b.Incarnation[:], r.Incarnation) != len(r.Incarnation) {
		return nil, fmt.Errorf("%w: incarnation", errBadRecord)
	}
	return putBroker{b}, nil
}

func brokerKey(id int32) string { return dirBroker + strconv.Itoa(int(id)) }

func partKey(dir string, id metadata.TopicID, index int32) string {
	return dir + id.String() + "/" + strconv.Itoa(int(index))
}

func parsePartKey(name string) (id metadata.TopicID, index int32, err error) {
	idText, indexText, ok := strings.Cut(name, "/")
	if !ok {
		return id, 0, fmt.Errorf("%w: no partition index", errBadRecord)
	}
	if id, err = metadata.ParseTopicID(idText); err != nil {
		return id, 0, err
	}
	n, err := strconv.ParseInt(indexText, 10, 32)
	if err != nil || n < 0 {
		return id, 0, fmt.Errorf("%w: partition index %q", errBadRecord, indexText)
	}
	return id, int32(n), nil
}

func putJSON(key string, v any) (write, error) {
	value, err := json.Marshal(v)
	return write{key, value}, err
}

// getJSON refuses fields it does not know: they were written by a newer binary,
// and writing the record again would lose them.
func getJSON(value []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w: %w", errBadRecord, err)
	}
	return nil
}

// encodePartition: version; replicas; ISR; leader; leader epoch; partition epoch; and,
// unless all of them are empty, as with most partitions, adding and removing
// replicas, ELR and last known ELR; and, if there was one, the barrier with its stale
// replicas.
func encodePartition(p *metadata.Partition) []byte {
	b := append(make([]byte, 0, 16), recordVersion)
	b = appendInts(b, p.Replicas)
	b = appendInts(b, p.ISR)
	b = binary.AppendVarint(b, int64(p.Leader))
	b = binary.AppendVarint(b, int64(p.LeaderEpoch))
	b = binary.AppendVarint(b, int64(p.PartitionEpoch))
	if len(p.AddingReplicas)+len(p.RemovingReplicas)+len(p.ELR)+len(p.LastKnownELR) == 0 && p.Barrier == 0 {
		return b
	}
	for _, list := range [][]int32{p.AddingReplicas, p.RemovingReplicas, p.ELR, p.LastKnownELR} {
		b = appendInts(b, list)
	}
	if p.Barrier == 0 {
		return b
	}
	b = binary.AppendVarint(b, int64(p.Barrier))
	b = binary.AppendUvarint(b, uint64(len(p.Stale)))
	for _, s := range p.Stale {
		b = binary.AppendVarint(b, int64(s.ID))
		b = binary.AppendVarint(b, int64(s.Barrier))
		b = binary.AppendVarint(b, s.Offset)
	}
	return b
}

func decodePartition(value []byte) (*metadata.Partition, error) {
	r := reader{b: value}
	r.version()
	p := &metadata.Partition{Replicas: r.ints(), ISR: r.ints(), Leader: r.int32(), LeaderEpoch: r.int32(), PartitionEpoch: r.int32()}
	if len(r.b) > 0 {
		p.AddingReplicas, p.RemovingReplicas, p.ELR, p.LastKnownELR = r.someInts(), r.someInts(), r.someInts(), r.someInts()
	}
	if len(r.b) > 0 {
		p.Barrier = r.int32()
		for range r.count() {
			p.Stale = append(p.Stale, metadata.StaleReplica{ID: r.int32(), Barrier: r.int32(), Offset: r.int64()})
		}
	}
	return p, r.end()
}

// flagLME in a state record says that an LME record exists (W66).
const flagLME byte = 1

// encodeState: version; flags; state; previous state; state epoch; leader epoch;
// LME; LMO; retry attempt; mirror; error message.
func encodeState(s *metadata.MirrorPartition) []byte {
	b := append(make([]byte, 0, 32+len(s.Mirror)), recordVersion)
	var flags byte
	if s.HasLME {
		flags |= flagLME
	}
	b = append(b, flags, byte(s.State), byte(s.PreviousState))
	b = binary.AppendVarint(b, int64(s.StateEpoch))
	b = binary.AppendVarint(b, int64(s.LeaderEpoch))
	b = binary.AppendVarint(b, int64(s.LME))
	b = binary.AppendVarint(b, s.LMO)
	b = binary.AppendVarint(b, int64(s.RetryAttempt))
	b = appendText(b, s.Mirror)
	return appendText(b, s.ErrorMessage)
}

func decodeState(value []byte) (*metadata.MirrorPartition, error) {
	r := reader{b: value}
	r.version()
	flags := r.byte()
	s := &metadata.MirrorPartition{
		HasLME: flags&flagLME != 0, State: metadata.MirrorState(r.byte()), PreviousState: metadata.MirrorState(r.byte()),
		StateEpoch: r.int32(), LeaderEpoch: r.int32(), LME: r.int32(), LMO: r.int64(),
		RetryAttempt: int16(r.intIn(math.MinInt16, math.MaxInt16)), Mirror: r.text(), ErrorMessage: r.text(),
	}
	// UNKNOWN can stand for a partition of which only the LME is recorded.
	for _, st := range []metadata.MirrorState{s.State, s.PreviousState} {
		if !st.Valid() && st != metadata.StateUnknown {
			r.fail("state %d", st)
		}
	}
	if flags&^flagLME != 0 {
		r.fail("flags %#x", flags)
	}
	return s, r.end()
}

func appendInts(b []byte, ints []int32) []byte {
	b = binary.AppendUvarint(b, uint64(len(ints)))
	for _, i := range ints {
		b = binary.AppendVarint(b, int64(i))
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// clipMessage bounds a failure text without leaving half a character.
func clipMessage(s string) string {
	const more = "…"
	if len(s) > maxErrorMessage {
		s = strings.ToValidUTF8(s[:maxErrorMessage-len(more)], "") + more
	}
	return strings.ToValidUTF8(s, "?")
}

// reader reads a compact value. The first fault sticks; every count is bounded
// by the bytes that are left.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: "+format, append([]any{errBadRecord}, args...)...)
	}
	r.b = nil
}

func (r *reader) version() {
	if v := r.byte(); v != recordVersion {
		r.fail("version %d, this binary reads %d", v, recordVersion)
	}
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail("it ends early")
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) int64() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail("it ends early")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) intIn(lo, hi int64) int64 {
	v := r.int64()
	if v < lo || v > hi {
		r.fail("%d is out of range", v)
		return 0
	}
	return v
}

func (r *reader) int32() int32 { return int32(r.intIn(math.MinInt32, math.MaxInt32)) }

func (r *reader) count() int {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > uint64(len(r.b)-n) {
		r.fail("count beyond the end")
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

func (r *reader) ints() []int32 {
	n := r.count()
	ints := make([]int32, n)
	for i := range ints {
		ints[i] = r.int32()
	}
	return ints
}

// someInts is nil for none.
func (r *reader) someInts() []int32 {
	if ints := r.ints(); len(ints) > 0 {
		return ints
	}
	return nil
}

func (r *reader) text() string {
	n := r.count()
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) != 0 {
		r.fail("%d bytes too many", len(r.b))
	}
	return r.err
}
