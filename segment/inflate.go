package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// maxInflated bounds what one batch may grow to when it is decompressed to find
// a record by its time. The batch itself is bounded by max.message.bytes (1 MiB
// unless set higher), so honest batches stay far below; a decompression bomb
// stops here.
const maxInflated = 32 << 20

// errInflated is a batch that grows beyond what was allowed.
var errInflated = errors.New("segment: batch decompresses to more than is allowed")

// eachRecord is record.Batch.Records for compressed batches too.
func eachRecord(b record.Batch, most int, fn func(record.Record) error) error {
	if b.Codec() == record.CodecNone {
		return b.Records(fn)
	}
	plain, err := inflate(b.Codec(), b.RecordBytes(), most)
	if err != nil {
		return err
	}
	return b.RecordsIn(plain, fn)
}

func inflate(c record.Codec, src []byte, most int) ([]byte, error) {
	f := inflater{max: most}
	defer f.close()
	return f.inflate(c, src)
}

// inflater decompresses records, to at most max bytes each time. It keeps its
// decoders and its buffer, for those who have many batches. Not safe for several
// goroutines.
type inflater struct {
	max  int
	src  bytes.Reader
	dst  []byte
	gzip *gzip.Reader
	lz4  *lz4.Reader
	zstd *zstd.Decoder
}

// inflate returns the decompressed bytes, valid until the next call.
func (f *inflater) inflate(c record.Codec, src []byte) (plain []byte, err error) {
	f.src.Reset(src)
	switch c {
	case record.CodecGzip:
		if f.gzip == nil {
			f.gzip = new(gzip.Reader)
		}
		if err := f.gzip.Reset(&f.src); err != nil {
			return nil, err
		}
		return f.readAll(f.gzip)
	case record.CodecSnappy:
		f.dst, err = inflateSnappy(f.dst[:0], src, f.max)
		return f.dst, err
	case record.CodecLz4:
		if f.lz4 == nil {
			f.lz4 = lz4.NewReader(&f.src)
		}
		f.lz4.Reset(&f.src)
		return f.readAll(f.lz4)
	case record.CodecZstd:
		if f.zstd == nil {
			// Frames may need a larger window than what they decompress to.
			if f.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxInflated)); err != nil {
				return nil, err
			}
		}
		if err := f.zstd.Reset(&f.src); err != nil {
			return nil, err
		}
		return f.readAll(f.zstd)
	}
	return nil, fmt.Errorf("segment: unknown %s", c)
}

// readAll reads to the end or one byte beyond what is allowed.
func (f *inflater) readAll(r io.Reader) ([]byte, error) {
	f.dst = f.dst[:0]
	for {
		if len(f.dst) == cap(f.dst) {
			f.dst = append(f.dst, make([]byte, max(len(f.dst), 4<<10))...)[:len(f.dst)]
		}
		n, err := r.Read(f.dst[len(f.dst):min(cap(f.dst), f.max+1)])
		f.dst = f.dst[:len(f.dst)+n]
		switch {
		case len(f.dst) > f.max:
			return nil, fmt.Errorf("%w: %d bytes", errInflated, f.max)
		case errors.Is(err, io.EOF):
			return f.dst, nil
		case err != nil:
			return nil, err
		}
	}
}

func (f *inflater) close() {
	if f.zstd != nil {
		f.zstd.Close()
	}
}

// xerialMagic begins the framing that Kafka's Java client puts around snappy
// blocks; other clients write one bare block.
var xerialMagic = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

func inflateSnappy(dst, src []byte, most int) ([]byte, error) {
	if !bytes.HasPrefix(src, xerialMagic) {
		return appendSnappy(dst, src, most)
	}
	if len(src) < 16 {
		return dst, io.ErrUnexpectedEOF
	}
	for src = src[16:]; len(src) > 0; { // magic, version, oldest compatible version
		if len(src) < 4 {
			return dst, io.ErrUnexpectedEOF
		}
		n := int64(binary.BigEndian.Uint32(src))
		if src = src[4:]; n > int64(len(src)) {
			return dst, io.ErrUnexpectedEOF
		}
		var err error
		if dst, err = appendSnappy(dst, src[:n], most); err != nil {
			return dst, err
		}
		src = src[n:]
	}
	return dst, nil
}

func appendSnappy(dst, block []byte, most int) ([]byte, error) {
	n, err := s2.DecodedLen(block)
	if err != nil {
		return dst, err
	}
	// A snappy block cannot grow by more than about 21 times; a length that says
	// more is a lie.
	if n > most-len(dst) || n > 64*(len(block)+16) {
		return dst, fmt.Errorf("%w: %d bytes, and a block of %d bytes says %d", errInflated, most, len(block), n)
	}
	at := len(dst)
	dst = slices.Grow(dst, n)[:at+n]
	plain, err := s2.Decode(dst[at:at+n:at+n], block)
	if err != nil || len(plain) != n || n > 0 && &plain[0] != &dst[at] {
		return dst[:at], errors.Join(err, errors.New("segment: snappy block of another length"))
	}
	return dst, nil
}
