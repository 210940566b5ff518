package mirror

import (
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// alignQuestions is what align wants to know of the source's leader.
type alignQuestions struct {
	// epochEnd is OffsetForLeaderEpoch: the largest epoch of the source not
	// above the one given, and where it ends; undefined if it knows none.
	epochEnd func(epoch int32) (sdk.EpochEnd, error)
	// bounds are the first offset and the high watermark of the source.
	bounds func() (earliest, latest int64, err error)
}

// align finds where our log and the source's part (W27): the offset to cut to
// so that what is left is a prefix of the source's history. entries are the
// leader epochs of our log, end is where the log will end before the question
// is asked (the cut for the last mirrored epoch, or the log end). The answer
// never exceeds end, and equals it when nothing has to go.
//
// It is the truncation that a follower does against its leader, asked of
// another cluster: for each of our epochs, newest first, where does it end
// there? Each round drops at least the newest epoch, so it ends after at most
// len(entries) questions.
func align(entries []epoch.Entry, end int64, ask alignQuestions) (int64, error) {
	for {
		entries = cutEntries(entries, end)
		if len(entries) == 0 {
			return end, nil
		}
		newest := entries[len(entries)-1]
		answer, err := ask.epochEnd(newest.Epoch)
		switch {
		case err != nil:
			return 0, err
		case answer.Epoch > newest.Epoch:
			return 0, fmt.Errorf("source answered epoch %d when asked for the end of epoch %d", answer.Epoch, newest.Epoch)
		case !answer.Defined():
			// The source knows no epoch that old. An empty log never does; then
			// only its position counts. A source that is a mirror itself may not
			// know a newer epoch of ours (L3): nothing of it is there.
			earliest, latest, err := ask.bounds()
			if err != nil {
				return 0, err
			}
			if earliest == latest {
				return min(end, latest), nil
			}
			end = newest.Start
		case answer.Epoch == newest.Epoch:
			return min(end, answer.End), nil
		default:
			// What we have above the source's epoch is not there. It shares with
			// us at most what both have of the epochs up to it.
			end = min(answer.End, localEnd(entries, answer.Epoch))
		}
	}
}

// localEnd is where epoch e and everything before it ends in our log. Some entry
// is above e, or the caller would not ask.
func localEnd(entries []epoch.Entry, e int32) int64 {
	for _, entry := range entries {
		if entry.Epoch > e {
			return entry.Start
		}
	}
	return entries[len(entries)-1].Start
}

// cutEntries is what is left of entries in a log that ends at end.
func cutEntries(entries []epoch.Entry, end int64) []epoch.Entry {
	for len(entries) > 0 && entries[len(entries)-1].Start >= end {
		entries = entries[:len(entries)-1]
	}
	return entries
}
