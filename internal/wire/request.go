package wire

import "github.com/twmb/franz-go/pkg/kmsg"

// The keys of KIP-1279 (spec 5.2). kmsg has another message at 94
// (UnregisterController); for us the number is the mirror's.
const (
	firstMirrorKey = 94
	lastMirrorKey  = 107
)

// mirrorRequests holds the constructors of the messages in mirror_*.go, by
// key − firstMirrorKey. Those files fill it in their init.
var mirrorRequests [lastMirrorKey - firstMirrorKey + 1]func() kmsg.Request

// NewRequest returns an empty request of the key, or nil when the key is
// unknown to us.
func NewRequest(key int16) kmsg.Request {
	if key >= firstMirrorKey && key <= lastMirrorKey {
		if f := mirrorRequests[key-firstMirrorKey]; f != nil {
			return f()
		}
		return nil
	}
	return kmsg.RequestForKey(key)
}

// IsFlexible tells whether a version of a key is encoded with compact types
// and tagged fields (KIP-482). A version above the newest known one counts as
// the newest; an unknown key counts as not flexible.
func IsFlexible(key, version int16) bool {
	if key < 0 || int(key) >= len(firstFlexible) {
		return false
	}
	return version >= firstFlexible[key]
}

// firstFlexible is the first flexible version by key, found by asking kmsg
// once instead of allocating a request for each header.
var firstFlexible = func() (first [lastMirrorKey + 1]int16) {
	for key := range first {
		first[key] = 1<<15 - 1
		if key >= firstMirrorKey {
			first[key] = 0 // P1: all flexible from their only version
			continue
		}
		req := kmsg.RequestForKey(int16(key))
		if req == nil {
			continue
		}
		for v := range req.MaxVersion() + 1 {
			if req.SetVersion(v); req.IsFlexible() {
				first[key] = v
				break
			}
		}
	}
	return first
}()
