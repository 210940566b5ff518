package segment

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// index is the one Pebble store of a log directory: offset and time index,
// segment summaries and producer snapshots of all logs. It is a cache. Every
// answer is either checked against the file or bounded by what the watermarks
// call durable, "I do not know" is always allowed, and losing it costs a walk
// over the files.
//
// Hence no write-ahead log: a crash forgets the latest entries, oldest first to
// last, and recovery finds them again. That also settles what rule 4 of
// reliability.md asks of a new store, to be closed and opened again once before
// its first write: its first log file is written in the old format, whose bit
// flips go unnoticed. There is no such file here, nor is anything replayed at an
// open; all bytes lie in tables, whose blocks have checksums, and in the
// manifest, whose records have them too.
//
// Pebble calls Logger.Fatalf when it cannot go on, and expects not to return. Our
// Fatalf ends the goroutine it is called on and marks the index dead. Every call
// into Pebble therefore runs on a goroutine of its own that may die, and once
// dead none is made any more, not even Close.
type index struct {
	db     *pebble.DB
	disk   disk
	dir    string
	marker string // a file that tells the next open to begin anew
	logger *slog.Logger
	broken atomic.Bool // damaged: not asked any more
	dead   atomic.Bool // Fatalf was called: Pebble may have stopped with its locks held
	fresh  bool        // nothing was there when it was opened

	lookups atomic.Int64 // seeks asked for, for tests: a sequential reader causes none
}

var errIndexBroken = errors.New("segment: index is broken")

// Keys are the log (16 bytes of topic id, 4 of partition), a kind, then
// big-endian numbers, so that everything of a log is one range.
const (
	kindOffset   = 'i' // base, offset of a batch -> its position
	kindTime     = 't' // base, time -> position before which nothing is later than it
	kindSummary  = 'm' // base -> summary of a closed segment
	kindProducer = 'p' // offset -> producer snapshot of all below it
	kindCleaned  = 'c' // -> how far compaction has come
)

const logKeySize = 20

func (id LogID) key(kind byte, numbers ...int64) []byte {
	k := make([]byte, 0, logKeySize+1+8*len(numbers))
	k = append(k, id.Topic[:]...)
	k = binary.BigEndian.AppendUint32(k, uint32(id.Partition))
	k = append(k, kind)
	for _, n := range numbers {
		// Timestamps can be negative; flipping the sign keeps the order.
		k = binary.BigEndian.AppendUint64(k, uint64(n)^(1<<63))
	}
	return k
}

// putNumber replaces the last number of a key.
func putNumber(key []byte, n int64) {
	binary.BigEndian.PutUint64(key[len(key)-8:], uint64(n)^(1<<63))
}

// decodeNumber reads the last number of a key.
func decodeNumber(key []byte) int64 {
	return int64(binary.BigEndian.Uint64(key[len(key)-8:]) ^ (1 << 63))
}

func (id LogID) prefix() []byte { return id.key(0)[:logKeySize] }

// after is the least key behind all that have the prefix.
func after(prefix []byte) []byte {
	k := bytes.Clone(prefix)
	for i := len(k) - 1; i >= 0; i-- {
		if k[i]++; k[i] != 0 {
			return k[:i+1]
		}
	}
	return nil
}

// openIndex opens the store in dir, or makes a new one if there is none, if
// it cannot be opened, or if the last run found it damaged.
func openIndex(d disk, dir string, memory int64, logger *slog.Logger) (*index, error) {
	x := &index{disk: d, dir: dir, marker: dir + ".rebuild", logger: logger}
	if _, err := d.Stat(x.marker); err == nil {
		logger.Warn("index was found damaged in the last run and is built anew from the segments", "dir", dir)
		if err := x.wipe(); err != nil {
			return nil, fmt.Errorf("remove damaged index: %w", err)
		}
	}
	if names, err := d.List(dir); err != nil || len(names) == 0 {
		x.fresh = true
	}
	err := x.open(memory)
	if err != nil && !x.fresh {
		logger.Warn("index cannot be opened, it is built anew from the segments", "dir", dir, "err", err)
		if errWipe := x.wipe(); errWipe != nil {
			return nil, fmt.Errorf("remove damaged index: %w", errors.Join(errWipe, err))
		}
		x.fresh = true
		x.broken.Store(false)
		x.dead.Store(false)
		err = x.open(memory)
	}
	if err != nil {
		return nil, fmt.Errorf("open index %s: %w", dir, err)
	}
	return x, nil
}

