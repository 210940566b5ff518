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
// From there the buffer doubles as it fills: a peer that states 100 MiB and
// sends nothing costs this much, and the copies of doubling cost less than 1 %
// of reading the bytes.
const frameStep = 64 << 10

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
	return fill(r, buf[:0], size)
}

// ReadRequestFrame is ReadFrame for servers: how much is allowed depends on
// the request's key, because decoders multiply the size of a body and only
// Produce has a reason to be large. limit gets the key (−1 when the frame is
// too short to hold one) and answers the most bytes such a frame may have.
func ReadRequestFrame(r io.Reader, limit func(key int16) int, buf []byte) ([]byte, error) {
	size, buf, err := readSize(r, buf)
	if err != nil {
		return nil, err
	}
	if size < minRequestHeader {
		return nil, fmt.Errorf("%w: %d bytes stated, a request header has at least %d", ErrFrameSize, size, minRequestHeader)
	}
	buf, err = fill(r, buf[:0], 2)
	if err != nil {
		return nil, err
	}
	key := int16(binary.BigEndian.Uint16(buf))
	if max := limit(key); size > max {
		return nil, fmt.Errorf("%w: %d bytes stated for key %d, at most %d allowed", ErrFrameSize, size, key, max)
	}
	return fill(r, buf, size)
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
func fill(r io.Reader, b []byte, size int) ([]byte, error) {
	for len(b) < size {
		have := len(b)
		if cap(b) < size {
			// Never more than the next doubling ahead of what has arrived.
			b = slices.Grow(b, min(size, max(frameStep, 2*have))-have)
		}
		b = b[:min(size, cap(b))]
		if n, err := io.ReadFull(r, b[have:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // the prefix promised more
			}
			return nil, fmt.Errorf("frame of %d bytes ended after %d: %w", size, have+n, err)
		}
	}
	return b, nil
}
