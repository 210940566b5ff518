package metadata

import (
	"errors"
	"fmt"
	"strings"
)

// maxNameLength leaves room for the suffixes that file names of Kafka add; ours
// are named by id, but a topic must also fit on a Kafka that mirrors us.
const maxNameLength = 249

// ValidateTopicName applies Kafka's rules.
func ValidateTopicName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case name == "." || name == "..":
		return fmt.Errorf("%q is reserved", name)
	case len(name) > maxNameLength:
		return fmt.Errorf("%d characters, more than %d", len(name), maxNameLength)
	}
	for _, r := range name {
		legal := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-'
		if !legal {
			return fmt.Errorf("%q holds %q; allowed are ASCII letters, digits, '.', '_' and '-'", name, r)
		}
	}
	return nil
}

// ValidateMirrorName applies the rules for topics, and keeps the suffixes of
// mirror.name out (M2).
func ValidateMirrorName(name string) error {
	if err := ValidateTopicName(name); err != nil {
		return err
	}
	for _, s := range []string{suffixPaused, suffixStopped} {
		if strings.HasSuffix(name, s) {
			return fmt.Errorf("%q ends in %s, which marks a state", name, s)
		}
	}
	return nil
}

// CollidingTopic returns an existing topic whose metric name would be name's:
// metric names turn dots into underscores, so Kafka allows only one of a.b and
// a_b. Empty if there is none.
func (img *Image) CollidingTopic(name string) string {
	if !strings.ContainsAny(name, "._") {
		return ""
	}
	flat := strings.ReplaceAll(name, ".", "_")
	for t := range img.AllTopics() {
		if len(t.Name) == len(name) && t.Name != name && strings.ReplaceAll(t.Name, ".", "_") == flat {
			return t.Name
		}
	}
	return ""
}