func (x *index) wipe() error {
	if err := x.disk.RemoveAll(x.dir); err != nil {
		return err
	}
	invariants.Fault("segment.indexWiped")
	if err := x.disk.Remove(x.marker); err != nil {
		if _, still := x.disk.Stat(x.marker); still == nil {
			return err
		}
	}
	return nil
}

func (x *index) open(memory int64) error {
	cache := pebble.NewCache(memory / 2)
	defer cache.Unref()
	opts := &pebble.Options{
		FS:                          x.disk.FS,
		Cache:                       cache,
		FormatMajorVersion:          pebble.FormatNewest,
		DisableWAL:                  true,
		MemTableSize:                uint64(memory / 4),
		MemTableStopWritesThreshold: 4,
		MaxOpenFiles:                256,
		Logger:                      indexLogger{x},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				if pebble.IsCorruptionError(err) {
					x.breakDown(err)
					return
				}
				x.logger.Error("index: background error", "dir", x.dir, "err", err)
			},
			DataCorruption: func(info pebble.DataCorruptionInfo) { x.breakDown(info.Details) },
		},
	}
	return x.do(func() (err error) {
		x.db, err = pebble.Open(x.dir, opts)
		return err
	})
}

// do runs f, unless the index is broken.
func (x *index) do(f func() error) error {
	if x.broken.Load() {
		return errIndexBroken
	}
	err := x.call(f)
	if err != nil && pebble.IsCorruptionError(err) {
		x.breakDown(err)
	}
	return err
}

// call runs f on a goroutine that Pebble's Fatalf may end.
func (x *index) call(f func() error) error {
	if x.dead.Load() {
		return errIndexBroken
	}
	done := make(chan error, 1)
	go func() {
		err := errIndexBroken
		defer func() { done <- err }() // also when Fatalf ends us
		err = f()
	}()
	return <-done
}

// breakDown takes the index out of use until the next start, which builds a
// new one. Lookups then walk from the start of a segment.
func (x *index) breakDown(err error) {
	if x.broken.Swap(true) {
		return
	}
	x.logger.Error("index is damaged: lookups are slow until the next start, which rebuilds it", "dir", x.dir, "err", err)
	if f, errMark := x.disk.Create(x.marker, "index"); errMark == nil {
		_ = errors.Join(f.Sync(), f.Close())
	}
}

// indexLogger is what Pebble logs to.
type indexLogger struct{ x *index }

func (l indexLogger) Infof(format string, args ...any) {
	if l.x.logger.Enabled(context.Background(), slog.LevelDebug) {
		l.x.logger.Debug("index: " + fmt.Sprintf(format, args...))
	}
}

func (l indexLogger) Errorf(format string, args ...any) {
	l.x.logger.Error("index: " + fmt.Sprintf(format, args...))
}

// Fatalf must not return. See the type comment.
func (l indexLogger) Fatalf(format string, args ...any) {
	l.x.dead.Store(true)
	l.x.breakDown(fmt.Errorf(format, args...))
	runtime.Goexit()
}

// write applies what fill puts into a batch. Failing is not an error of the
// caller: the index then knows less.
func (x *index) write(fill func(b *pebble.Batch)) {
	err := x.do(func() error {
		b := x.db.NewBatch()
		defer b.Close()
		fill(b)
		return x.db.Apply(b, pebble.NoSync)
	})
	if err != nil && !errors.Is(err, errIndexBroken) {
		x.logger.Error("index: write failed", "dir", x.dir, "err", err)
	}
}

// get returns a copy of the value, or nil.
func (x *index) get(key []byte) (value []byte) {
	_ = x.do(func() error {
		v, closer, err := x.db.Get(key)
		if err != nil {
			return err
		}
		value = bytes.Clone(v)
		return closer.Close()
	})
	return value
}

// seekLE returns the last entry with the prefix and a key not above key.
func (x *index) seekLE(prefix, key []byte) (k, v []byte) {
	x.lookups.Add(1)
	_ = x.do(func() error {
		it, err := x.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
		if err != nil {
			return err
		}
		if it.SeekLT(append(bytes.Clone(key), 0)) {
			k, v = bytes.Clone(it.Key()), bytes.Clone(it.Value())
		}
		return it.Close()
	})
	return k, v
}

// each calls fn for every entry with the prefix; key and value are valid during
// the call.
func (x *index) each(prefix []byte, fn func(key, value []byte)) { x.eachFrom(prefix, prefix, fn) }

