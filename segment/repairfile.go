package segment

import (
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// rebuilt is a file that will take the place of a damaged or missing one.
type rebuilt struct {
	*replacement
	from *surveyed
	last int32 // leader epoch of the last batch written, -1 without one
}

// rebuild writes one file anew.
func (l *Log) rebuild(ctx context.Context, f *surveyed, fetch Fetch, fill bool, done *Repaired) (*rebuilt, error) {
	seg := &segment{log: l, base: f.base, end: f.base}
	r, err := l.replace([]*segment{seg}, l.cuts.Load())
	if err != nil {
		return nil, err
	}
	b := &rebuilt{replacement: r, from: f, last: f.epoch}
	r.end = f.end
	for i, p := range f.pieces {
		if p.bad == nil {
			err = b.copy(p)
		} else {
			before := b.written + int64(len(b.buf))
			next := f.next
			if i+1 < len(f.pieces) {
				next = f.pieces[i+1].first
			}
			if invariants.Planted("corruptRefetchedFromItself") {
				fetch = b.ownBytes(p)
			}
			if err = b.refill(ctx, p, next, fetch); err == nil && (fill || i+1 == len(f.pieces)) {
				err = b.hole(p.to, next, done)
			}
			done.Bytes += b.written + int64(len(b.buf)) - before
		}
		if err != nil {
			return b, err
		}
	}
	return b, b.finish()
}

// copy takes over good batches, checking them once more.
func (b *rebuilt) copy(p piece) error {
	file, err := b.l.store.disk.open(b.from.path, false)
	if err != nil {
		return err
	}
	defer file.Close()
	s := newScanner(file, p.pos, p.pos+p.size)
	defer s.close()
	var buf []byte
	for left := p.batches; left > 0; left-- {
		_, pos, n, err := s.next()
		if err != nil {
			return fmt.Errorf("read %s at %d: %w", b.from.path, s.pos, err)
		}
		var batch record.Batch
		if batch, buf, err = s.body(buf, pos, n); err != nil {
			return err
		}
		if err := batch.VerifyCRC(); err != nil {
			return fmt.Errorf("read %s at %d: %w", b.from.path, pos, err)
		}
		if err := b.put(batch); err != nil {
			return err
		}
	}
	return nil
}

// refill asks for what is missing and takes nothing that does not fit.
func (b *rebuilt) refill(ctx context.Context, p piece, nextEpoch int32, fetch Fetch) error {
	for from := p.from; from < p.to; {
		batches, next, err := fetch(ctx, from, p.to)
		if err != nil {
			return err
		}
		if next <= from || next > p.to {
			return fmt.Errorf("%w: asked for %d to %d, the answer reaches to %d", ErrNotWhole, from, p.to, next)
		}
		for rest := batches; len(rest) > 0; {
			var batch record.Batch
			if batch, rest, err = record.Next(rest); err != nil {
				return fmt.Errorf("%w: %w", ErrNotWhole, err)
			}
			if err := b.fits(batch, from, next, nextEpoch); err != nil {
				return err
			}
			if err := b.put(batch); err != nil {
				return err
			}
		}
		from = next
	}
	return nil
}

// ownBytes is a planted bug: the damaged bytes are asked of the damaged log.
func (b *rebuilt) ownBytes(p piece) Fetch {
	return func(context.Context, int64, int64) ([]byte, int64, error) {
		f, err := b.l.store.disk.open(b.from.path, false)
		if err != nil {
			return nil, 0, err
		}
		defer f.Close()
		batches := make([]byte, p.size)
		_, err = readFull(f, batches, p.pos)
		return batches, p.to, err
	}
}

// fits checks one batch of the answer for [from, to).
func (b *rebuilt) fits(batch record.Batch, from, to int64, nextEpoch int32) error {
	if err := batch.VerifyCRC(); err != nil && !invariants.Planted("corruptRefetchedFromItself") {
		return fmt.Errorf("%w: %w", ErrNotWhole, err)
	}
	base, e := batch.BaseOffset(), batch.PartitionLeaderEpoch()
	if base < max(from, b.seg.end) || batch.NextOffset() > to {
		return fmt.Errorf("%w: batch %d to %d is not between its neighbours, which leave %d to %d", ErrNotWhole, base, batch.NextOffset(), max(from, b.seg.end), to)
	}
	if e < b.last || nextEpoch >= 0 && e > nextEpoch {
		return fmt.Errorf("%w: batch at %d has leader epoch %d, its neighbours have %d and %d", ErrNotWhole, base, e, b.last, nextEpoch)
	}
	if !b.l.mu.unread {
		if known, ok := b.l.EpochAt(base); ok && base >= b.l.StartOffset() && known != e {
			return fmt.Errorf("%w: batch at %d has leader epoch %d, the log remembers %d", ErrNotWhole, base, e, known)
		}
	}
	return nil
}

func (b *rebuilt) put(batch record.Batch) error {
	b.last = batch.PartitionLeaderEpoch()
	return b.write(batch)
}

// hole puts batches without records where nothing is known up to to.
func (b *rebuilt) hole(to int64, nextEpoch int32, done *Repaired) error {
	e := max(b.last, 0)
	if b.last < 0 && nextEpoch >= 0 {
		e = nextEpoch
	}
	done.Lost += max(to-b.seg.end, 0)
	for rest := record.Hole(b.seg.end, to, e); len(rest) > 0; {
		batch, r, err := record.Next(rest)
		if err != nil {
			return err
		}
		if err := b.put(batch); err != nil {
			return err
		}
		rest = r
	}
	return nil
}

// takeName brings the new file from .cleaned to its name, after the old one has
// a second name in quarantine.
func (b *rebuilt) takeName() (quarantined string, err error) {
	l, d := b.l, b.l.store.disk
	if size, err := fileSize(d, b.seg.path()); err == nil && size > 0 {
		if quarantined, err = l.store.quarantine.keepFile(l.id, b.seg.base, b.seg.path()); err != nil {
			return "", err
		}
	}
	f := b.file
	b.file = nil
	if err := f.Close(); err != nil {
		return quarantined, err
	}
	if err := d.Rename(b.path(cleanedSuffix), b.path(swapSuffix)); err != nil {
		return quarantined, err
	}
	if err := d.syncDir(l.dir); err != nil {
		return quarantined, err
	}
	invariants.Fault("segment.repairSwap")
	if err := d.Rename(b.path(swapSuffix), b.seg.path()); err != nil {
		return quarantined, err
	}
	if err := d.syncDir(l.dir); err != nil {
		return quarantined, err
	}
	invariants.Fault("segment.repairNamed")
	x := l.store.index
	x.putEntries(l.id, b.seg.base, b.entries)
	m := summary{size: b.seg.size, end: b.seg.end, times: b.seg.times, epochs: b.epochs.Entries()}
	x.write(func(p *pebble.Batch) {
		_ = p.Set(l.id.key(kindSummary, b.seg.base), l.stamp(m.encode()), nil)
	})
	return quarantined, nil
}
