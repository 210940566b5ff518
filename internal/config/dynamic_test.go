package config

import (
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// The rows that are marked dynamic here and the broker table of the metadata are
// the same, with the same defaults: what holds for a broker whose file says nothing
// must not depend on which of them is asked. A value that one of them takes at the
// borders of its range, the other takes too.
func TestDynamicKeys(t *testing.T) {
	for _, d := range metadata.BrokerConfigDefs() {
		k := find(d.Name)
		switch {
		case k == nil:
			t.Errorf("%s is dynamic, and no key of the server", d.Name)
			continue
		case !k.dynamic:
			t.Errorf("%s is dynamic in the metadata and not here", d.Name)
		case k.def != d.Default:
			t.Errorf("%s: default %q here, %q in the metadata", d.Name, k.def, d.Default)
		}
		if c := k.configType(); c != d.Type && !(c == metadata.TypeLong && d.Type == metadata.TypeInt) {
			t.Errorf("%s: type %d here, %d in the metadata", d.Name, k.configType(), d.Type)
		}
		for _, v := range []string{"-2", "-1", "0", "1", "99", "1000", "1048576", "2147483647", "x", "true", "1.5", "zstd", "LogAppendTime", "fsync", "debug"} {
			if k.kind == text {
				continue // its values are checked where they are used
			}
			if mine, theirs := k.check(v), d.Validate(v); (mine == nil) != (theirs == nil) {
				t.Errorf("%s=%s: %v here, %v in the metadata", d.Name, v, mine, theirs)
			}
		}
	}
	for i := range keys {
		if keys[i].dynamic && metadata.BrokerConfigDef(keys[i].name) == nil {
			t.Errorf("%s is dynamic here and not in the metadata", keys[i].name)
		}
	}
}
