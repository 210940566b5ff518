package segment

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

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

var errInflated = fmt.Errorf("segment: batch decompresses to more than %d bytes", maxInflated)

// eachRecord is record.Batch.Records for compressed batches too.
func eachRecord(b record.Batch, fn func(record.Record) error) error {
	if b.Codec() == record.CodecNone {
		return b.Records(fn)
	}
	plain, err := inflate(b.Codec(), b.RecordBytes())
	if err != nil {
		return err
	}
	return b.RecordsIn(plain, fn)
}

func inflate(c record.Codec, src []byte) ([]byte, error) {
	switch c {
	case record.CodecGzip:
		r, err := gzip.NewReader(bytes.NewReader(src))
		if err != nil {
			return nil, err
		}
		return readBounded(r)
	case record.CodecSnappy:
		return inflateSnappy(src)
	case record.CodecLz4:
		return readBounded(lz4.NewReader(bytes.NewReader(src)))
	case record.CodecZstd:
		r, err := zstd.NewReader(bytes.NewReader(src), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxInflated))
		if err != nil {
			return nil, err
		}
		defer r.Close()
		return readBounded(r)
	}
	return nil, fmt.Errorf("segment: unknown %s", c)
}

func readBounded(r io.Reader) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxInflated+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxInflated {
		return nil, errInflated
	}
	return b, nil
}

// xerialMagic begins the framing that Kafka's Java client puts around snappy
// blocks; other clients write one bare block.
var xerialMagic = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

func inflateSnappy(src []byte) ([]byte, error) {
	if !bytes.HasPrefix(src, xerialMagic) {
		return appendSnappy(nil, src)
	}
	if len(src) < 16 {
		return nil, io.ErrUnexpectedEOF
	}
	var dst []byte
	for src = src[16:]; len(src) > 0; { // magic, version, oldest compatible version
		if len(src) < 4 {
			return nil, io.ErrUnexpectedEOF
		}
		n := int64(binary.BigEndian.Uint32(src))
		if src = src[4:]; n > int64(len(src)) {
			return nil, io.ErrUnexpectedEOF
		}
		var err error
		if dst, err = appendSnappy(dst, src[:n]); err != nil {
			return nil, err
		}
		src = src[n:]
	}
	return dst, nil
}

func appendSnappy(dst, block []byte) ([]byte, error) {
	n, err := s2.DecodedLen(block)
	if err != nil {
		return nil, err
	}
	// A snappy block cannot grow by more than about 21 times; a length that says
	// more is a lie.
	if n > maxInflated-len(dst) || n > 64*(len(block)+16) {
		return nil, errors.Join(errInflated, fmt.Errorf("block of %d bytes says %d", len(block), n))
	}
	plain, err := s2.Decode(nil, block)
	if err != nil {
		return nil, err
	}
	return append(dst, plain...), nil
}
