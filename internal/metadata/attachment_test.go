package metadata

import "testing"

func TestMirrorName(t *testing.T) {
	for value, want := range map[string]Attachment{
		"":                 {},
		"m":                {"m", DesiredMirroring},
		"m.paused":         {"m", DesiredPaused},
		"m.removed":        {"m", DesiredStopped},
		"a.b.removed":      {"a.b", DesiredStopped},
		"m.paused.removed": {"m.paused", DesiredStopped}, // one suffix, from the right
	} {
		got := ParseMirrorName(value)
		if got != want || got.Value() != value {
			t.Errorf("%q: %+v (back: %q), want %+v", value, got, got.Value(), want)
		}
	}
}

// TestReadOnly is L18, with W60: read-only from the moment of start.
func TestReadOnly(t *testing.T) {
	for _, c := range []struct {
		name   string
		value  string
		mirror string // under which the state was recorded, "-" for none
		state  MirrorState
		want   bool
	}{
		{"ordinary topic", "", "-", StateUnknown, false},
		{"ordinary again, states left over", "", "m", StateStopped, false},
		{"nothing recorded yet", "m", "-", StateUnknown, true},
		{"mirroring", "m", "m", StateMirroring, true},
		{"paused", "m.paused", "m", StatePaused, true},
		{"stop asked, not begun", "m.removed", "m", StateMirroring, true},
		{"stop under way", "m.removed", "m", StateStopping, true},
		{"stop failed", "m.removed", "m", StateFailed, true},
		{"stopped", "m.removed", "m", StateStopped, false},
		{"started again, leader not there yet", "m", "m", StateStopped, true},
		{"stopped in another mirror, started here", "n", "m", StateStopped, true},
		{"stopped here, states of another mirror", "n.removed", "m", StateStopped, true},
	} {
		p := &Partition{}
		if c.mirror != "-" {
			p.Mirror = &MirrorPartition{Mirror: c.mirror, State: c.state}
		}
		topic := &Topic{MirrorName: c.value, Partitions: []*Partition{p}}
		if got := topic.ReadOnly(p); got != c.want {
			t.Errorf("%s: read-only %v, want %v", c.name, got, c.want)
		}
	}
}

// MIR-006: which names a mirror may have; one that is allowed is read back as it is, with
// whatever is wanted of the topic behind it.
func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"orders": true, "a.b_c-D9": true, "__consumer_offsets": true, "": false, ".": false, "..": false, "...": true,
		"a b": false, "a/b": false, "ä": false, "a,b": false, string(make([]byte, 249)): false,
	} {
		if err := ValidateTopicName(name); (err == nil) != ok {
			t.Errorf("topic %q: %v", name, err)
		}
	}
	long := make([]byte, 250)
	for i := range long {
		long[i] = 'x'
	}
	if ValidateTopicName(string(long)) == nil || ValidateTopicName(string(long[:249])) != nil {
		t.Error("the limit is 249 characters")
	}
	for name, ok := range map[string]bool{
		"m": true, "m.paused": false, "m.removed": false, "m.paused.x": true, "..": false, ".": false, "": false,
		string(long): false, string(long[:249]): true, "a/b": false, "a:b": false, "a;b": false, "a b": false, "\u00e4": false,
		"7": true, "m-7": true, "m-7-0": true, "7-m_8-9": true,
	} {
		if err := ValidateMirrorName(name); (err == nil) != ok {
			t.Errorf("mirror %q: %v", name, err)
		}
		if a := (Attachment{name, DesiredStopped}); ok && ParseMirrorName(a.Value()) != a {
			t.Errorf("%q is read back as %+v", a.Value(), ParseMirrorName(a.Value()))
		}
	}
}
