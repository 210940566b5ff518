package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"maps"
	"sync"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
)

// mark is what is known about one log outside of its data (reliability rule 5).
type mark struct {
	start   int64 // log start offset
	durable int64 // end of what an fsync has confirmed
	hw      int64 // high watermark

	// generation and floor tell which entries of the index are still true; see Log.
	generation, floor, life int64

	// proof holds together what lies below the durable end in its segment.
	proof proof

	// reset, if not -1, says that the log is being emptied: recovery removes every
	// segment and begins an empty log at this offset.
	reset int64
}

// proof is what a log's last segment with batches held when the durable end was
// confirmed. Below the durable end a walk has only the batches' own CRCs to go
// by, and those leave out offsets and epochs; closed segments have their
// summary, which this is for the one that has none yet. size 0 means that
// nothing is known.
type proof struct {
	base int64 // of the segment
	known
}

// watermarks is the store's file of marks: two slots, of which one is in use.
//
//	slot  = frame*            the first is a snapshot, the others change it
//	frame = length u32, CRC-32C u32 of the payload, payload
//	snapshot payload = 'S', version u16, sequence u64, clean u8, count u32, entry*
//	change payload   = 'C', entry | 'D', log id
//	entry            = topic id 16, partition i32, start i64, durable i64, hw i64,
//	                   generation i64, floor i64, reset i64,
//	                   life i64, proof: base i64, size i64, heads u64 (not in version 1)
//
// A slot is a file, watermarks-a or watermarks-b, because its size varies. When
// the changes outgrow the snapshot, a new snapshot goes into the other slot with
// the next sequence; the slot with the highest readable snapshot counts. A torn
// change at the end of a slot is the crash that tore it; everything before it
// holds. Losing the newest change only makes recovery look at more bytes, since
// durable never goes back but by a truncation, which waits until its change is
// synced.
//
// A slot is made at its full length, zeros behind the snapshot: on a full disk
// changes can still be noted, so that segments can still be deleted.
type watermarks struct {
	disk   disk
	dir    string
	logger *slog.Logger

	// clean says that the last run closed the store, so that everything in it is
	// durable and the index complete. missing says that there were no marks at
	// all. Both are of the time of opening.
	clean, missing bool

	// syncs are those of changes.
	syncs groupSync

	mu struct {
		sync.Mutex // held over writes: they must not interleave
		marks      map[LogID]mark
		newest     int64 // greatest generation seen in either slot, also of logs that are deleted
		seq        uint64
		slot       int
		file       dataFile
		pos        int64
		room       int64 // length of the slot's file
		behind     bool  // a write failed: marks has changes that the slot has not
		err        error // a failed sync: the file is dead
		buf        []byte
		// syncing says that file is being synced, without mu: it is not closed
		// meanwhile. synced is told when that is over.
		syncing bool
		synced  sync.Cond
	}
}

const (
	watermarksVersion = 2
	frameHeader       = 8
	entrySize         = 16 + 4 + 10*8
	entrySize1        = 16 + 4 + 6*8 // of version 1
	snapshotHeader    = 1 + 2 + 8 + 1 + 4
	// slotRoom is the least room for changes behind a snapshot: a few thousand.
	slotRoom = 256 << 10
	// maxFrame bounds what a damaged length can make us allocate: a snapshot of
	// 20 million logs.
	maxFrame = 1 << 30
)

var (
	castagnoli   = crc32.MakeTable(crc32.Castagnoli)
	slotNames    = [2]string{"watermarks-a", "watermarks-b"}
	errWatermark = errors.New("unreadable watermarks")
)

// openWatermarks reads the slots and begins a new one that says "not clean".
func openWatermarks(d disk, dir string, logger *slog.Logger) (*watermarks, error) {
	w, err := readWatermarks(d, dir, logger)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.snapshotLocked(false); err != nil {
		return nil, err
	}
	return w, nil
}

// readWatermarks reads the slots and changes nothing.
func readWatermarks(d disk, dir string, logger *slog.Logger) (*watermarks, error) {
	w := &watermarks{disk: d, dir: dir, logger: logger}
	w.mu.synced.L = &w.mu.Mutex
	best := -1
	var found int
	for i, name := range slotNames {
		b, err := readFile(d, d.PathJoin(dir, name))
		if err != nil {
			if _, errStat := d.Stat(d.PathJoin(dir, name)); errStat != nil {
				continue // not there
			}
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		found++
		s, err := decodeSlot(b)
		if err != nil {
			logger.Warn("watermark slot is unreadable, the other one is used", "file", d.PathJoin(dir, name), "err", err)
			continue
		}
		w.mu.newest = max(w.mu.newest, s.newest)
		if best < 0 || (s.seq > w.mu.seq) != invariants.Planted("watermarkSlotOlderWins") {
			best, w.mu.seq, w.mu.marks, w.clean = i, s.seq, s.marks, s.clean
		}
	}
	if best < 0 {
		w.missing, w.mu.marks, best = true, make(map[LogID]mark), 1
		if found > 0 {
			logger.Error("no watermark slot is readable: closed segments are taken for durable, open ones are checked to the end", "dir", dir)
		}
	}
	w.mu.slot = best
	return w, nil
}

func (w *watermarks) get(id LogID) (mark, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	m, ok := w.mu.marks[id]
	return m, ok
}

// newLife is a generation that no log of the store ever had: a clock alone stands
// still between two readings, or is set back, and a log with the id of a deleted one
// would believe what the index still has of that.
func (w *watermarks) newLife(now int64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.newest = max(now, w.mu.newest+1)
	return w.mu.newest
}

// all copies what is known of every log.
func (w *watermarks) all() map[LogID]mark {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.mu.marks)
}

