package segment

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// deflater compresses the records that compaction leaves of a batch with the
// batch's own codec, in framings that Kafka's Java client reads. Its encoders
// are made when they are needed and then kept. Not safe for several goroutines.
type deflater struct {
	level int // of the next call, in the codec's numbers; 0: its default

	buf  bytes.Buffer
	made [record.CodecZstd + 1]int // the level that each encoder was made with
	gzip *gzip.Writer
	lz4  *lz4.Writer
	zstd *zstd.Encoder
	out  []byte
}

// snappyBlock is how much goes into one block of the xerial framing, as in the
// Java client.
const snappyBlock = 32 << 10

// fresh tells whether the codec's encoder has to be made anew, for another level.
func (d *deflater) fresh(c record.Codec) bool {
	changed := d.made[c] != d.level
	d.made[c] = d.level
	return changed
}

// deflate returns the compressed bytes, valid until the next call.
func (d *deflater) deflate(c record.Codec, plain []byte) ([]byte, error) {
	d.buf.Reset()
	switch c {
	case record.CodecNone:
		return plain, nil
	case record.CodecGzip:
		if d.fresh(c) || d.gzip == nil {
			level := gzip.DefaultCompression
			if d.level > 0 {
				level = d.level
			}
			w, err := gzip.NewWriterLevel(&d.buf, level)
			if err != nil {
				return nil, err
			}
			d.gzip = w
		}
		d.gzip.Reset(&d.buf)
		if _, err := d.gzip.Write(plain); err != nil {
			return nil, err
		}
		if err := d.gzip.Close(); err != nil {
			return nil, err
		}
		return d.buf.Bytes(), nil
	case record.CodecSnappy:
		d.out = appendXerial(d.out[:0], plain)
		return d.out, nil
	case record.CodecLz4:
		if d.fresh(c) || d.lz4 == nil {
			d.lz4 = lz4.NewWriter(&d.buf)
			// Independent blocks of 64 KiB, as Kafka writes and demands them.
			if err := d.lz4.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ConcurrencyOption(1), lz4.CompressionLevelOption(lz4Level(d.level))); err != nil {
				return nil, err
			}
		}
		d.lz4.Reset(&d.buf)
		if _, err := d.lz4.Write(plain); err != nil {
			return nil, err
		}
		if err := d.lz4.Close(); err != nil {
			return nil, err
		}
		return d.buf.Bytes(), nil
	case record.CodecZstd:
		if d.fresh(c) || d.zstd == nil {
			d.close()
			level := zstd.SpeedDefault
			if d.level != 0 {
				level = zstd.EncoderLevelFromZstd(d.level)
			}
			// A small window keeps the decoders of all consumers small too.
			e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(128<<10), zstd.WithZeroFrames(true), zstd.WithEncoderLevel(level))
			if err != nil {
				return nil, err
			}
			d.zstd = e
		}
		d.out = d.zstd.EncodeAll(plain, d.out[:0])
		return d.out, nil
	}
	return nil, fmt.Errorf("segment: unknown %s", c)
}

// lz4Level: 9 is Kafka's default and means the fast way, as in its own client; the
// other numbers are those of the thorough one, of which this encoder has nine.
func lz4Level(level int) lz4.CompressionLevel {
	if level <= 0 || level == 9 {
		return lz4.Fast
	}
	return []lz4.CompressionLevel{
		lz4.Level1, lz4.Level2, lz4.Level3, lz4.Level4, lz4.Level5, lz4.Level6, lz4.Level7, lz4.Level8, lz4.Level9,
	}[min(level, 9)-1]
}

// appendXerial appends snappy blocks in the framing that inflateSnappy describes.
func appendXerial(dst, plain []byte) []byte {
	dst = append(dst, xerialMagic...)
	dst = append(dst, 0, 0, 0, 1, 0, 0, 0, 1) // version, oldest compatible version
	for len(plain) > 0 {
		n := min(len(plain), snappyBlock)
		at := len(dst)
		dst = append(dst, make([]byte, 4+s2.MaxEncodedLen(n))...)
		block := s2.EncodeSnappy(dst[at+4:], plain[:n])
		binary.BigEndian.PutUint32(dst[at:], uint32(len(block)))
		dst, plain = dst[:at+4+len(block)], plain[n:]
	}
	return dst
}

func (d *deflater) close() {
	if d.zstd != nil {
		_ = d.zstd.Close()
		d.zstd = nil
	}
}
