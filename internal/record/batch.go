package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
)

// Sizes and positions of the v2 header; see the drawing in the package comment.
const (
	// HeaderSize is the size of a batch without records.
	HeaderSize = 61

	// prefixSize is the part in front of what the length field counts. With
	// that many bytes the size of a batch is known.
	prefixSize = 12

	posLength          = 8
	posLeaderEpoch     = 12
	posMagic           = 16
	posCRC             = 17
	posAttributes      = 21
	posLastOffsetDelta = 23
	posBaseTimestamp   = 27
	posMaxTimestamp    = 35
	posProducerID      = 43
	posProducerEpoch   = 51
	posBaseSequence    = 53
	posNumRecords      = 57
)

// Magic is the only batch format we store. Formats 0 and 1 went with Kafka 4.0
// (KIP-724).
const Magic = 2

const (
	attrCodec         = 0x07
	attrLogAppendTime = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20
	attrDeleteHorizon = 0x40
)

// Codec is the compression of a batch's records.
type Codec int8

// The codecs of format v2. Zstd is KIP-110.
const (
	CodecNone   Codec = 0
	CodecGzip   Codec = 1
	CodecSnappy Codec = 2
	CodecLz4    Codec = 3
	CodecZstd   Codec = 4
)

func (c Codec) String() string {
	switch c {
	case CodecNone:
		return "none"
	case CodecGzip:
		return "gzip"
	case CodecSnappy:
		return "snappy"
	case CodecLz4:
		return "lz4"
	case CodecZstd:
		return "zstd"
	}
	return fmt.Sprintf("codec(%d)", int8(c))
}

// TimestampType says what the timestamps of a batch mean (KIP-32).
type TimestampType int8

// CreateTime is set by the producer; LogAppendTime by the broker, and then
// MaxTimestamp is the timestamp of every record of the batch.
const (
	CreateTime    TimestampType = 0
	LogAppendTime TimestampType = 1
)

func (t TimestampType) String() string {
	if t == LogAppendTime {
		return "LogAppendTime"
	}
	return "CreateTime"
}

var (
	// ErrShort says that the bytes end before the batch does.
	ErrShort = errors.New("record: bytes end inside a batch")
	// ErrCompressed says that the records of a batch cannot be seen without
	// decompressing it, which this package never does.
	ErrCompressed = errors.New("record: batch is compressed")
)

// CorruptError says that bytes are not a batch, whatever may follow them.
type CorruptError struct {
	BaseOffset int64  // as the header has it; may itself be garbage
	Reason     string // one clause, without the offset
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("record: corrupt batch at offset %d: %s", e.BaseOffset, e.Reason)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Batch is exactly one whole v2 batch. The bytes are not owned: who holds a
// Batch has to know how long its bytes stay.
//
// A Batch that came from Next has consistent lengths, so no accessor can read
// out of bounds. A Batch made by conversion must be at least HeaderSize long.
type Batch []byte

// PeekSize tells the size of the batch that b begins with, from its first 12
// bytes. It answers ErrShort if b has fewer, and *CorruptError if the length
// cannot be that of a batch. The batch itself need not be there.
func PeekSize(b []byte) (int, error) {
	if len(b) < prefixSize {
		return 0, ErrShort
	}
	n := int32(binary.BigEndian.Uint32(b[posLength:]))
	if n < HeaderSize-prefixSize || n > math.MaxInt32-prefixSize {
		return 0, &CorruptError{BaseOffset: int64(binary.BigEndian.Uint64(b)), Reason: fmt.Sprintf("length field is %d", n)}
	}
	return int(n) + prefixSize, nil
}

// Next cuts the first batch off b. The lengths are checked against b, and the
// magic; the CRC is not (see VerifyCRC). ErrShort means that b ends inside the
// batch (an empty b too).
func Next(b []byte) (batch Batch, rest []byte, err error) {
	size, err := PeekSize(b)
	if err != nil {
		return nil, b, err
	}
	if len(b) > posMagic && b[posMagic] != Magic {
		// Said even when the batch is not whole yet: waiting would not help.
		return nil, b, corrupt(b, "magic is %d, want %d", int8(b[posMagic]), Magic)
	}
	if len(b) < size {
		return nil, b, ErrShort
	}
	batch = Batch(b[:size:size])
	if err := batch.CheckHeader(); err != nil {
		return nil, b, err
	}
	return batch, b[size:], nil
}

// CheckHeader checks what the fixed header alone can tell: magic, base offset,
// and that offsets of the batch do not overflow. b may be the first HeaderSize
// bytes of a batch whose rest is elsewhere.
func (b Batch) CheckHeader() error {
	if b[posMagic] != Magic {
		return corrupt(b, "magic is %d, want %d", int8(b[posMagic]), Magic)
	}
	base, delta := b.BaseOffset(), b.LastOffsetDelta()
	if base < 0 {
		return corrupt(b, "base offset is negative")
	}
	if delta < 0 || base > math.MaxInt64-1-int64(delta) {
		return corrupt(b, "last offset delta is %d", delta)
	}
	return nil
}

func corrupt(b []byte, format string, args ...any) error {
	return &CorruptError{BaseOffset: int64(binary.BigEndian.Uint64(b)), Reason: fmt.Sprintf(format, args...)}
}

// BaseOffset is the offset of the first record, also when that record has been
// compacted away.
func (b Batch) BaseOffset() int64 { return int64(binary.BigEndian.Uint64(b)) }

// LastOffset is the last offset of the batch, inclusive.
func (b Batch) LastOffset() int64 { return b.BaseOffset() + int64(b.LastOffsetDelta()) }

// NextOffset is the end of the batch, exclusive.
func (b Batch) NextOffset() int64 { return b.LastOffset() + 1 }

// Size is the size in bytes that the header states, its own prefix included.
func (b Batch) Size() int {
	return int(int32(binary.BigEndian.Uint32(b[posLength:]))) + prefixSize
}

// PartitionLeaderEpoch is the epoch of the leader that appended the batch
// first. On a mirror it is the source's (G1).
func (b Batch) PartitionLeaderEpoch() int32 {
	return int32(binary.BigEndian.Uint32(b[posLeaderEpoch:]))
}

// Magic is the format, 2 for every batch that came from Next.
func (b Batch) Magic() int8 { return int8(b[posMagic]) }

// CRC is the checksum in the header.
func (b Batch) CRC() uint32 { return binary.BigEndian.Uint32(b[posCRC:]) }

// Attributes are the flags as they lie there.
func (b Batch) Attributes() int16 { return int16(binary.BigEndian.Uint16(b[posAttributes:])) }

// LastOffsetDelta is LastOffset minus BaseOffset.
func (b Batch) LastOffsetDelta() int32 {
	return int32(binary.BigEndian.Uint32(b[posLastOffsetDelta:]))
}

// BaseTimestamp is what the records' timestamp deltas count from, or the
// delete horizon where HasDeleteHorizon.
func (b Batch) BaseTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[posBaseTimestamp:])) }

