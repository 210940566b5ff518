package segment

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// scanChunk is what a scanner reads at once while batches are small. It is the
// distance of index entries too, so that a lookup is one read.
const scanChunk = 64 << 10

var scanBuffers = sync.Pool{New: func() any { b := make([]byte, scanChunk); return &b }}

// scanner walks the batches of a segment file from a known boundary. It reads
// headers only: small batches come in chunks, larger ones are hopped over.
type scanner struct {
	f     io.ReaderAt
	pos   int64 // position of the batch that next will return
	limit int64 // bytes at and behind it are not looked at

	buf  *[]byte
	at   int64 // file position of (*buf)[0]
	n    int   // valid bytes in buf
	last int   // size of the last batch, to choose how much to read
}

func newScanner(f io.ReaderAt, pos, limit int64) *scanner {
	return &scanner{f: f, pos: pos, limit: limit, buf: scanBuffers.Get().(*[]byte), last: 4 << 10}
}

func (s *scanner) close() {
	if s.buf != nil {
		invariants.Poison(*s.buf)
		scanBuffers.Put(s.buf)
		s.buf = nil
	}
}

// next returns the header of the next batch (HeaderSize bytes, valid until the
// next call or close), its position and size, and steps over it. io.EOF means that the
// batches end exactly at the limit; record.ErrShort that the last one is cut.
func (s *scanner) next() (h record.Batch, pos int64, size int, err error) {
	left := s.limit - s.pos
	if left == 0 {
		return nil, s.pos, 0, io.EOF
	}
	if left < record.HeaderSize {
		return nil, s.pos, 0, record.ErrShort
	}
	p, err := s.peek(record.HeaderSize)
	if err != nil {
		return nil, s.pos, 0, err
	}
	h = record.Batch(p)
	if size, err = record.PeekSize(p); err != nil {
		return nil, s.pos, 0, err
	}
	if err := h.CheckHeader(); err != nil {
		return nil, s.pos, 0, err
	}
	if int64(size) > left {
		return nil, s.pos, size, record.ErrShort
	}
	pos = s.pos
	s.pos += int64(size)
	s.last = size
	return h, pos, size, nil
}

// peek returns n bytes at pos, from the buffer or by one read.
func (s *scanner) peek(n int) ([]byte, error) {
	if s.pos >= s.at && s.pos+int64(n) <= s.at+int64(s.n) {
		return (*s.buf)[s.pos-s.at:][:n], nil
	}
	// Many small batches come with one large read; larger ones are hopped over,
	// header by header: copying 4 KiB costs about as much as a system call.
	want := int64(scanChunk)
	if s.last >= 4<<10 {
		want = record.HeaderSize
	}
	want = max(min(want, s.limit-s.pos), int64(n))
	if _, err := readFull(s.f, (*s.buf)[:want], s.pos); err != nil {
		s.n = 0
		return nil, err
	}
	s.at, s.n = s.pos, int(want)
	return (*s.buf)[:n], nil
}

// body reads the whole batch that next has just returned, into buf.
func (s *scanner) body(buf []byte, pos int64, size int) (record.Batch, []byte, error) {
	if cap(buf) < size {
		buf = make([]byte, size+size/4)
	}
	buf = buf[:cap(buf)]
	if _, err := readFull(s.f, buf[:size], pos); err != nil {
		return nil, buf, err
	}
	return record.Batch(buf[:size]), buf, nil
}

// readFull is ReadAt that tells a short file from a broken disk.
func readFull(f io.ReaderAt, p []byte, at int64) (int, error) {
	n, err := f.ReadAt(p, at)
	if n == len(p) {
		return n, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// isBadBatch tells bytes that are no batch from a disk that cannot be read:
// only the former may be a torn tail.
func isBadBatch(err error) bool {
	var corrupt *record.CorruptError
	return errors.As(err, &corrupt) || errors.Is(err, record.ErrShort) ||
		errors.Is(err, errOffsetBack) || errors.Is(err, errEpochBack) || errors.Is(err, errHeads)
}

// What the CRC does not cover: only the neighbours show that it is wrong.
var (
	errOffsetBack = errors.New("offset goes back")
	errEpochBack  = errors.New("leader epoch goes back")
)

func checkOrder(h record.Batch, end int64) error {
	if h.BaseOffset() < end {
		return fmt.Errorf("%w: batch at %d, previous ended at %d", errOffsetBack, h.BaseOffset(), end)
	}
	return nil
}

func checkEpoch(h record.Batch, last int32) error {
	if e := h.PartitionLeaderEpoch(); e < last {
		return fmt.Errorf("%w: %d behind %d", errEpochBack, e, last)
	}
	return nil
}
