package epoch

import "sort"

// MirrorTarget is the offset T to which a partition is cut before it mirrors
// again, from the last mirrored epoch (lme) and, where the peer gives one, the
// last mirrored offset (lmo, -1 if not) of the cluster that will now be the
// source (spec 9.6.2, W25).
//
//	lme = -1                     0: the peer never mirrored us, start from scratch (S000)
//	log empty                    the log end, nothing to cut
//	lme = newest epoch           the log end
//	lme above the newest         the log end: our log is a prefix of what the peer
//	                             mirrored (the reference cuts to 0 here)
//	lme below the oldest         start of the oldest entry: everything goes
//	otherwise                    start of the smallest epoch above lme, also when lme
//	                             itself has no entry
//
// and never beyond lmo. A T below the log start means that the caller drops
// all segments and restarts the empty log at T.
func MirrorTarget(entries []Entry, logEnd int64, lme int32, lmo int64) int64 {
	if lme < 0 {
		return 0
	}
	t := logEnd
	i := sort.Search(len(entries), func(i int) bool { return entries[i].Epoch > lme })
	if i < len(entries) {
		t = entries[i].Start
	}
	if lmo >= 0 {
		t = min(t, lmo)
	}
	return min(t, logEnd)
}