// put notes marks; with sync it returns when they are durable.
func (w *watermarks) put(sync bool, changes ...change) error {
	if durable, err := w.note(changes); err != nil || durable || !sync {
		return err
	}
	return w.sync()
}

// note writes marks down; durable says that they went into a new slot.
func (w *watermarks) note(changes []change) (durable bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.mu.syncing && w.mu.pos+int64(len(changes))*(frameHeader+1+entrySize) > w.mu.room {
		w.mu.synced.Wait() // before anything is changed: the file may not be left yet
	}
	if w.mu.err != nil {
		return false, w.mu.err
	}
	b := w.mu.buf[:0]
	for _, c := range changes {
		old, known := w.mu.marks[c.id]
		switch {
		case c.delete:
			delete(w.mu.marks, c.id)
		case known && old == c.mark && !w.mu.behind:
			continue // opened or closed without a change
		default:
			w.mu.marks[c.id] = c.mark
			w.mu.newest = max(w.mu.newest, c.mark.generation)
		}
		b = c.append(b)
	}
	w.mu.buf = b
	if len(b) == 0 {
		return false, nil
	}
	if w.mu.pos+int64(len(b)) > w.mu.room {
		err := w.snapshotLocked(false)
		if err == nil {
			return true, nil
		}
		if errors.Is(err, errSync) {
			w.mu.err = fmt.Errorf("%w: %w", ErrFailed, err)
			return false, w.mu.err
		}
		w.logger.Error("new watermark slot cannot be written, going on in the old one", "dir", w.dir, "err", err)
	}
	// A write that fails changes nothing: the next one goes to the same place.
	if _, err := w.mu.file.WriteAt(b, w.mu.pos); err != nil {
		w.mu.behind = true
		return false, fmt.Errorf("write %s: %w", w.pathLocked(), err)
	}
	w.mu.pos += int64(len(b))
	invariants.Fault("segment.markWritten")
	return false, nil
}

func (w *watermarks) pathLocked() string { return w.disk.PathJoin(w.dir, slotNames[w.mu.slot]) }

// sync makes all earlier puts durable. Those who ask together share a sync, during which
// others go on to put. The disk is asked once: after an error nothing is noted any more.
func (w *watermarks) sync() error {
	return w.syncs.do(func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.mu.err != nil {
			return w.mu.err
		}
		f, path := w.mu.file, w.pathLocked()
		w.mu.syncing = true
		w.mu.Unlock()
		err := f.SyncData()
		w.mu.Lock()
		w.mu.syncing = false
		w.mu.synced.Broadcast()
		if err != nil {
			w.mu.err = fmt.Errorf("%w: sync %s: %w", ErrFailed, path, err)
		}
		return w.mu.err
	})
}

// snapshotLocked writes everything into the other slot, durably, and goes on there.
func (w *watermarks) snapshotLocked(clean bool) error {
	payload := make([]byte, 0, snapshotHeader+entrySize*len(w.mu.marks))
	payload = append(payload, 'S')
	payload = binary.BigEndian.AppendUint16(payload, watermarksVersion)
	payload = binary.BigEndian.AppendUint64(payload, w.mu.seq+1)
	if clean {
		payload = append(payload, 1)
	} else {
		payload = append(payload, 0)
	}
	payload = binary.BigEndian.AppendUint32(payload, uint32(len(w.mu.marks)))
	for id, m := range w.mu.marks {
		payload = appendMark(payload, id, m)
	}
	b := appendFrame(nil, payload)
	pos := int64(len(b))
	room := 2*pos + slotRoom
	next := 1 - w.mu.slot
	path := w.disk.PathJoin(w.dir, slotNames[next])
	if err := w.writeSlot(path, append(b, make([]byte, room-pos)...)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	f, err := w.disk.open(path, false)
	if err != nil {
		return err
	}
	if w.mu.file != nil {
		_ = w.mu.file.Close()
	}
	w.mu.file, w.mu.slot, w.mu.seq = f, next, w.mu.seq+1
	w.mu.pos, w.mu.room, w.mu.behind = pos, room, false
	return nil
}

// writeSlot makes the slot's new file. The old one of this name is the older
// of the two and not needed while it is replaced.
func (w *watermarks) writeSlot(path string, b []byte) error {
	f, err := w.disk.Create(path, "watermarks")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = w.disk.sync(f)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	invariants.Fault("segment.slotWritten")
	return w.disk.syncDir(w.dir)
}

// close writes a last snapshot, clean if the store is.
func (w *watermarks) close(clean bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.mu.syncing {
		w.mu.synced.Wait()
	}
	var err error
	if w.mu.err == nil && clean {
		err = w.snapshotLocked(true)
	}
	if w.mu.file != nil {
		err = errors.Join(err, w.mu.file.Close())
		w.mu.file = nil
	}
	if w.mu.err == nil {
		w.mu.err = ErrClosed
	}
	return err
}

// change is one entry of put.
type change struct {
	id     LogID
	mark   mark
	delete bool
}

func (c change) append(b []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, frameHeader)...)
	if c.delete {
		b = append(b, 'D')
		b = append(b, c.id.prefix()...)
	} else {
		b = append(b, 'C')
		b = appendMark(b, c.id, c.mark)
	}
	sealFrame(b[start:])
	return b
}

