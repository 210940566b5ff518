package segment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// finishReset goes on where a TruncateFully was interrupted.
func (r *recovery) finishReset() error {
	l := r.l
	r.tellRemoval(slog.LevelWarn, "interrupted cut of the whole log is finished: its remaining files are removed", r.segments, "new_start", r.mark.reset)
	for _, s := range r.segments {
		if err := l.removeSegment(s); err != nil {
			return err
		}
		invariants.Fault("segment.restartRemoved")
	}
	if err := l.dropProducers(-1); err != nil {
		return err
	}
	// Durably, before the mark that says so: whoever syncs the marks next, for
	// another log say, makes that durable.
	if err := l.store.disk.syncDir(l.dir); err != nil {
		return err
	}
	l.store.index.write(func(b *pebble.Batch) { _ = b.DeleteRange(l.id.prefix(), after(l.id.prefix()), nil) })
	r.segments = nil
	r.mark.start, r.mark.durable, r.mark.hw, r.mark.reset = r.mark.reset, r.mark.reset, r.mark.reset, -1
	if err := r.apply(); err != nil {
		return err
	}
	// Durably, before anything is acknowledged: the next recovery would finish the cut
	// once more, and remove that.
	return l.putMark(true, -1)
}

// apply changes the files as far as they have to be, and publishes the log.
func (r *recovery) apply() error {
	l := r.l
	end := r.mark.start
	if n := len(r.segments); n > 0 {
		end = r.segments[n-1].end
	}
	if end < r.mark.durable && !invariants.Planted("damageAsTornTail") && !invariants.Planted("laterSegmentDeleted") {
		return &DamageError{File: l.dir, Offset: end, Err: fmt.Errorf("log ends at %d, offsets up to %d were durable", end, r.mark.durable)}
	}
	if err := r.cutFiles(); err != nil {
		return fmt.Errorf("recover %s: %w", l.id, err)
	}
	r.lost = r.cut || r.known && r.indexAhead(end)
	if r.lost {
		r.forget(end)
	}
	if err := r.syncFiles(end); err != nil {
		l.store.failSync(err)
		return fmt.Errorf("recover %s: %w", l.id, err)
	}
	n := len(r.segments)
	created := n == 0
	if created {
		seg, err := l.createSegment(end)
		if err != nil {
			return fmt.Errorf("recover %s: %w", l.id, err)
		}
		r.segments, r.tail = append(r.segments, seg), nil
	}
	start := min(r.mark.start, end)
	if first := r.segments[0].base; first > start {
		// No marks, or old ones.
		l.store.o.Logger.Error("log begins above its start, the first segments are missing", "log", l.id.String(), "start", start, "first", first)
		start = first
	}
	l.mu.Lock()
	l.mu.segments, l.mu.size = r.segments, 0
	for _, s := range r.segments {
		s.synced = s.size
		l.mu.size += s.size
	}
	l.mu.start, l.mu.end = start, end
	if r.later {
		l.history.Store(newHistory(r)) // the epochs and producers are its own from here on
	} else {
		l.mu.epochs, l.mu.written, l.mu.producers = r.epochs, r.written, r.producers
		l.mu.epochs.TruncateStart(start)
		l.mu.producers.TruncateStart(l.mu.segments[0].base)
	}
	l.mu.tail = r.tail
	if created {
		l.mu.names++
	}
	if end <= r.mark.start {
		// Nothing of it was ever durable, and so maybe not its directory, whoever
		// made that: the first flush syncs both names.
		l.mu.newDir = true
		l.mu.names++
	}
	l.durable.Store(end)
	l.mu.proof = l.proofLocked()
	l.hw.Store(min(max(r.mark.hw, start), l.mu.end))
	l.mu.producers.Replicated(l.hw.Load())
	l.stored, l.checkpointed = 0, checkpointed{}
	if !r.later && !r.cut && r.walked.size > 0 && r.at == n-1 {
		l.checkpointed = checkpointed{size: r.walked.size, end: r.walked.end}
	}
	l.publishLocked()
	l.mu.Unlock()
	if len(r.tail) > 0 {
		l.indexed = r.tail[len(r.tail)-1].pos
	} else if a := l.active(); a.trimmed {
		l.indexed = a.size // unknown, but not behind it: the next entry comes 64 KiB on
	}
	if start < r.mark.start || l.hw.Load() < r.mark.hw {
		// A start or a high watermark that had been written down, and the records were
		// not: all of them are gone. The log is about to use those offsets again, and a
		// later recovery would take the old marks for theirs: it would hide what was
		// acknowledged, or call replicated what no other replica has.
		if err := l.putMark(true, -1); err != nil {
			return fmt.Errorf("recover %s: %w", l.id, err)
		}
	}
	return r.dropBelowStart()
}

