package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Errors of framing. All mean that the stream cannot be followed any further:
// the connection has to be closed.
var (
	ErrFrameSize = errors.New("frame size out of bounds")
	ErrShortBody = errors.New("message shorter than its fields say")
)

// frameStep is how much memory a frame gets before any of its bytes arrived.
// From there the buffer grows fourfold as it fills: a peer that states 100 MiB
// and sends nothing costs this much, a peer that sends costs at most four times
// what it sent, and the copies of growing are a third of the bytes.
const frameStep = 64 << 10

// Grow returns a buffer with b's bytes and room for n in all, or more: size is what
// the peer says that the frame has. It is asked before each step, also where b has
// the room. A server puts its pool, its memory budget and its deadlines here; nil
// means plain allocation.
type Grow func(b []byte, n, size int) ([]byte, error)

// ReadFrame reads one size-prefixed frame and returns its content in buf,
// which is grown when it is too small. The result aliases buf until the next
// call. io.EOF before the first byte is a clean end; an end inside a frame is
// io.ErrUnexpectedEOF.
func ReadFrame(r io.Reader, max int, buf []byte) ([]byte, error) {
	size, buf, err := readSize(r, buf)
	if err != nil {
		return nil, err
	}
	if size < 0 || size > max {
		return nil, fmt.Errorf("%w: %d bytes stated, at most %d allowed", ErrFrameSize, size, max)
	}
	return fill(r, buf[:0], size, nil)
}

// ReadRequestFrame is ReadFrame for servers: how much is allowed depends on
// the request's key, because decoders multiply the size of a body and only
// Produce has a reason to be large. limit answers the most bytes a frame of
// the key may have. The returned buffer is the caller's also with an error, so
// that it can go back to where grow took it from.
func ReadRequestFrame(r io.Reader, limit func(key int16) int, buf []byte, grow Grow) ([]byte, error) {
	size, buf, err := readSize(r, buf)
	if err != nil {
		return buf, err
	}
	if size < minRequestHeader {
		return buf, fmt.Errorf("%w: %d bytes stated, a request header has at least %d", ErrFrameSize, size, minRequestHeader)
	}
	if buf, err = fill(r, buf[:0], 2, grow); err != nil {
		return buf, err
	}
	key := int16(binary.BigEndian.Uint16(buf))
	if max := limit(key); size > max {
		return buf, fmt.Errorf("%w: %d bytes stated for key %d, at most %d allowed", ErrFrameSize, size, key, max)
	}
	return fill(r, buf, size, grow)
}

// readSize reads the prefix into buf, so that a connection's idle wait holds
// no second buffer.
func readSize(r io.Reader, buf []byte) (int, []byte, error) {
	if cap(buf) < 4 {
		buf = make([]byte, 4, 512)
	}
	if _, err := io.ReadFull(r, buf[:4]); err != nil {
		return 0, buf, err
	}
	return int(int32(binary.BigEndian.Uint32(buf[:4]))), buf, nil
}

// fill reads until b has size bytes, keeping those it has.
func fill(r io.Reader, b []byte, size int, grow Grow) ([]byte, error) {
	for len(b) < size {
		have := len(b)
		n := min(size, max(frameStep, 4*have)) // at most four times what has arrived
		if grow == nil {
			b = slices.Grow(b, n-have)
		} else {
			var err error
			if b, err = grow(b, n, size); err != nil {
				return b, err
			}
		}
		b = b[:n]
		if n, err := io.ReadFull(r, b[have:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // the prefix promised more
			}
			return b, fmt.Errorf("frame of %d bytes ended after %d: %w", size, have+n, err)
		}
	}
	return b, nil
}