func appendMark(b []byte, id LogID, m mark) []byte {
	b = append(b, id.Topic[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(id.Partition))
	for _, v := range []int64{m.start, m.durable, m.hw, m.generation, m.floor, m.reset, m.life, m.proof.base, m.proof.size, int64(m.proof.heads)} {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func readMark(b []byte) (LogID, mark) {
	id := readLogID(b)
	n := func(i int) int64 { return int64(binary.BigEndian.Uint64(b[20+8*i:])) }
	m := mark{start: n(0), durable: n(1), hw: n(2), generation: n(3), floor: n(4), reset: n(5)}
	if len(b) >= entrySize {
		m.life = n(6)
		m.proof = proof{base: n(7), known: known{size: n(8), heads: uint32(n(9))}}
	}
	return id, m
}

func readLogID(b []byte) LogID {
	return LogID{Topic: [16]byte(b), Partition: int32(binary.BigEndian.Uint32(b[16:]))}
}

func appendFrame(b, payload []byte) []byte {
	start := len(b)
	b = append(b, make([]byte, frameHeader)...)
	b = append(b, payload...)
	sealFrame(b[start:])
	return b
}

func sealFrame(frame []byte) {
	payload := frame[frameHeader:]
	binary.BigEndian.PutUint32(frame, uint32(len(payload)))
	binary.BigEndian.PutUint32(frame[4:], crc32.Checksum(payload, castagnoli))
}

type slot struct {
	seq    uint64
	clean  bool
	marks  map[LogID]mark
	newest int64 // greatest generation in it
}

func (s *slot) note(id LogID, m mark) {
	s.marks[id] = m
	s.newest = max(s.newest, m.generation)
}

// decodeSlot reads a snapshot and the changes behind it, up to the first frame
// that is not whole.
func decodeSlot(b []byte) (*slot, error) {
	payload, b, ok := nextFrame(b)
	if !ok || len(payload) < snapshotHeader || payload[0] != 'S' {
		return nil, fmt.Errorf("%w: no snapshot", errWatermark)
	}
	size := entrySize
	switch v := binary.BigEndian.Uint16(payload[1:]); v {
	case watermarksVersion:
	case 1:
		size = entrySize1
	default:
		return nil, fmt.Errorf("%w: version %d, this program knows %d", errWatermark, v, watermarksVersion)
	}
	s := &slot{seq: binary.BigEndian.Uint64(payload[3:]), clean: payload[11] == 1}
	n := int(binary.BigEndian.Uint32(payload[12:]))
	entries := payload[snapshotHeader:]
	if len(entries) != n*size {
		return nil, fmt.Errorf("%w: %d entries in %d bytes", errWatermark, n, len(entries))
	}
	s.marks = make(map[LogID]mark, n)
	for ; len(entries) > 0; entries = entries[size:] {
		s.note(readMark(entries[:size]))
	}
	for {
		if payload, b, ok = nextFrame(b); !ok {
			return s, nil
		}
		s.clean = false // the store was in use again
		switch {
		case len(payload) == 1+size && payload[0] == 'C':
			s.note(readMark(payload[1:]))
		case len(payload) == 1+logKeySize && payload[0] == 'D':
			delete(s.marks, readLogID(payload[1:]))
		default:
			return s, nil
		}
	}
}

func nextFrame(b []byte) (payload, rest []byte, ok bool) {
	if len(b) < frameHeader {
		return nil, nil, false
	}
	n, sum := binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	b = b[frameHeader:]
	if n == 0 || int64(n) > int64(len(b)) || crc32.Checksum(b[:n], castagnoli) != sum {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}

// readFile reads a small file.
func readFile(d disk, path string) ([]byte, error) {
	f, err := d.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFrame))
	return b, errors.Join(err, f.Close())
}
