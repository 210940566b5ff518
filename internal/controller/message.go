package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// What nodes say to each other about commands. A command travels as JSON under the
// name of its type; a change travels as the key and value that it is stored as; an
// error travels as its text and the names of the sentinels that it wraps. A node
// refuses what it does not know in full: it may come from a newer version, and half
// of a command is another command.
type (
	commandMessage struct {
		Type string
		Body json.RawMessage
	}
	submitCall struct {
		// Headed: see request. Dry only decides.
		Headed, Dry bool
		Commands    []commandMessage
		// Beat and Ends stand instead of commands.
		Beat *Heartbeat  `json:",omitempty"`
		Ends *endsReport `json:",omitempty"`
	}
	outcomeMessage struct {
		Writes []writeMessage `json:",omitempty"`
		Err    *errorMessage  `json:",omitempty"`
	}
	writeMessage struct {
		Key   string
		Value []byte // null: deleted
	}
	submitAnswer struct {
		// Revision is what an image must show to show the outcome.
		Revision int64
		Outcomes []outcomeMessage
		Beat     HeartbeatResult
		Err      *errorMessage
		// Unsure: Err leaves open whether something was done.
		Unsure bool
	}
	errorMessage struct {
		Text string
		Is   []string `json:",omitempty"`
	}
)

// commandTypes are all the commands that there are, by the names of their types.
var commandTypes = byName(
	registerBroker{}, createTopic{}, deleteTopicByID{}, growTopic{}, alterConfigs{}, allocateProducerIDs{},
	createMirror{}, removeMirror{}, startHead{}, startTopic{}, setHead{}, setTopic{}, recoverHead{}, recoverTopic{},
	writeState{}, bumpEpoch{}, alterScram{}, alterQuotas{}, createACL{}, deleteACLs{}, copyACL{},
	unregisterBroker{}, fenceBrokers{}, unfenceBroker{}, drainBroker{}, electOffline{}, electLeader{}, electUnclean{}, electLongest{}, resignReplicas{},
	alterISR{}, reassign{},
)

func byName(cmds ...Command) map[string]reflect.Type {
	m := make(map[string]reflect.Type, len(cmds))
	for _, c := range cmds {
		m[reflect.TypeOf(c).Name()] = reflect.TypeOf(c)
	}
	return m
}

// sentinels are the errors that a caller may ask for, by name: all of errors.go, and
// what contexts end with.
var sentinels = map[string]error{
	"ErrUnknownTopic":                ErrUnknownTopic,
	"ErrUnknownTopicID":              ErrUnknownTopicID,
	"ErrStoreFull":                   ErrStoreFull,
	"ErrInvalidTopic":                ErrInvalidTopic,
	"ErrTopicExists":                 ErrTopicExists,
	"ErrInvalidPartitions":           ErrInvalidPartitions,
	"ErrInvalidReplicationFactor":    ErrInvalidReplicationFactor,
	"ErrInvalidReplicaAssignment":    ErrInvalidReplicaAssignment,
	"ErrInvalidConfig":               ErrInvalidConfig,
	"ErrNotController":               ErrNotController,
	"errAskAnother":                  errAskAnother,
	"ErrInvalidRequest":              ErrInvalidRequest,
	"ErrFencedLeaderEpoch":           ErrFencedLeaderEpoch,
	"ErrUnknownScram":                ErrUnknownScram,
	"ErrUnacceptableCredential":      ErrUnacceptableCredential,
	"ErrStaleBrokerEpoch":            ErrStaleBrokerEpoch,
	"ErrPreferredLeaderNotAvailable": ErrPreferredLeaderNotAvailable,
	"ErrEligibleLeadersNotAvailable": ErrEligibleLeadersNotAvailable,
	"ErrElectionNotNeeded":           ErrElectionNotNeeded,
	"ErrNoReassignment":              ErrNoReassignment,
	"ErrInvalidUpdateVersion":        ErrInvalidUpdateVersion,
	"ErrDuplicateBroker":             ErrDuplicateBroker,
	"ErrUnknownBroker":               ErrUnknownBroker,
	"ErrIneligibleReplica":           ErrIneligibleReplica,
	"ErrInconsistentTopicID":         ErrInconsistentTopicID,
	"ErrFencedStateEpoch":            ErrFencedStateEpoch,
	"ErrReadOnlyTopic":               ErrReadOnlyTopic,
	"ErrInvalidMirrorName":           ErrInvalidMirrorName,
	"ErrMirrorExists":                ErrMirrorExists,
	"ErrUnknownMirror":               ErrUnknownMirror,
	"ErrTopicInOtherMirror":          ErrTopicInOtherMirror,
	"ErrTopicNotInMirror":            ErrTopicNotInMirror,
	"ErrNotPaused":                   ErrNotPaused,
	"ErrBeingStopped":                ErrBeingStopped,
	"ErrMirrorNotEmpty":              ErrMirrorNotEmpty,
	"ErrMirrorStates":                ErrMirrorStates,
	"ErrNotStopped":                  ErrNotStopped,
	"ErrOtherMetadata":               ErrOtherMetadata,
	"ErrClosed":                      ErrClosed,
	"Canceled":                       context.Canceled,
	"DeadlineExceeded":               context.DeadlineExceeded,
}

