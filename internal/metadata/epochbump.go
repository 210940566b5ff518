package metadata

// A destination's leader epoch must stay at or above the source's (W43), or
// consumers that committed a source epoch would refresh their metadata for ever.
// It is raised when the source has come within bumpThreshold, to bumpIncrement
// beyond the source, so that about nine source elections pass between raises.
const (
	bumpThreshold = 3
	bumpIncrement = 10
)

// NeedBump decides whether a destination leader epoch (dle) must be raised for a
// source leader epoch, or the epoch of received batches if that is higher (sle).
// The minimum it answers is what BumpLeaderEpochs wants: the new epoch will be
// one more (spec 9.8, A.6).
func NeedBump(sle, dle int32) (minLeaderEpoch int32, need bool) {
	if int64(sle) <= int64(dle)-bumpThreshold {
		return 0, false
	}
	// An epoch near the end of its range can come only from a hostile source;
	// the caller's pipeline refuses batches it cannot keep up with.
	if m := int64(sle) + bumpIncrement; m < maxLeaderEpoch {
		return int32(m), true
	}
	return maxLeaderEpoch - 1, sle < maxLeaderEpoch && dle < maxLeaderEpoch
}

// maxLeaderEpoch is the highest leader epoch that can be written.
const maxLeaderEpoch = 1<<31 - 1