// cutFiles cuts the torn tail: the segments behind it, the newest first, then
// the file itself.
func (r *recovery) cutFiles() error {
	if !r.cut {
		return nil
	}
	l := r.l
	r.tellRemoval(slog.LevelWarn, "segments behind the torn tail are removed; nothing in them was known to be durable", r.behind, "durable", r.mark.durable)
	if err := l.removeSegments(r.behind); err != nil {
		return err
	}
	invariants.Fault("segment.recoverRemoved")
	if n := len(r.segments); n > 0 {
		s := r.segments[n-1]
		if err := l.store.disk.cut(s.path(), s.size); err != nil {
			return err
		}
		invariants.Fault("segment.recoverCut")
	}
	return nil
}

// indexAhead says that the index knows of batches at or above the log's end, and
// would be believed for it once the log has grown that far again. A power cut may
// leave what the index was told and take the batches, and nothing that looks torn.
func (r *recovery) indexAhead(end int64) (ahead bool) {
	l, x := r.l, r.l.store.index
	x.each(l.id.key(kindSummary), func(_, value []byte) {
		m, err := decodeSummaryStamped(l, value)
		ahead = ahead || err == nil && m.end > end
	})
	from := l.id.key(kindProducer, end+1)
	if len(r.segments) == 0 { // nor is it true of the log's start, then
		from = l.id.key(kindProducer, end)
	}
	x.eachFrom(from, l.id.key(kindProducer), func(key, value []byte) {
		_, ok := l.cached(value, decodeNumber(key))
		ahead = ahead || ok
	})
	return ahead
}

// forget begins a new generation, for which nothing is true that the index knows
// of what lay above the end. It may forget in a crash what it is told here.
func (r *recovery) forget(end int64) {
	l, last := r.l, int64(-1)
	l.mu.Lock()
	if n := len(r.segments); n > 0 {
		last = r.segments[n-1].base
		l.beginGenerationLocked(end, r.segments[0].base)
	} else {
		l.beginGenerationLocked(end, end)
		l.mu.life = l.mu.generation
	}
	l.mu.Unlock()
	l.store.index.write(func(b *pebble.Batch) {
		for _, kind := range []byte{kindOffset, kindTime, kindSummary} {
			l.store.index.drop(b, l.id.key(kind, last+1), l.id.key(kind))
		}
		l.store.index.drop(b, l.id.key(kindProducer, end+1), l.id.key(kindProducer))
	})
}

// syncFiles makes what was found durable: after a kill it is in the page cache
// only, and from here on it counts.
func (r *recovery) syncFiles(end int64) error {
	if end > r.mark.durable {
		for _, s := range r.segments {
			if s.end <= r.mark.durable || s.size == 0 {
				continue
			}
			f, err := r.l.store.disk.open(s.path(), false)
			if err != nil {
				return err
			}
			if err := errors.Join(f.SyncData(), f.Close()); err != nil {
				return err
			}
			invariants.Fault("segment.recoverSynced")
		}
		if err := r.l.store.disk.syncDir(r.l.dir); err != nil {
			return err
		}
		if r.mark.durable <= r.mark.start { // nor may the directory itself be
			return r.l.store.disk.syncDir(r.l.store.dir)
		}
	}
	return nil
}

// dropBelowStart deletes what lies below the log start, and writes the marks of
// a log that was changed or is new.
func (r *recovery) dropBelowStart() error {
	r.tellRemoval(slog.LevelInfo, "segments below the log start are removed, where a deletion was interrupted", r.below, "start", r.mark.start)
	for _, s := range r.below {
		if err := r.l.removeSegment(s); err != nil {
			return fmt.Errorf("recover %s: %w", r.l.id, err)
		}
		invariants.Fault("segment.recoverDropped")
	}
	if err := r.l.dropProducers(r.l.mu.segments[0].base); err != nil {
		return fmt.Errorf("recover %s: %w", r.l.id, err)
	}
	return r.l.putMark(r.lost, -1) // a new generation first, before anything is told to the index in it
}

// tellRemoval says which files will go, and why: none goes without a word.
func (r *recovery) tellRemoval(level slog.Level, why string, segments []*segment, args ...any) {
	n := len(segments)
	if n == 0 {
		return
	}
	bytes := int64(0)
	for _, s := range segments {
		size, _ := fileSize(r.l.store.disk, s.path())
		bytes += size
	}
	r.l.store.o.Logger.Log(context.Background(), level, why, append([]any{"log", r.l.id.String(), "from", segments[0].base,
		"files", n, "first", segments[0].path(), "last", segments[n-1].path(), "bytes", bytes}, args...)...)
}
