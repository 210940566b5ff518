package record

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Raw is a record as it lies in its batch, with what compaction has to know of
// it. All bytes are the batch's, and so is the time that they stay.
type Raw struct {
	Bytes          []byte // all of it, its length in front
	TimestampDelta int64
	OffsetDelta    int32
	Key            []byte // nil: null
	Tombstone      bool   // the value is null

	attributes byte
	tail       []byte // from the offset delta on
}

// RawRecords is RecordsIn for who only sorts records out: headers are stepped
// over unread, nothing is allocated, and the Raw is the same in every call.
func (b Batch) RawRecords(decompressed []byte, fn func(*Raw) error) error {
	n, p := b.NumRecords(), decompressed
	if n < 0 {
		return corrupt(b, "number of records is %d", n)
	}
	var r Raw
	for i := range n {
		rest, err := r.parse(p)
		if err != nil {
			return corrupt(b, "record %d of %d: %v", i, n, err)
		}
		if r.OffsetDelta < 0 || r.OffsetDelta > b.LastOffsetDelta() {
			return corrupt(b, "record %d of %d: offset delta %d, last is %d", i, n, r.OffsetDelta, b.LastOffsetDelta())
		}
		p = rest
		if err := fn(&r); err != nil {
			return err
		}
	}
	if len(p) != 0 {
		return corrupt(b, "%d bytes behind the last record", len(p))
	}
	return nil
}

func (r *Raw) parse(p []byte) (rest []byte, err error) {
	size, body, err := varint(p)
	if err != nil {
		return nil, fmt.Errorf("length: %w", err)
	}
	if size < 1 || size > int64(len(body)) {
		return nil, fmt.Errorf("length %d, %d bytes left", size, len(body))
	}
	rest = body[size:]
	r.Bytes, r.attributes = p[:len(p)-len(rest)], body[0]
	if r.TimestampDelta, r.tail, err = varint(body[1:size]); err != nil {
		return nil, fmt.Errorf("timestamp delta: %w", err)
	}
	delta, q, err := varint(r.tail)
	if err != nil || delta != int64(int32(delta)) {
		return nil, fmt.Errorf("offset delta: %w", errVarint)
	}
	r.OffsetDelta = int32(delta)
	if r.Key, q, err = varbytes(q); err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	value, _, err := varbytes(q)
	if err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}
	r.Tombstone = value == nil
	return rest, nil
}

// AppendTo appends the record with another timestamp delta.
func (r *Raw) AppendTo(dst []byte, timestampDelta int64) []byte {
	if timestampDelta == r.TimestampDelta {
		return append(dst, r.Bytes...)
	}
	dst = binary.AppendVarint(dst, int64(1+varintLen(timestampDelta)+len(r.tail)))
	dst = append(dst, r.attributes)
	dst = binary.AppendVarint(dst, timestampDelta)
	return append(dst, r.tail...)
}

// Rebuild is what a batch gets in place of its records.
type Rebuild struct {
	Records      []byte // as they are to lie there: compressed if the batch is
	Count        int32
	MaxTimestamp int64 // of the records; ignored for LogAppendTime, where it is every record's timestamp

	// Horizon, if SetHorizon, becomes the delete horizon (KIP-534): the flag is set
	// and the base timestamp is the horizon, from which the records' timestamp
	// deltas have to count then.
	Horizon    int64
	SetHorizon bool

	// Codec, if SetCodec, is what Records are compressed with; otherwise it is what
	// the batch's were.
	Codec    Codec
	SetCodec bool
}

// AppendRebuilt appends a batch with b's header and other records. Everything
// that the header says and Rebuild does not stays: offsets, leader epoch,
// producer and sequences, flags.
func (b Batch) AppendRebuilt(dst []byte, r Rebuild) ([]byte, error) {
	if size := HeaderSize + len(r.Records); size > math.MaxInt32 {
		return dst, fmt.Errorf("record: rebuilt batch at offset %d would have %d bytes", b.BaseOffset(), size)
	}
	start := len(dst)
	dst = append(append(dst, b[:HeaderSize]...), r.Records...)
	n := Batch(dst[start:])
	binary.BigEndian.PutUint32(n[posLength:], uint32(len(n)-prefixSize))
	binary.BigEndian.PutUint32(n[posNumRecords:], uint32(r.Count))
	if b.TimestampType() == CreateTime {
		binary.BigEndian.PutUint64(n[posMaxTimestamp:], uint64(r.MaxTimestamp))
	}
	if r.SetCodec {
		binary.BigEndian.PutUint16(n[posAttributes:], uint16(b.Attributes()&^attrCodec|int16(r.Codec)))
	}
	if r.SetHorizon {
		binary.BigEndian.PutUint16(n[posAttributes:], uint16(n.Attributes()|attrDeleteHorizon))
		binary.BigEndian.PutUint64(n[posBaseTimestamp:], uint64(r.Horizon))
	}
	n.seal()
	return dst, nil
}
