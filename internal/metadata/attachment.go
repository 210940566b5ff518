package metadata

import "strings"

// Desired is what the operator asked for a topic (spec M4). What has become of
// it is a [MirrorState] per partition.
type Desired int8

const (
	DesiredNone      Desired = iota // an ordinary topic
	DesiredMirroring                // mirrored
	DesiredPaused                   // attached and read-only, not fetching
	DesiredStopped                  // failed over; remembered for failback
)

var desiredNames = [...]string{"NONE", "MIRRORING", "PAUSED", "STOPPED"}

// String is the upper-case name.
func (d Desired) String() string {
	if d < 0 || int(d) >= len(desiredNames) {
		return "INVALID"
	}
	return desiredNames[d]
}

// Suffixes of the internal topic config mirror.name (M4, S000-10). Mirror names
// may not end in one of them (M2), so the value can be read from the right.
const (
	suffixPaused  = ".paused"
	suffixStopped = ".removed"
)

// MirrorNameConfig is the internal topic config that carries the attachment. It
// is hidden from describe answers, and only mirror requests change it.
const MirrorNameConfig = "mirror.name"

// Attachment is which mirror a topic belongs to, and what is wanted there.
//
// Invariant: Mirror is empty exactly when Desired is DesiredNone.
type Attachment struct {
	Mirror  string
	Desired Desired
}

// ParseMirrorName reads a value of mirror.name: strip one known suffix, the rest
// is the mirror.
func ParseMirrorName(value string) Attachment {
	if value == "" {
		return Attachment{}
	}
	if m, ok := strings.CutSuffix(value, suffixPaused); ok {
		return Attachment{Mirror: m, Desired: DesiredPaused}
	}
	if m, ok := strings.CutSuffix(value, suffixStopped); ok {
		return Attachment{Mirror: m, Desired: DesiredStopped}
	}
	return Attachment{Mirror: value, Desired: DesiredMirroring}
}

// Value is the mirror.name that says the same.
func (a Attachment) Value() string {
	switch a.Desired {
	case DesiredMirroring:
		return a.Mirror
	case DesiredPaused:
		return a.Mirror + suffixPaused
	case DesiredStopped:
		return a.Mirror + suffixStopped
	}
	return ""
}
