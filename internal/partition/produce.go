package partition

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/segment"
)

// ProduceOptions is what a produce request says beside its records.
type ProduceOptions struct {
	Acks int16 // 0 and 1: answer after the append; -1: after the high watermark passed
	// Timeout is how long an answer may wait for other replicas; 0: a minute.
	Timeout time.Duration
	// Verify: a transactional batch must be part of a transaction that is open
	// here, or come with a Verification that no marker broke.
	Verify       bool
	Verification *Verification
}

// ProduceResult is the answer to one accepted batch.
type ProduceResult struct {
	BaseOffset    int64
	LogAppendTime int64 // milliseconds, -1 if the batch keeps the producer's time
	LogStart      int64
}

// Produce appends one batch of a client. records is verified, then changed in
// place (base offset, leader epoch, and for LogAppendTime the timestamp and
// CRC); it is the caller's again when Produce returns, because the wire server
// reads the connection's next request into the same buffer while this one
// waits for its fsync. done is called exactly once, on this or on another
// goroutine.
//
// A batch that the producer sent before (same id, epoch and sequence) is
// answered with the offset it already has; it is not appended again.
func (p *Partition) Produce(records []byte, o ProduceOptions, done func(ProduceResult, error)) {
	if v := p.view.Load(); v.compression != nil && v.usable() == nil && !v.attached {
		p.recompress(v.compression, records, o, done)
		return
	}
	p.produce(records, o, done)
}

func (p *Partition) produce(records []byte, o ProduceOptions, done func(ProduceResult, error)) {
	fail := func(err error) { done(ProduceResult{BaseOffset: -1, LogAppendTime: -1, LogStart: -1}, p.wrap(err)) }

	p.appendMu.Lock()
	v := p.view.Load()
	err := v.usable()
	if err == nil && v.attached {
		err = ErrReadOnly
	}
	var b record.Batch
	if err == nil {
		b, err = p.admitLocked(records, o)
	}
	if err != nil {
		p.appendMu.Unlock()
		fail(err)
		return
	}
	dup, err := p.log.CheckProducer(b)
	if err != nil {
		p.appendMu.Unlock()
		fail(err)
		return
	}
	if dup != nil {
		r := ProduceResult{BaseOffset: dup.BaseOffset, LogAppendTime: -1, LogStart: p.log.StartOffset()}
		if p.settings.times.logAppendTime {
			r.LogAppendTime = dup.Timestamp
		}
		p.answerAtLocked(dup.LastOffset+1, o.Acks, p.deadlineLocked(o), func(err error) {
			if err != nil {
				fail(err)
				return
			}
			done(r, nil)
		})
		return
	}

	if o.Verify && b.IsTransactional() {
		if err := p.verifiedLocked(b, o.Verification); err != nil {
			p.appendMu.Unlock()
			fail(err)
			return
		}
	}

	r := ProduceResult{BaseOffset: p.log.EndOffset(), LogAppendTime: -1, LogStart: p.log.StartOffset()}
	b.SetBaseOffset(r.BaseOffset)
	b.SetLeaderEpoch(v.leaderEpoch)
	if p.settings.times.logAppendTime {
		r.LogAppendTime = p.clock.Now().UnixMilli()
		b.SetMaxTimestamp(r.LogAppendTime)
	}
	p.appendLocked(b, o.Acks, false, p.deadlineLocked(o), func(_ int64, err error) {
		if err != nil {
			fail(err)
			return
		}
		done(r, nil)
	})
}

// ackTimeout is for those who name none.
const ackTimeout = time.Minute

// deadlineLocked is until when a client waits for acks=all. Alone, a leader waits
// for nobody but its own disk, which the store watches over.
func (p *Partition) deadlineLocked(o ProduceOptions) time.Time {
	if o.Acks != -1 || p.tracker.Replicas() < 2 {
		return time.Time{}
	}
	if o.Timeout <= 0 {
		o.Timeout = ackTimeout
	}
	return p.clock.Now().Add(o.Timeout)
}

// admitLocked checks one client batch against the wire format's rules and the
// topic's settings.
func (p *Partition) admitLocked(records []byte, o ProduceOptions) (record.Batch, error) {
	s := &p.settings
	if len(records) > s.maxMessageBytes {
		return nil, fmt.Errorf("%w: %d > %d bytes", ErrTooLarge, len(records), s.maxMessageBytes)
	}
	b, times, err := pipeline.VerifyProduce(records, s.maxMessageBytes)
	if err != nil {
		return nil, err
	}
	if s.compacted {
		if times, err = haveKeys(b, s.maxMessageBytes); err != nil {
			return nil, err
		}
	}
	if o.Acks == -1 && len(p.tracker.ISR()) < s.minInSync {
		return nil, fmt.Errorf("%w: %d < %d", ErrNotEnoughReplicas, len(p.tracker.ISR()), s.minInSync)
	}
	if b.TimestampType() == record.LogAppendTime {
		return nil, fmt.Errorf("%w: the batch says that a broker has set its time, and comes from a client", ErrTimestamp)
	}
	if err := s.times.check(p.clock.Now().UnixMilli(), times); err != nil {
		return nil, err
	}
	return b, nil
}

// inflatedFactor is how much of max.message.bytes a batch may take when it is
// decompressed to look at its records. Honest ones shrink to a tenth at best, and
// stay well below the limit themselves.
const inflatedFactor = 8