// sentinelNames puts them in an order, so that the same error is written the same.
var sentinelNames = slices.Sorted(maps.Keys(sentinels))

func encodeCommands(cmds []Command) ([]commandMessage, error) {
	out := make([]commandMessage, len(cmds))
	for i, c := range cmds {
		body, err := json.Marshal(c)
		if err != nil {
			return nil, fmt.Errorf("%w: %T: %w", ErrInvalidRequest, c, err)
		}
		out[i] = commandMessage{reflect.TypeOf(c).Name(), body}
	}
	return out, nil
}

func decodeCommands(msgs []commandMessage) ([]Command, error) {
	if len(msgs) > maxBatchCommands {
		return nil, fmt.Errorf("%w: %d commands in one request, at most %d", ErrInvalidRequest, len(msgs), maxBatchCommands)
	}
	cmds := make([]Command, len(msgs))
	for i, m := range msgs {
		t, ok := commandTypes[m.Type]
		if !ok {
			return nil, fmt.Errorf("%w: command %q is not known to this version", ErrInvalidRequest, m.Type)
		}
		v := reflect.New(t)
		d := json.NewDecoder(bytes.NewReader(m.Body))
		d.DisallowUnknownFields()
		if err := d.Decode(v.Interface()); err != nil {
			return nil, fmt.Errorf("%w: command %s: %w", ErrInvalidRequest, m.Type, err)
		}
		cmds[i] = v.Elem().Interface().(Command)
	}
	return cmds, nil
}

func encodeOutcomes(items []outcome) []outcomeMessage {
	out := make([]outcomeMessage, len(items))
	for i, it := range items {
		out[i].Err = encodeError(it.err)
		for _, g := range it.groups {
			for _, w := range g {
				out[i].Writes = append(out[i].Writes, writeMessage{w.key, w.value})
			}
		}
	}
	return out
}

// decodeOutcomes reads what became of n commands, at a revision.
func (c codec) decodeOutcomes(msgs []outcomeMessage, n int, revision int64) ([]outcome, error) {
	if len(msgs) != n {
		return nil, fmt.Errorf("%w: %d outcomes of %d commands", errBadRecord, len(msgs), n)
	}
	items := make([]outcome, n)
	for i, m := range msgs {
		items[i].err = decodeError(m.Err)
		for _, w := range m.Writes {
			ch, err := c.decode(w.Key, w.Value, revision)
			if err != nil {
				return nil, err
			}
			if ch != nil {
				items[i].changes = append(items[i].changes, ch)
			}
		}
	}
	return items, nil
}

func encodeError(err error) *errorMessage {
	if err == nil {
		return nil
	}
	m := &errorMessage{Text: err.Error()}
	for _, name := range sentinelNames {
		if errors.Is(err, sentinels[name]) {
			m.Is = append(m.Is, name)
		}
	}
	return m
}

func decodeError(m *errorMessage) error {
	if m == nil {
		return nil
	}
	e := &remoteError{text: m.Text}
	for _, name := range m.Is {
		if s, ok := sentinels[name]; ok {
			e.is = append(e.is, s)
		}
	}
	return e
}

// remoteError is an error of another node: its words, and what errors.Is knows it by.
type remoteError struct {
	text string
	is   []error
}

func (e *remoteError) Error() string   { return e.text }
func (e *remoteError) Unwrap() []error { return e.is }

// repeatable tells whether a command whose fate is not known may be sent again: it
// then changes nothing, or something that nobody minds, or its caller sees by the
// image that it was its own doing. Others answer ErrNotController, and whoever gave
// the command looks what became of it: state writes are fenced by an epoch that
// they raise, and mirror requests by the revision at which their caller looked.
func repeatable(cmd Command) bool {
	switch cmd.(type) {
	case registerBroker, unregisterBroker, bumpEpoch, alterISR, reassign, electLeader, resignReplicas, // fenced, or the same again
		allocateProducerIDs,                           // wastes ids
		alterConfigs, alterQuotas, createACL, copyACL, // set what they set
		createTopic, deleteTopicByID, growTopic: // see Controller.CreateTopics and its neighbours
		return true
	}
	return false
}
