package record

import (
	"encoding/binary"
	"fmt"
)

// Record is one record of a batch. Key, Value and the headers' bytes lie in
// the batch's own bytes. A nil Key or Value is Kafka's null, which differs
// from an empty one: a null value is a tombstone.
type Record struct {
	TimestampDelta int64
	OffsetDelta    int32
	Key, Value     []byte
	Headers        []Header
}

// Header is one header of a record (KIP-82).
type Header struct {
	Key   string
	Value []byte
}

// Records calls fn for each record in order, until fn returns an error, which
// is then returned. Batches that are compressed answer ErrCompressed. The
// Headers slice is reused between calls; all bytes are the batch's.
func (b Batch) Records(fn func(Record) error) error {
	if b.Codec() != CodecNone {
		return ErrCompressed
	}
	return b.walk(b.RecordBytes(), fn)
}

// RecordsIn is Records over record bytes that the caller has decompressed.
func (b Batch) RecordsIn(decompressed []byte, fn func(Record) error) error {
	return b.walk(decompressed, fn)
}

func (b Batch) walk(p []byte, fn func(Record) error) error {
	n := b.NumRecords()
	if n < 0 {
		return corrupt(b, "number of records is %d", n)
	}
	var r Record
	for i := int32(0); i < n; i++ {
		rest, err := parseRecord(p, &r)
		if err != nil {
			return corrupt(b, "record %d of %d: %v", i, n, err)
		}
		if r.OffsetDelta < 0 || r.OffsetDelta > b.LastOffsetDelta() {
			return corrupt(b, "record %d of %d: offset delta %d, last is %d", i, n, r.OffsetDelta, b.LastOffsetDelta())
		}
		p = rest
		if err := fn(r); err != nil {
			return err
		}
	}
	if len(p) != 0 {
		return corrupt(b, "%d bytes behind the last record", len(p))
	}
	return nil
}

// parseRecord reads one record:
//
//	length varint, attributes int8, timestamp delta varlong, offset delta varint,
//	key, value (varint length, -1 = null), header count varint, headers
func parseRecord(p []byte, r *Record) (rest []byte, err error) {
	size, p, err := varint(p)
	if err != nil {
		return nil, fmt.Errorf("length: %w", err)
	}
	if size < 0 || size > int64(len(p)) {
		return nil, fmt.Errorf("length %d, %d bytes left", size, len(p))
	}
	rest, p = p[size:], p[:size]
	if len(p) == 0 {
		return nil, fmt.Errorf("no attributes")
	}
	p = p[1:]
	if r.TimestampDelta, p, err = varint(p); err != nil {
		return nil, fmt.Errorf("timestamp delta: %w", err)
	}
	delta, p, err := varint(p)
	if err != nil || delta != int64(int32(delta)) {
		return nil, fmt.Errorf("offset delta: %w", errVarint)
	}
	r.OffsetDelta = int32(delta)
	if r.Key, p, err = varbytes(p); err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	if r.Value, p, err = varbytes(p); err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}
	n, p, err := varint(p)
	// A header takes two bytes at least, which bounds what a count can make us
	// allocate.
	if err != nil || n < 0 || n > int64(len(p)/2) {
		return nil, fmt.Errorf("header count: %w", errVarint)
	}
	r.Headers = r.Headers[:0]
	for range n {
		var key, value []byte
		if key, p, err = varbytes(p); err != nil || key == nil {
			return nil, fmt.Errorf("header key: %w", errVarint)
		}
		if value, p, err = varbytes(p); err != nil {
			return nil, fmt.Errorf("header value: %w", err)
		}
		r.Headers = append(r.Headers, Header{Key: string(key), Value: value})
	}
	if len(p) != 0 {
		return nil, fmt.Errorf("%d bytes behind its headers", len(p))
	}
	return rest, nil
}

var errVarint = fmt.Errorf("not a number that can stand here")

func varint(p []byte) (int64, []byte, error) {
	v, n := binary.Varint(p)
	if n <= 0 {
		return 0, nil, errVarint
	}
	return v, p[n:], nil
}

func varbytes(p []byte) (field, rest []byte, err error) {
	n, p, err := varint(p)
	if err != nil {
		return nil, nil, err
	}
	if n == -1 {
		return nil, p, nil
	}
	if n < 0 || n > int64(len(p)) {
		return nil, nil, fmt.Errorf("length %d, %d bytes left", n, len(p))
	}
	return p[:n:n], p[n:], nil
}