// eachFrom is each, but begins at the key from.
func (x *index) eachFrom(from, prefix []byte, fn func(key, value []byte)) {
	_ = x.do(func() error {
		it, err := x.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: after(prefix)})
		if err != nil {
			return err
		}
		for ok := it.First(); ok; ok = it.Next() {
			fn(it.Key(), it.Value())
		}
		return it.Close()
	})
}

// flushSoon begins a flush without waiting for it.
func (x *index) flushSoon() {
	_ = x.do(func() error {
		_, err := x.db.AsyncFlush()
		return err
	})
}

func (x *index) close() error {
	if !x.broken.Load() {
		// Without a write-ahead log, Close alone would lose the memtable.
		if err := x.call(x.db.Flush); err != nil {
			return errors.Join(err, x.call(x.db.Close))
		}
	}
	err := x.call(x.db.Close)
	if x.broken.Load() {
		return nil // its files are wiped by the next open; what it complains of is known
	}
	return err
}

// entry is one line of the sparse index: a batch with base offset begins at
// pos, and nothing before pos is later than time.
type entry struct {
	offset, pos, time int64
}

// putEntries writes index entries of one segment.
func (x *index) putEntries(id LogID, base int64, entries []entry) {
	if len(entries) == 0 {
		return
	}
	x.write(func(b *pebble.Batch) {
		// The keys differ in their last number only; Pebble copies what it is given.
		at, when := id.key(kindOffset, base, 0), id.key(kindTime, base, 0)
		var v [binary.MaxVarintLen64]byte
		for i, e := range entries {
			pos := v[:binary.PutUvarint(v[:], uint64(e.pos))]
			putNumber(at, e.offset)
			_ = b.Set(at, pos, nil)
			// One key per time, with the greatest position: everything before it is no
			// later.
			if i+1 == len(entries) || entries[i+1].time != e.time {
				putNumber(when, e.time)
				_ = b.Set(when, pos, nil)
			}
		}
	})
}

// position finds where to begin looking for offset in a segment, and the base
// offset of the batch that begins there; 0 and -1 if it knows nothing.
func (x *index) position(id LogID, base, offset int64) (pos, batch int64) {
	k, v := x.seekLE(id.key(kindOffset, base), id.key(kindOffset, base, offset))
	if pos = decodePosition(v); pos == 0 {
		return 0, -1
	}
	return pos, decodeNumber(k)
}

// timePosition finds where to begin looking for the first batch that is not
// earlier than ts: everything before the position is earlier.
func (x *index) timePosition(id LogID, base, ts int64) int64 {
	if ts == math.MinInt64 {
		return 0
	}
	_, v := x.seekLE(id.key(kindTime, base), id.key(kindTime, base, ts-1))
	return decodePosition(v)
}

func decodePosition(v []byte) int64 {
	pos, n := binary.Uvarint(v)
	if n <= 0 || pos > math.MaxInt64 {
		return 0
	}
	return int64(pos)
}

// dropBehind forgets what the index knows of a segment from a position on, where
// the batch with the given offset would begin. Entries may have been kept of
// bytes that a power cut took.
func (x *index) dropBehind(id LogID, base, pos, offset int64) {
	var stale [][]byte
	x.each(id.key(kindTime, base), func(key, value []byte) {
		if decodePosition(value) >= pos {
			stale = append(stale, bytes.Clone(key))
		}
	})
	x.eachFrom(id.key(kindOffset, base, offset), id.key(kindOffset, base), func(key, _ []byte) {
		stale = append(stale, bytes.Clone(key))
	})
	if len(stale) == 0 {
		return
	}
	x.write(func(b *pebble.Batch) {
		for _, key := range stale {
			_ = b.Delete(key, nil)
		}
	})
}

// drop deletes what begins with the prefix, from the key from on, one by one. Where
// thousands of logs delete a little each, ranges would make every lookup slow: one of
// Pebble's reads looks at all ranges that its memory holds, once after each new one.
func (x *index) drop(b *pebble.Batch, from, prefix []byte) {
	x.eachFrom(from, prefix, func(key, _ []byte) { _ = b.Delete(key, nil) })
}

// dropSegment forgets the entries and the summary of one segment.
func (x *index) dropSegment(b *pebble.Batch, id LogID, base int64) {
	for _, kind := range []byte{kindOffset, kindTime, kindSummary} {
		k := id.key(kind, base)
		x.drop(b, k, k)
	}
}
