package segment

import (
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// piece is a stretch of a segment file: whole good batches back to back, or
// bytes that cannot be trusted.
type piece struct {
	pos, size int64
	from, to  int64 // offsets; of bad bytes those that may have been in them

	bad error // why the bytes cannot be trusted, nil if they can

	// Of good ones.
	first, last int32 // leader epochs
	batches     int64
	records     int64
}

// salvage reads a segment file from end to end and tells the good batches from
// the rest. limit is where the next segment begins, -1 for the last one.
//
// A batch is good if its header and its CRC are right and its offsets fit
// between its neighbours. The CRC does not cover the base offset and the leader
// epoch. So where offsets or epochs go back nobody can say which of the two
// batches is wrong, and both are dropped. Behind bad bytes the walk goes on at the next
// batch: where the bad one's length says, if a batch is there; else at the next
// position from which two right headers follow each other, because a record may
// hold bytes that look like a batch.
//
// The last piece reaches to the limit: what is missing at the end of the file
// counts as bad. Without a limit it ends where its last batch does, and bad
// bytes there have to = -1.
//
// A disk that cannot be read is an error, and says nothing about the bytes.
//
// heads is an error if all batches in the first k.size bytes are good, and yet
// not those that were written.
func salvage(f io.ReaderAt, base, size, limit int64, k known) (pieces []piece, heads, err error) {
	s := salvager{known: k, f: &window{f: f, size: size}, size: size, limit: limit, end: base, epoch: math.MinInt32}
	if limit < 0 {
		s.limit = math.MaxInt64
	}
	for s.pos < size {
		if err := s.step(); err != nil {
			return nil, nil, err
		}
	}
	switch n := len(s.pieces); {
	case limit < 0:
	case n > 0 && s.pieces[n-1].bad != nil:
		s.pieces[n-1].to = limit
	case s.end < limit:
		s.pieces = append(s.pieces, piece{pos: size, from: s.end, to: limit, bad: fmt.Errorf("file ends at offset %d, the next one begins at %d", s.end, limit)})
	}
	return s.pieces, s.heads, nil
}

type salvager struct {
	known known
	times times // of the good batches so far
	heads error

	f     *window
	size  int64
	limit int64

	pos   int64 // of what comes next
	end   int64 // end of the last good batch, or of the piece before it
	epoch int32 // of the last good batch

	pieces []piece
	prev   lastGood // the last good batch, if the last piece ends with it
}

// lastGood is one good batch in the file, with what was true in front of it.
type lastGood struct {
	pos, from, records int64
	epoch              int32
	ok                 bool
}

// step looks at what is at pos.
func (s *salvager) step() error {
	b, err := s.batchAt(s.pos)
	switch {
	case err == nil && b.BaseOffset() < s.end:
		err = checkOrder(b, s.end)
	case err == nil && b.PartitionLeaderEpoch() < s.epoch:
		err = checkEpoch(b, s.epoch)
	case err == nil && b.NextOffset() > s.limit:
		err = &record.CorruptError{BaseOffset: b.BaseOffset(), Reason: fmt.Sprintf("ends at offset %d, the next file begins at %d", b.NextOffset(), s.limit)}
	case err == nil:
		s.good(b)
		return nil
	case !isBadBatch(err):
		return err
	}
	at := s.pos
	if errors.Is(err, errOffsetBack) || errors.Is(err, errEpochBack) {
		s.dropPrevious()
	}
	return s.skip(at, err)
}

func (s *salvager) good(b record.Batch) {
	n := len(s.pieces)
	if n == 0 || s.pieces[n-1].bad != nil {
		if n > 0 {
			s.pieces[n-1].to = b.BaseOffset()
		}
		s.pieces = append(s.pieces, piece{pos: s.pos, from: b.BaseOffset(), first: b.PartitionLeaderEpoch()})
		n++
	}
	if err := s.known.check(s.pos+int64(len(b)), s.times, b); err != nil {
		s.heads = err
	}
	s.times.add(b)
	p := &s.pieces[n-1]
	s.prev = lastGood{pos: s.pos, from: s.end, records: int64(b.NumRecords()), epoch: s.epoch, ok: true}
	p.size += int64(len(b))
	p.to, p.last = b.NextOffset(), b.PartitionLeaderEpoch()
	p.batches++
	p.records += int64(b.NumRecords())
	s.pos, s.end, s.epoch = s.pos+int64(len(b)), b.NextOffset(), b.PartitionLeaderEpoch()
}

// dropPrevious takes the last good batch out again.
func (s *salvager) dropPrevious() {
	if !s.prev.ok {
		return
	}
	p := &s.pieces[len(s.pieces)-1]
	p.size -= s.pos - s.prev.pos
	p.to, p.last = s.prev.from, s.prev.epoch
	p.batches--
	p.records -= s.prev.records
	if p.batches == 0 {
		s.pieces = s.pieces[:len(s.pieces)-1]
	}
	s.pos, s.end, s.epoch = s.prev.pos, s.prev.from, s.prev.epoch
	s.prev.ok = false
}

// skip goes to the next batch behind bad that can be trusted, and makes what
// lies between pos and it a bad piece.
func (s *salvager) skip(bad int64, why error) error {
	next, err := s.behind(bad)
	if err != nil {
		return err
	}
	at := s.pos
	s.pos, s.prev.ok = next, false
	if n := len(s.pieces); n > 0 && s.pieces[n-1].bad != nil {
		s.pieces[n-1].size, s.pieces[n-1].to = next-s.pieces[n-1].pos, -1
		return nil
	}
	s.pieces = append(s.pieces, piece{pos: at, size: next - at, from: s.end, to: -1, bad: why})
	return nil
}

// behind finds the next batch behind the bad bytes at pos, or the end of the file.
func (s *salvager) behind(pos int64) (int64, error) {
	// Where the batch says that it ends, and the few behind it.
	at := pos
	for range 16 {
		if s.size-at < record.HeaderSize {
			break
		}
		h, err := s.f.peek(at, record.HeaderSize)
		if err != nil {
			return 0, err
		}
		n, err := record.PeekSize(h)
		if err != nil || at+int64(n) > s.size {
			break
		}
		at += int64(n)
		if at == s.size {
			return at, nil
		}
		if ok, err := s.fits(at); err != nil || ok {
			return at, err
		}
	}
	for at = pos + 1; at+record.HeaderSize <= s.size; at++ {
		// Most positions fall through here, so look at one byte before copying any.
		magic, err := s.f.peek(at+magicAt, 1)
		if err != nil {
			return 0, err
		}
		if magic[0] != record.Magic {
			continue
		}
		ok, err := s.fits(at)
		if err != nil {
			return 0, err
		}
		if !ok {
			continue
		}
		if ok, err = s.followed(at); err != nil || ok {
			return at, err
		}
	}
	return s.size, nil
}

// magicAt is where a batch has its magic.
const magicAt = 16

// searchSpan bounds how far the offset of a batch found behind bad bytes may be
// ahead: eight random bytes are a number below it once in a million times, so
// that no time is spent on checksums of what is no batch.
const searchSpan = 1 << 43

// fits says whether a good batch, of offsets that may stand here, is at pos.
func (s *salvager) fits(pos int64) (bool, error) {
	h, err := s.f.peek(pos, record.HeaderSize)
	if err != nil {
		return false, err
	}
	b := record.Batch(h)
	if b.CheckHeader() != nil || b.BaseOffset() < s.end || b.NextOffset() > s.limit || b.BaseOffset()-s.end > searchSpan || b.PartitionLeaderEpoch() < s.epoch {
		return false, nil
	}
	_, err = s.batchAt(pos)
	if err != nil && isBadBatch(err) {
		return false, nil
	}
	return err == nil, err
}

// followed says whether another header, or the end of the file, comes right
// behind the batch at pos.
func (s *salvager) followed(pos int64) (bool, error) {
	b, err := s.batchAt(pos)
	if err != nil {
		return false, err
	}
	next, end := pos+int64(len(b)), b.NextOffset()
	if next == s.size {
		return true, nil
	}
	if s.size-next < record.HeaderSize {
		return false, nil
	}
	h, err := s.f.peek(next, record.HeaderSize)
	if err != nil {
		return false, err
	}
	n, err := record.PeekSize(h)
	return err == nil && record.Batch(h).CheckHeader() == nil && record.Batch(h).BaseOffset() >= end && next+int64(n) <= s.size, nil
}

// batchAt reads the batch at pos and checks its CRC. It is valid until the next
// call.
func (s *salvager) batchAt(pos int64) (record.Batch, error) {
	if s.size-pos < record.HeaderSize {
		return nil, record.ErrShort
	}
	h, err := s.f.peek(pos, record.HeaderSize)
	if err != nil {
		return nil, err
	}
	n, err := record.PeekSize(h)
	if err != nil {
		return nil, err
	}
	if err := record.Batch(h).CheckHeader(); err != nil {
		return nil, err
	}
	if int64(n) > s.size-pos {
		return nil, record.ErrShort
	}
	p, err := s.f.peek(pos, n)
	if err != nil {
		return nil, err
	}
	return record.Batch(p), record.Batch(p).VerifyCRC()
}

// window is a buffer over a file that is read forwards, and now and then a
// little back.
type window struct {
	f    io.ReaderAt
	size int64

	buf []byte
	at  int64 // position of buf[0]
}

const windowSize = 1 << 20

// peek returns n bytes at pos, valid until the next call.
func (w *window) peek(pos int64, n int) ([]byte, error) {
	if pos >= w.at && pos+int64(n) <= w.at+int64(len(w.buf)) {
		return w.buf[pos-w.at:][:n], nil
	}
	want := int(min(max(int64(n), windowSize), w.size-pos))
	if want < n {
		return nil, record.ErrShort
	}
	if cap(w.buf) < want {
		w.buf = make([]byte, want)
	}
	w.buf, w.at = w.buf[:want], pos
	if _, err := readFull(w.f, w.buf, pos); err != nil {
		w.buf = w.buf[:0]
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = record.ErrShort // cut meanwhile
		}
		return nil, err
	}
	return w.buf[:n], nil
}
