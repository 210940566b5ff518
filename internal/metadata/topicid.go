package metadata

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
)

// TopicID names a topic for its whole life, across renames of nothing and
// deletions of everything: a topic re-created under its old name has another id.
// A mirror topic carries the id of its source (spec G3).
type TopicID [16]byte

// reservedTopicIDs are the ids that Kafka keeps for itself: zero means "no id",
// one is the metadata topic's.
var reservedTopicIDs = [...]TopicID{{}, {15: 1}}

// NewTopicID draws a version 4 id from r (crypto/rand in production, a seeded
// source in tests).
func NewTopicID(r io.Reader) (TopicID, error) {
	for {
		var id TopicID
		if _, err := io.ReadFull(r, id[:]); err != nil {
			return TopicID{}, fmt.Errorf("draw topic id: %w", err)
		}
		id[6] = id[6]&0x0f | 0x40
		id[8] = id[8]&0x3f | 0x80
		// Ids are typed on command lines, where a leading dash reads as a
		// flag; Kafka avoids them for the same reason.
		if id.Reserved() || id.String()[0] == '-' {
			continue
		}
		return id, nil
	}
}

// ParseTopicID reads the 22 character form that Kafka's tools print.
func ParseTopicID(s string) (TopicID, error) {
	var id TopicID
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) != len(id) {
		return TopicID{}, fmt.Errorf("topic id %q is not 22 characters of base64url", s)
	}
	copy(id[:], b)
	return id, nil
}

// String is base64url without padding, 22 characters.
func (id TopicID) String() string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// IsZero reports the id that means "none": a source without topic ids (W13).
func (id TopicID) IsZero() bool { return id == TopicID{} }

// nameless is how ids begin that WithoutSource makes.
var nameless = [4]byte{0x6e, 0x6f, 0x69, 0x64}

// WithoutSource is id as one that is given here to the topic of a source that tells no
// ids (W13). It is told from all that clusters draw by its beginning and by its version,
// 8: a source that tells ids after an update gives each of its topics one that is not
// ours, and the topic is the same all the same.
func (id TopicID) WithoutSource() TopicID {
	copy(id[:], nameless[:])
	id[6] = id[6]&0x0f | 0x80
	return id
}

// IsTopicOf reports whether a topic with this id here can be the one that the source
// tells that id of: it is the same, the source tells none (zero), or it told none when
// ours was given. Topics without a common id are matched by name.
func (id TopicID) IsTopicOf(source TopicID) bool {
	return source == id || source.IsZero() || [4]byte(id[:4]) == nameless && id[6]>>4 == 8
}

// Reserved reports an id that no topic of ours may carry.
func (id TopicID) Reserved() bool {
	for _, r := range reservedTopicIDs {
		if id == r {
			return true
		}
	}
	return false
}

// Compare orders ids by their bytes.
func (id TopicID) Compare(other TopicID) int { return bytes.Compare(id[:], other[:]) }