// MaxTimestamp is the greatest timestamp of the batch, in milliseconds, or -1.
func (b Batch) MaxTimestamp() int64 { return int64(binary.BigEndian.Uint64(b[posMaxTimestamp:])) }

// ProducerID is the id of an idempotent or transactional producer, or -1.
func (b Batch) ProducerID() int64 { return int64(binary.BigEndian.Uint64(b[posProducerID:])) }

// ProducerEpoch is the epoch that goes with ProducerID, or -1.
func (b Batch) ProducerEpoch() int16 { return int16(binary.BigEndian.Uint16(b[posProducerEpoch:])) }

// BaseSequence is the sequence of the first record, or -1.
func (b Batch) BaseSequence() int32 { return int32(binary.BigEndian.Uint32(b[posBaseSequence:])) }

// LastSequence is the sequence of the last record; sequences wrap from 2^31-1
// to 0.
func (b Batch) LastSequence() int32 {
	base := b.BaseSequence()
	if base < 0 {
		return base
	}
	return AddSequence(base, b.LastOffsetDelta())
}

// AddSequence is seq plus n, wrapping from 2^31-1 to 0 as producers do.
func AddSequence(seq, n int32) int32 {
	if seq > math.MaxInt32-n {
		return n - (math.MaxInt32 - seq) - 1
	}
	return seq + n
}

// NumRecords is the number of records that are still in the batch.
func (b Batch) NumRecords() int32 { return int32(binary.BigEndian.Uint32(b[posNumRecords:])) }

// Codec is the compression of the records.
func (b Batch) Codec() Codec { return Codec(b.Attributes() & attrCodec) }

// TimestampType says who set the timestamps.
func (b Batch) TimestampType() TimestampType {
	if b.Attributes()&attrLogAppendTime != 0 {
		return LogAppendTime
	}
	return CreateTime
}

// IsTransactional says that the records are part of a transaction (KIP-98).
func (b Batch) IsTransactional() bool { return b.Attributes()&attrTransactional != 0 }

// IsControl says that the batch holds one control record: a transaction
// marker, or a MIRROR_PID_RESET (L13).
func (b Batch) IsControl() bool { return b.Attributes()&attrControl != 0 }

// HasDeleteHorizon says that the cleaner stamped the batch (KIP-534).
func (b Batch) HasDeleteHorizon() bool { return b.Attributes()&attrDeleteHorizon != 0 }

// HasProducerID says that an idempotent or transactional producer wrote it.
func (b Batch) HasProducerID() bool { return b.ProducerID() >= 0 }

// RecordBytes are the bytes behind the header, compressed or not.
func (b Batch) RecordBytes() []byte { return b[HeaderSize:] }

// VerifyCRC compares the checksum with the bytes.
func (b Batch) VerifyCRC() error {
	if got := crc32.Checksum(b[posAttributes:], castagnoli); got != b.CRC() {
		return corrupt(b, "CRC is %08x, the bytes give %08x", b.CRC(), got)
	}
	return nil
}

// SetBaseOffset stamps the batch with the offset it gets in our log. The CRC
// does not cover it.
func (b Batch) SetBaseOffset(offset int64) { binary.BigEndian.PutUint64(b, uint64(offset)) }

// SetLeaderEpoch stamps the batch with the epoch of the appending leader. The
// CRC does not cover it.
func (b Batch) SetLeaderEpoch(epoch int32) {
	binary.BigEndian.PutUint32(b[posLeaderEpoch:], uint32(epoch))
}

// SetMaxTimestamp gives all records the broker's time: the batch becomes one
// of LogAppendTime, and its CRC is computed anew. Only for batches of clients
// on topics with message.timestamp.type=LogAppendTime; never on a mirror (D13).
func (b Batch) SetMaxTimestamp(logAppendTime int64) {
	binary.BigEndian.PutUint16(b[posAttributes:], uint16(b.Attributes()|attrLogAppendTime))
	binary.BigEndian.PutUint64(b[posMaxTimestamp:], uint64(logAppendTime))
	b.seal()
}

// seal computes the CRC.
func (b Batch) seal() {
	binary.BigEndian.PutUint32(b[posCRC:], crc32.Checksum(b[posAttributes:], castagnoli))
}
