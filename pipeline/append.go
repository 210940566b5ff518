package pipeline

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

// maxStalls bounds how many responses in a row may bring bytes and no whole
// batch.
const maxStalls = 3

// receive moves one partition's records from the session into the log, piece
// by piece. ok is false when the partition ended, backs off, or must be
// fetched again; err is one of the connection.
func (w *Worker) receive(p *Pipeline, h *sdk.PartitionHeader, records io.Reader) (ok bool, err error) {
	if end, _ := p.o.Target.LogEnd(); end != p.fetchOffset {
		return false, nil // the log moved meanwhile: these bytes no longer continue it
	}
	leader, source := p.epochs()
	state := VerifyState{NextOffset: p.fetchOffset, LastEpoch: p.lastEpoch, MaxEpoch: leader}
	if source >= 0 {
		state.MaxEpoch = min(leader, source)
	}
	w.bytes += h.RecordBytes
	buf, err := w.piece.bytes(w.ctx)
	if err != nil {
		return false, err
	}
	defer w.piece.shrink()
	start := state.NextOffset
	have, left := 0, h.RecordBytes
	for left > 0 {
		n := min(left, len(buf)-have)
		if _, err := io.ReadFull(records, buf[have:have+n]); err != nil {
			return false, err
		}
		have += n
		left -= n
		p.fetchedBytes.Add(n)

		good, bad := w.verify(p, buf[:have], &state)
		var epoch *EpochError
		if errors.As(bad, &epoch) {
			good = 0 // W35: an epoch ahead means that nothing of the piece is appended
		}
		if good > 0 && !w.append(p, buf[:good], &state) {
			return false, nil
		}
		if bad != nil {
			w.reject(p, bad)
			return false, nil
		}
		have = copy(buf, buf[good:have])
		if have == len(buf) {
			// A batch larger than the buffer. Its size is known from its head.
			size, err := record.PeekSize(buf)
			if err == nil {
				buf, err = w.piece.grow(w.ctx, size, have)
			}
			if err != nil {
				if w.ctx.Err() == nil {
					w.end(p, newEnd(Corrupt, fmt.Errorf("%s: at offset %d: %w", p.o.Key, state.NextOffset, err)))
				}
				return false, nil
			}
		}
	}
	if state.NextOffset == start {
		return w.stalled(p, buf[:have]), nil
	}
	p.damaged, p.stalls, p.maxBytes = false, 0, 0
	return true, nil
}

// verify is VerifyMirror plus the one case in which a batch may begin below
// the log end: the log is empty and begins inside the source's batch.
func (w *Worker) verify(p *Pipeline, b []byte, s *VerifyState) (good int, err error) {
	good, err = VerifyMirror(b, s)
	var offset *OffsetError
	if good > 0 || p.lastEpoch >= 0 || !errors.As(err, &offset) || offset.Last < s.NextOffset {
		return good, err
	}
	target, ok := p.o.Target.(Restarter)
	if !ok {
		return good, err
	}
	moved := *s
	moved.NextOffset = offset.Base
	again, err := VerifyMirror(b, &moved)
	if again == 0 {
		return 0, err
	}
	p.gate.Lock()
	var local error
	if p.gate.attached {
		local = target.RestartEmpty(p.gate.leaderEpoch, offset.Base)
	}
	p.gate.Unlock()
	if local != nil {
		return 0, &localError{local}
	}
	// A response without records may have moved our log start already; now it is
	// at the batch's base and has to move again.
	p.followed = -1
	*s = moved
	return again, err
}

// localError marks an error of our own log among those of the bytes.
type localError struct{ error }

// append hands whole verified batches to the log in one call. False means that
// the partition was detached meanwhile or that the log refused.
func (w *Worker) append(p *Pipeline, batches []byte, s *VerifyState) bool {
	p.gate.Lock()
	if !p.gate.attached {
		p.gate.Unlock()
		return false
	}
	leader := p.gate.leaderEpoch
	invariants.Fault("pipeline.beforeAppend")
	end, err := p.o.Target.MirrorAppend(leader, batches)
	invariants.Fault("pipeline.afterAppend")
	p.gate.Unlock()
	if err != nil {
		w.refusedLocally(p, err)
		return false
	}
	if err := invariants.Check(end == s.NextOffset, "%s: appended to %d, log ends at %d", p.o.Key, s.NextOffset, end); err != nil {
		w.end(p, newEnd(Local, err))
		return false
	}
	p.fetchOffset, p.lastEpoch = end, s.LastEpoch
	p.appendedBytes.Add(len(batches))
	p.appendedRecords.Add(int(s.Records))
	s.Records, s.Batches = 0, 0
	// W31, W35: raise our epoch before the source's passes it.
	if s.LastEpoch > leader-epochMargin && s.LastEpoch != p.nearEpoch {
		p.nearEpoch = s.LastEpoch
		p.o.Observer.NearEpoch(p, s.LastEpoch)
	}
	return true
}

