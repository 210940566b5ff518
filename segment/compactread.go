package segment

import (
	"context"
	"fmt"
	"io"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// compactChunk is how much compaction reads at once. It is the piece between
// two looks at the context and the throttle too.
const compactChunk = 512 << 10

// batchReader reads whole batches of one file after the other, through one
// buffer that grows to the largest batch.
type batchReader struct {
	ctx      context.Context
	throttle func(context.Context, int) error
	read     int64 // bytes, of all files

	f          io.ReaderAt
	pos, limit int64 // file position of what next will return; end of the file
	buf        []byte
	from, to   int // what of buf is read and not yet given out
}

// open goes to the beginning of a file.
func (r *batchReader) open(f io.ReaderAt, size int64) {
	r.f, r.pos, r.limit, r.from, r.to = f, 0, size, 0, 0
}

// next returns the next batch, its CRC checked, until the next call. io.EOF is
// the end of the file.
func (r *batchReader) next() (record.Batch, error) {
	if r.pos == r.limit {
		return nil, io.EOF
	}
	if err := r.fill(record.HeaderSize); err != nil {
		return nil, err
	}
	size, err := record.PeekSize(r.buf[r.from:r.to])
	if err != nil {
		return nil, err
	}
	if err := r.fill(size); err != nil {
		return nil, err
	}
	b, _, err := record.Next(r.buf[r.from : r.from+size])
	if err != nil {
		return nil, err
	}
	// What is written anew gets a new CRC: damage must not be sealed with it.
	if err := b.VerifyCRC(); err != nil {
		return nil, err
	}
	r.from += size
	r.pos += int64(size)
	return b, nil
}

// fill makes n bytes from pos on lie in the buffer.
func (r *batchReader) fill(n int) error {
	have := r.to - r.from
	if have >= n {
		return nil
	}
	if int64(n) > r.limit-r.pos {
		return record.ErrShort
	}
	if err := r.ctx.Err(); err != nil {
		return err
	}
	want := int(min(int64(max(n, compactChunk)), r.limit-r.pos))
	if cap(r.buf) < want {
		grown := make([]byte, want)
		copy(grown, r.buf[r.from:r.to])
		r.buf = grown
	} else {
		r.buf = r.buf[:cap(r.buf)]
		copy(r.buf, r.buf[r.from:r.to])
	}
	r.from, r.to = 0, have
	m, err := readFull(r.f, r.buf[have:want], r.pos+int64(have))
	if err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	r.to += m
	r.read += int64(m)
	if r.throttle != nil {
		return r.throttle(r.ctx, m)
	}
	return nil
}