// haveKeys refuses what compaction could never keep or remove. It sees every
// record's time.
func haveKeys(b record.Batch, maxMessageBytes int) (record.Times, error) {
	times := record.NoTimes()
	err := segment.EachRecord(b, inflatedFactor*maxMessageBytes, func(r record.Record) error {
		if r.Key == nil {
			return fmt.Errorf("record %d has no key, and the topic is compacted", r.OffsetDelta)
		}
		times.Note(b.BaseTimestamp() + r.TimestampDelta)
		return nil
	})
	if err != nil { // bytes that cannot be decompressed among them
		return times, fmt.Errorf("%w: %w", pipeline.ErrInvalidRecord, err)
	}
	return times, nil
}

// AppendInternal appends one batch of our own coordinators, also where clients
// may not write (L19). Its base offset and leader epoch are set here. done is
// called once, when the high watermark has passed the batch.
func (p *Partition) AppendInternal(leaderEpoch int32, batch []byte, done func(end int64, err error)) {
	p.appendMu.Lock()
	v := p.view.Load()
	err := v.usable()
	if err == nil {
		err = v.checkEpoch(leaderEpoch)
	}
	if err == nil {
		err = p.enoughInSyncLocked(v)
	}
	if err == nil {
		var rest []byte
		var b record.Batch
		if b, rest, err = record.Next(batch); err == nil && len(rest) != 0 {
			err = fmt.Errorf("%d bytes after the batch", len(rest))
		}
		if err == nil {
			b.SetBaseOffset(p.log.EndOffset())
			b.SetLeaderEpoch(v.leaderEpoch)
			p.appendDurableLocked(b, done)
			return
		}
	}
	p.appendMu.Unlock()
	done(0, p.wrap(err))
}

// enoughInSyncLocked refuses what a coordinator writes while too few replicas
// would have it: as Kafka, which writes with acks=all. No more are wanted than
// there are. What ends a mirror is appended all the same: its answer waits for the
// high watermark, which stands still below it (9.14).
func (p *Partition) enoughInSyncLocked(v *view) error {
	if v.attached || !p.tracker.BelowMinISR() {
		return nil
	}
	return fmt.Errorf("%w: %d < %d", ErrNotEnoughReplicas, len(p.tracker.ISR()), p.settings.minInSync)
}

// appendLocked writes b and arranges the answer; it releases appendMu. Batches
// of our own may use the log directory's reserve.
func (p *Partition) appendLocked(b record.Batch, acks int16, own bool, deadline time.Time, done func(end int64, err error)) {
	write := p.log.Append
	if own {
		write = p.log.AppendReserved
	}
	a, err := write(b)
	if err != nil {
		p.appendMu.Unlock()
		p.refused(err)
		done(0, fmt.Errorf("%w: %w", ErrStorage, err))
		return
	}
	before := p.view.Load()
	toDisk := p.settings.fsync && !before.lazy
	finished := p.advanceLocked()
	moved := p.view.Load() != before
	p.answerAtLocked(a.End, acks, deadline, func(err error) { done(a.End, err) })
	p.wakeFollowers() // first: theirs is the longer way
	if toDisk {
		p.log.Flush(p.flushed)
	}
	p.finish(finished, nil)
	if moved {
		p.wake()
	}
}

// appendDurableLocked is appendLocked for our own batches inside a mirror
// topic: markers and the producer id reset of a failover must be on disk before
// the partition becomes writable (9.14), though mirrored data is flushed in the
// background.
func (p *Partition) appendDurableLocked(b record.Batch, done func(end int64, err error)) {
	if !p.view.Load().attached {
		p.appendLocked(b, -1, true, time.Time{}, done)
		return
	}
	p.appendLocked(b, -1, true, time.Time{}, func(end int64, err error) {
		if err != nil {
			done(end, err)
			return
		}
		p.log.Flush(func(err error) { done(end, err) })
	})
}

// answerAtLocked calls done when the write that ends at end has the
// acknowledgement asked for; it releases appendMu.
func (p *Partition) answerAtLocked(end int64, acks int16, deadline time.Time, done func(error)) {
	v := p.view.Load()
	if acks != -1 || end <= v.highWatermark || invariants.Planted("ackBeforeISR") {
		p.appendMu.Unlock()
		done(nil)
		return
	}
	p.acks.add(end, deadline, done)
	if !deadline.IsZero() {
		p.shared.expire(p)
	}
	p.appendMu.Unlock()
}

// flushed runs on a goroutine of the store after an fsync.
func (p *Partition) flushed(err error) {
	if err != nil {
		p.unflushed(err)
		return
	}
	p.appendMu.Lock()
	var finished []pendingAck
	if p.log != nil && p.tracker != nil {
		finished = p.advanceLocked()
	}
	p.appendMu.Unlock()
	p.finish(finished, nil)
	p.wake()
}

// refused follows an append that did not happen. Nothing was written, so the
// partition goes on: a full disk has room again one day. Only where the log
// itself gave up, so does the partition.
func (p *Partition) refused(err error) {
	if errors.Is(err, segment.ErrFailed) {
		p.fail(err)
	}
}

// unflushed follows a flush that did not happen. What waits for it is refused,
// though it is in the log; its producer sends it again, and is known by its
// sequence. Where the disk failed, the partition ends.
func (p *Partition) unflushed(err error) {
	if errors.Is(err, segment.ErrFailed) {
		p.fail(err)
		return
	}
	p.appendMu.Lock()
	failed := p.acks.takeAll()
	p.appendMu.Unlock()
	p.finish(failed, fmt.Errorf("%s: %w: %w", p.key, ErrStorage, err))
}
