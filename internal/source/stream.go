package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// stream reads the fields of one response frame from a connection, with a
// small read-ahead that never crosses the frame. After the first error every
// read gives zeros and err stays: a parser checks it where it matters, before
// it loops or hands anything on.
type stream struct {
	conn io.Reader
	buf  []byte
	r, w int // unread bytes are buf[r:w]
	left int // bytes of the frame that are not consumed yet; includes buf[r:w]
	err  error

	// ahead is how much a refill may read. A response of few large partitions
	// is best read straight into its destination; one of many small ones, many
	// at a time.
	ahead int
}

const (
	readAhead    = 64 << 10
	readAheadMin = 4 << 10

	// longRecords is where copying read-ahead bytes costs more than another
	// read call.
	longRecords = 128 << 10
)

var (
	errFrameShort = errors.New("response ends inside a field")
	errVarint     = errors.New("response holds a number of more than 32 bits")
)

func newStream(conn io.Reader) *stream {
	return &stream{conn: conn, buf: make([]byte, readAhead), ahead: readAhead}
}

// begin starts a frame of n bytes, of which some were read already.
func (s *stream) begin(n int, head ...byte) {
	s.r, s.w, s.left, s.err = 0, copy(s.buf, head), n, nil
}

func (s *stream) fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// next consumes n bytes, at most len(buf), and returns them until the next
// call; nil after an error.
func (s *stream) next(n int) []byte {
	if s.err != nil {
		return nil
	}
	if n < 0 || n > s.left {
		s.fail(errFrameShort)
		return nil
	}
	for s.w-s.r < n {
		if !s.refill(n) {
			return nil
		}
	}
	b := s.buf[s.r : s.r+n]
	s.r += n
	s.left -= n
	return b
}

// refill reads some more bytes of the frame, for a field of need bytes.
func (s *stream) refill(need int) bool {
	if s.r > 0 {
		copy(s.buf, s.buf[s.r:s.w])
		s.w -= s.r
		s.r = 0
	}
	limit := min(max(need, s.ahead), len(s.buf), s.left)
	n, err := s.conn.Read(s.buf[s.w:limit])
	s.w += n
	if n == 0 && err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		s.fail(err)
		return false
	}
	return true
}

func (s *stream) int8() int8 {
	if b := s.next(1); b != nil {
		return int8(b[0])
	}
	return 0
}

func (s *stream) int16() int16 {
	if b := s.next(2); b != nil {
		return int16(binary.BigEndian.Uint16(b))
	}
	return 0
}

func (s *stream) int32() int32 {
	if b := s.next(4); b != nil {
		return int32(binary.BigEndian.Uint32(b))
	}
	return 0
}

func (s *stream) int64() int64 {
	if b := s.next(8); b != nil {
		return int64(binary.BigEndian.Uint64(b))
	}
	return 0
}

// uvarint is an unsigned number of at most 32 bits in at most five bytes.
func (s *stream) uvarint() uint32 {
	var v uint64
	for shift := 0; shift < 35; shift += 7 {
		b := s.next(1)
		if b == nil {
			return 0
		}
		v |= uint64(b[0]&0x7f) << shift
		if b[0] < 0x80 {
			if v > 1<<32-1 {
				break
			}
			return uint32(v)
		}
	}
	s.fail(errVarint)
	return 0
}

// length is a compact or a plain length; null counts as -1. It never exceeds
// what is left of the frame, with min bytes for each element.
func (s *stream) length(flexible, wide bool, min int) int {
	n := 0
	switch {
	case flexible:
		n = int(s.uvarint()) - 1
	case wide:
		n = int(s.int32())
	default:
		n = int(s.int16())
	}
	if s.err != nil {
		return -1
	}
	if n < -1 || n > 0 && n > s.left/min {
		s.fail(fmt.Errorf("response claims %d elements where %d bytes are left", n, s.left))
		return -1
	}
	return n
}

// skip consumes n bytes unseen.
func (s *stream) skip(n int) {
	if n < 0 || n > s.left {
		s.fail(errFrameShort)
	}
	for n > 0 && s.err == nil {
		part := min(n, len(s.buf))
		s.next(part)
		n -= part
	}
}

// tags consumes a section of tagged fields (KIP-482). known is called with
// each tag and its bytes if they are few; the bytes are valid during the call.
func (s *stream) tags(known func(tag uint32, b []byte)) {
	for n := s.uvarint(); n > 0 && s.err == nil; n-- {
		tag, size := s.uvarint(), int(s.uvarint())
		if s.err != nil {
			return
		}
		if known == nil || size > maxTagBytes {
			s.skip(size)
			continue
		}
		if b := s.next(size); b != nil {
			known(tag, b)
		}
	}
}

// maxTagBytes is more than any tagged field has that we look into.
const maxTagBytes = 256

// Read gives record bytes: what was read ahead first, then straight from the
// connection into p.
func (s *stream) read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if s.r < s.w {
		n := copy(p, s.buf[s.r:s.w])
		s.r += n
		s.left -= n
		return n, nil
	}
	if len(p) < readAheadMin && s.left > len(p) {
		if !s.refill(1) {
			return 0, s.err
		}
		return s.read(p)
	}
	if len(p) > s.left {
		p = p[:s.left]
	}
	n, err := s.conn.Read(p)
	s.left -= n
	if n == 0 && err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		s.fail(err)
		return 0, s.err
	}
	return n, nil
}