// epochMargin is the distance below our leader epoch at which a bump is asked
// for (9.8).
const epochMargin = 3

// refusedLocally gives the log a second chance after a backoff: an epoch of
// ours that was just raised reaches the log before it reaches SetEpochs. A
// deposed leader and a broken disk refuse again.
//
// A full disk is waited for: the partition stays, its lag grows, and it goes on
// where it is as soon as there is room.
func (w *Worker) refusedLocally(p *Pipeline, err error) {
	if errors.Is(err, segment.ErrFull) {
		w.waitForRoom(p)
		return
	}
	if !p.refused {
		p.refused = true
		w.backoff(p)
		return
	}
	w.end(p, newEnd(Local, err))
}

// fullAsk is how often a partition whose log has no room asks its source all the
// same, so that its lag stays true. What comes is thrown away, hence seldom; as
// soon as there is room it asks after one backoff.
const fullAsk = 10 * time.Second

// roomTarget is a Target that knows without an append whether it has room.
type roomTarget interface{ Full() bool }

func (w *Worker) waitForRoom(p *Pipeline) {
	p.fullUntil = w.o.Clock.Now().Add(fullAsk)
	w.backoff(p)
}

// full says that p waits for room in its log.
func (p *Pipeline) full(now time.Time) bool {
	if p.fullUntil.IsZero() {
		return false
	}
	target, ok := p.o.Target.(roomTarget)
	if ok && target.Full() && now.Before(p.fullUntil) {
		return true
	}
	p.fullUntil = time.Time{}
	return false
}

// heldPause is how often a partition whose Target takes nothing now is looked at again.
const heldPause = 100 * time.Millisecond

// heldTarget is a Target that may take no more for now, though it has room: a replica
// that an operator slows down.
type heldTarget interface{ Held() bool }

func (p *Pipeline) held() bool {
	target, ok := p.o.Target.(heldTarget)
	return ok && target.Held()
}

// reject reacts to bytes that failed verification.
func (w *Worker) reject(p *Pipeline, err error) {
	var epoch *EpochError
	var local *localError
	switch {
	case errors.As(err, &local):
		w.refusedLocally(p, local.error)
		return
	case errors.As(err, &epoch):
		leader, _ := p.epochs()
		e := newEnd(SourceEpochStale, fmt.Errorf("%s: source's metadata is stale: %w", p.o.Key, err))
		if epoch.Epoch > leader {
			e = newEnd(EpochAhead, fmt.Errorf("%s: our leader epoch is %d: %w", p.o.Key, leader, err))
		}
		e.Epoch = epoch.Epoch
		w.end(p, e)
		return
	case errors.Is(err, ErrFormat):
		w.end(p, newEnd(Format, fmt.Errorf("%s: %w", p.o.Key, err)))
		return
	}
	if !p.damaged {
		// Once may be the line's fault (9.7): fetch again.
		p.damaged = true
		w.o.Logger.Warn("damaged batch from the source, fetching again", "partition", p.o.Key.String(), "error", err)
		return
	}
	w.end(p, newEnd(Corrupt, fmt.Errorf("%s: damaged twice in a row: %w", p.o.Key, err)))
}

// stalled handles a response that held bytes but no whole batch: a source that
// cuts at our limit even where the first batch does not fit.
func (w *Worker) stalled(p *Pipeline, cut []byte) bool {
	size, err := record.PeekSize(cut)
	asked := max(p.maxBytes, w.o.PartitionMaxBytes)
	if p.stalls++; p.stalls > maxStalls || (err == nil && size > w.o.MaxBatchBytes) {
		w.end(p, newEnd(Corrupt, fmt.Errorf("%s: source sends no whole batch at offset %d (its size is %d bytes, %d were asked for)",
			p.o.Key, p.fetchOffset, size, asked)))
		return false
	}
	if err == nil && int32(size) > asked {
		p.maxBytes = int32(size)
	} else {
		w.backoff(p)
	}
	return true
}

// advanceStart follows the source's log start (W38).
func (w *Worker) advanceStart(p *Pipeline, start int64) bool {
	p.gate.Lock()
	if !p.gate.attached {
		p.gate.Unlock()
		return false
	}
	err := p.o.Target.AdvanceLogStart(p.gate.leaderEpoch, start)
	p.gate.Unlock()
	if err != nil {
		w.refusedLocally(p, err)
		return false
	}
	p.followed = start
	return true
}
