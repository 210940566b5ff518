package partition

import (
	"errors"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/producer"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

// Isolation levels of a fetch.
const (
	ReadUncommitted int8 = 0
	ReadCommitted   int8 = 1
	// ReadEverything is ListOffset's for the brokers of the cluster: up to the log's
	// end.
	ReadEverything int8 = -1
)

// Timestamps with a meaning in ListOffset.
const (
	Latest       int64 = -1
	Earliest     int64 = -2
	MaxTimestamp int64 = -3
)

// ReadRequest asks for batches from Offset on.
type ReadRequest struct {
	Offset             int64
	MaxBytes           int
	AtLeastOne         bool // return the first batch whole even if it is larger than MaxBytes
	Isolation          int8
	CurrentLeaderEpoch int32 // -1: not checked
	LastFetchedEpoch   int32 // -1: no divergence check
	// AnyReplica says that a follower may answer (KIP-392).
	AnyReplica bool
	// ToEnd reads up to the log's end: a broker of the cluster repairs its replica.
	ToEnd bool
}

// ReadResult is one answer. The caller releases View when the bytes are sent.
type ReadResult struct {
	View          segment.View
	HighWatermark int64
	LastStable    int64
	LogStart      int64
	Aborted       []producer.AbortedTxn // only for ReadCommitted
	Diverging     *sdk.EpochEnd         // the histories part: no data
	LeaderID      int32
	LeaderEpoch   int32
	HeldBack      bool // there is more, for which the replication throttle has no room now
}

// Read serves a consumer, on a follower up to the high watermark that this one knows,
// which may be less than the leader's: nothing at or above the high watermark, for
// ReadCommitted nothing at or above the last stable offset. On an error the
// result still carries the offsets and the leader that the answer needs.
func (p *Partition) Read(r ReadRequest) (ReadResult, error) {
	v := p.view.Load()
	res := ReadResult{HighWatermark: -1, LastStable: -1, LogStart: -1, LeaderID: v.leaderID, LeaderEpoch: v.leaderEpoch}
	if err := v.readable(r.AnyReplica); err != nil {
		return res, p.wrap(err)
	}
	if err := v.checkEpoch(r.CurrentLeaderEpoch); err != nil {
		return res, p.wrap(err)
	}
	res.HighWatermark = v.highWatermark
	res.LogStart = p.log.StartOffset()
	notReady := p.log.Ready()
	if notReady == nil {
		res.LastStable = p.log.LastStable(v.highWatermark)
	} else if !errors.Is(notReady, segment.ErrRebuilding) {
		return res, p.storage(notReady)
	}
	if notReady != nil && (r.Isolation == ReadCommitted || r.LastFetchedEpoch >= 0 && r.Offset > res.LogStart && !p.follows(r.Offset, r.LastFetchedEpoch)) {
		return res, nil
	}

	if r.LastFetchedEpoch >= 0 && notReady == nil {
		epoch, end := p.epochEnd(r.LastFetchedEpoch)
		if epoch < 0 {
			return res, p.wrap(fmt.Errorf("%w: no epoch at or below %d is known", ErrOutOfRange, r.LastFetchedEpoch))
		}
		if epoch < r.LastFetchedEpoch || end < r.Offset {
			res.Diverging = &sdk.EpochEnd{Epoch: epoch, End: end}
			return res, nil
		}
	}
	if logEnd := p.log.EndOffset(); r.Offset < res.LogStart || r.Offset > logEnd {
		if r.Offset > logEnd && r.CurrentLeaderEpoch >= 0 && p.CutIn(v.leaderEpoch) {
			// A mirror has cut what this consumer has read, and another epoch is about to
			// begin, in which it asks where the histories part. Told that its offset is out
			// of range it would start over, or skip what is there.
			return res, p.wrap(fmt.Errorf("%w: in epoch %d the log was cut to %d, which is below %d", ErrFencedEpoch, v.leaderEpoch, logEnd, r.Offset))
		}
		return res, p.wrap(fmt.Errorf("%w: %d is not in [%d, %d]", ErrOutOfRange, r.Offset, res.LogStart, logEnd))
	}
	end := res.HighWatermark
	if r.Isolation == ReadCommitted {
		end = res.LastStable
	}
	if r.ToEnd || invariants.Planted("readAboveHighWatermark") {
		end = p.log.EndOffset()
	}
	if r.Offset >= end || r.MaxBytes <= 0 && !r.AtLeastOne {
		return res, nil
	}
	var err error
	if r.Isolation == ReadCommitted {
		res.View, res.Aborted, err = p.log.ReadCommitted(r.Offset, r.MaxBytes, end, r.AtLeastOne)
	} else {
		res.View, err = p.log.Read(r.Offset, r.MaxBytes, end, r.AtLeastOne)
	}
	if err != nil {
		return res, p.readError(err)
	}
	return res, nil
}

// epochEnd is where an epoch of somebody who fetches ends here. No epoch is too new to
// tell (GI-03): of one above all that are in the log nothing is there. A leader that has
// not appended yet is asked for the epoch of the leader before it, and who heard that
// nothing is known of it would drop the whole log.
//
// A log that holds nothing, because retention took it all, knows no epoch: whatever was
// written in any ended where it begins. Nothing there can differ from what anybody has.
func (p *Partition) epochEnd(e int32) (int32, int64) {
	last, ok := p.log.LatestEpoch()
	switch {
	case !ok:
		return e, p.log.EndOffset()
	case e > last && !invariants.Planted("newerEpochUnknown"):
		return last, p.log.EndOffset()
	}
	return p.log.EpochEnd(e)
}

// EpochEnd answers OffsetForLeaderEpoch from the epochs in the log (L3).
func (p *Partition) EpochEnd(currentEpoch, epoch int32) (sdk.EpochEnd, error) {
	v := p.view.Load()
	if err := v.usable(); err != nil {
		return sdk.Undefined, p.wrap(err)
	}
	if err := v.checkEpoch(currentEpoch); err != nil {
		return sdk.Undefined, p.wrap(err)
	}
	if err := p.log.Ready(); err != nil {
		return sdk.Undefined, p.notYet(err)
	}
	e, end := p.log.EpochEnd(epoch)
	return sdk.EpochEnd{Epoch: e, End: end}, nil
}

// ListOffset finds an offset by timestamp or by one of the names above. Not
// found is offset -1 without an error.
func (p *Partition) ListOffset(ts int64, isolation int8, currentEpoch int32) (offset, timestamp int64, epoch int32, err error) {
	v := p.view.Load()
	if err = v.usable(); err == nil {
		err = v.checkEpoch(currentEpoch)
	}
	if err != nil {
		return -1, -1, -1, p.wrap(err)
	}
	// Without a history, the two ends can be told, without their epochs.
	if ready := p.log.Ready(); ready != nil && (ts != Earliest && ts != Latest || isolation == ReadCommitted && ts == Latest) {
		return -1, -1, -1, p.notYet(ready)
	}
	if ts != Earliest && isolation != ReadEverything && !v.confirmed {
		// A new leader does not know yet where the committed part ends, and must not
		// answer with less than the last one did (KIP-207).
		return -1, -1, -1, p.wrap(fmt.Errorf("%w: the replicas in sync have not confirmed leader epoch %d", ErrOffsetNotAvailable, v.leaderEpoch))
	}
	end := v.highWatermark
	switch isolation {
	case ReadCommitted:
		end = p.log.LastStable(end)
	case ReadEverything:
		end = p.log.EndOffset()
	}
	switch ts {
	case Latest:
		// The epoch of the last record below the end, as a consumer that
		// starts here will send it back for validation (KIP-320).
		e := int32(-1)
		if end > p.log.StartOffset() {
			if x, ok := p.log.EpochAt(end - 1); ok {
				e = x
			}
		}
		return end, -1, e, nil
	case Earliest:
		start := p.log.StartOffset()
		e, ok := p.log.EpochAt(start)
		if !ok {
			e = -1
		}
		return start, -1, e, nil
	case MaxTimestamp:
		o, t, e, ok := p.log.MaxTimestamp()
		if !ok || o >= end {
			return -1, -1, -1, nil
		}
		return o, t, e, nil
	}
	o, t, e, ok, err := p.log.OffsetForTime(ts)
	if err != nil {
		return -1, -1, -1, p.readError(err)
	}
	if !ok || o >= end {
		return -1, -1, -1, nil
	}
	return o, t, e, nil
}

// readError keeps a race between a read and a truncation or retention apart
// from a failing disk: the former is an ordinary answer.
func (p *Partition) readError(err error) error {
	if errors.Is(err, segment.ErrOutOfRange) {
		return p.wrap(fmt.Errorf("%w: %w", ErrOutOfRange, err))
	}
	return p.storage(err)
}
