package pipeline

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/invariants"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Why bytes are refused, beside *record.CorruptError.
var (
	// ErrFormat: message format v0 or v1, which we do not store. On a mirror
	// it ends the partition for good (S18).
	ErrFormat = errors.New("message format before v2")
	// ErrInvalidRecord: a client's batch breaks a rule that its CRC cannot
	// show.
	ErrInvalidRecord = errors.New("invalid record batch")
	// ErrTooLarge: a client's batch is above max.message.bytes.
	ErrTooLarge = errors.New("batch too large")
	// ErrUnknownCodec: compressed in a way that Kafka does not define.
	ErrUnknownCodec = errors.New("unknown compression")
	// errEpochOrder: the leader epochs of a log never decrease (L1).
	errEpochOrder = errors.New("leader epoch below that of the batch before")
)

// OffsetError is a batch that does not continue the log: it begins below the
// expected offset.
type OffsetError struct {
	Base, Last int64 // of the batch
	Expected   int64
}

func (e *OffsetError) Error() string {
	return fmt.Sprintf("batch %d to %d begins below the expected offset %d", e.Base, e.Last, e.Expected)
}

// EpochError is a batch whose leader epoch is above what we may append.
type EpochError struct {
	Epoch, Max int32
}

func (e *EpochError) Error() string {
	return fmt.Sprintf("batch has leader epoch %d, at most %d is allowed", e.Epoch, e.Max)
}

// VerifyState is where a walk over a partition's batches stands. It moves
// forward over good batches only.
type VerifyState struct {
	NextOffset int64 // no batch may begin below; gaps are legal (G2)
	LastEpoch  int32 // no batch may have a lower one; -1 before the first
	MaxEpoch   int32 // no batch may have a higher one; negative: no limit

	Batches, Records int64 // counted on the way, for the metrics
}

const (
	// posMagic is where all message formats have their magic byte.
	posMagic = 16
	// minBatchHead is enough of a batch to know its size and its format.
	minBatchHead = posMagic + 1
)

// VerifyMirror walks over whole batches from another cluster where they lie:
// lengths, format, CRC, base offset not below the expected one, leader epoch
// not below the last and not above the limit (W35). good counts the bytes of
// the batches that passed; they may be appended even when err is set. A batch
// that b holds only a part of is no error: good ends in front of it.
func VerifyMirror(b []byte, s *VerifyState) (good int, err error) {
	for {
		rest := b[good:]
		if len(rest) >= minBatchHead && rest[posMagic] < record.Magic {
			return good, fmt.Errorf("batch at offset %d has magic %d: %w", int64(binary.BigEndian.Uint64(rest)), rest[posMagic], ErrFormat)
		}
		batch, _, err := record.Next(rest)
		if err == record.ErrShort {
			return good, nil
		}
		if err != nil {
			return good, err
		}
		if err := s.admit(batch); err != nil {
			return good, err
		}
		if err := batch.VerifyCRC(); err != nil {
			return good, err
		}
		s.NextOffset = batch.NextOffset()
		s.LastEpoch = batch.PartitionLeaderEpoch()
		s.Batches++
		s.Records += int64(batch.NumRecords())
		good += len(batch)
	}
}

// admit checks what a batch's place in the log demands.
func (s *VerifyState) admit(b record.Batch) error {
	if base := b.BaseOffset(); base < s.NextOffset {
		return &OffsetError{Base: base, Last: b.LastOffset(), Expected: s.NextOffset}
	}
	epoch := b.PartitionLeaderEpoch()
	if epoch < s.LastEpoch {
		return fmt.Errorf("batch at offset %d: %w: %d after %d", b.BaseOffset(), errEpochOrder, epoch, s.LastEpoch)
	}
	if s.MaxEpoch >= 0 && epoch > s.MaxEpoch && !invariants.Planted("epochAheadAppended") {
		return &EpochError{Epoch: epoch, Max: s.MaxEpoch}
	}
	return nil
}

// VerifyProduce checks what a client sent for one partition: exactly one batch
// of format v2 with right CRC, counts and flags. Kafka demands the same since
// Produce v3. The records of an uncompressed batch are walked too, because
// their lengths and offsets are ours to serve; a compressed batch is taken as
// it is and never opened. The times are those of all records where they were
// walked, and the header's otherwise.
func VerifyProduce(b []byte, maxBytes int) (batch record.Batch, times record.Times, err error) {
	if len(b) >= minBatchHead && b[posMagic] < record.Magic {
		return nil, times, fmt.Errorf("%w: magic %d: %w", ErrInvalidRecord, b[posMagic], ErrFormat)
	}
	var rest []byte
	batch, rest, err = record.Next(b)
	if err == record.ErrShort {
		return nil, times, &record.CorruptError{BaseOffset: -1, Reason: fmt.Sprintf("%d bytes end inside the batch", len(b))}
	}
	if err != nil {
		return nil, times, err
	}
	if len(rest) > 0 {
		return nil, times, fmt.Errorf("%w: more than one batch for a partition", ErrInvalidRecord)
	}
	if len(batch) > maxBytes {
		return nil, times, fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrTooLarge, len(batch), maxBytes)
	}
	if err := batch.VerifyCRC(); err != nil {
		return nil, times, err
	}
	if err := checkClientHeader(batch); err != nil {
		return nil, times, err
	}
	switch batch.Codec() {
	case record.CodecNone:
		times, err = walkRecords(batch)
		return batch, times, err
	case record.CodecLz4:
		err = checkLz4(batch.RecordBytes())
	}
	return batch, batch.HeaderTimes(), err
}

// checkLz4 looks at the head of an LZ4 frame. Kafka's clients refuse one whose
// blocks depend on each other, as its broker does, so nobody but the writer's own
// library might read it.
func checkLz4(frame []byte) error {
	const magic, independent, version, versionBits, reservedFlags, reservedSize = 0x184d2204, 1 << 5, 1 << 6, 3 << 6, 3, 0x8f
	switch {
	case len(frame) < 7 || binary.LittleEndian.Uint32(frame) != magic:
		return fmt.Errorf("%w: not an LZ4 frame", ErrInvalidRecord)
	case frame[4]&versionBits != version || frame[4]&reservedFlags != 0:
		return fmt.Errorf("%w: LZ4 frame with flags %#x, which are not those of version 1", ErrInvalidRecord, frame[4])
	case frame[4]&independent == 0:
		return fmt.Errorf("%w: LZ4 frame with blocks that depend on each other", ErrInvalidRecord)
	case frame[5]&reservedSize != 0 || frame[5]>>4 < 4:
		return fmt.Errorf("%w: LZ4 frame with block size %#x", ErrInvalidRecord, frame[5])
	}
	return nil
}

func checkClientHeader(b record.Batch) error {
	switch {
	case b.Codec() > record.CodecZstd:
		return fmt.Errorf("%w: %v", ErrUnknownCodec, b.Codec())
	case b.IsControl():
		return fmt.Errorf("%w: clients may not write control records", ErrInvalidRecord)
	case b.HasDeleteHorizon():
		return fmt.Errorf("%w: clients may not set a delete horizon", ErrInvalidRecord)
	case b.NumRecords() <= 0:
		return fmt.Errorf("%w: %d records", ErrInvalidRecord, b.NumRecords())
	case b.NumRecords() != b.LastOffsetDelta()+1:
		return fmt.Errorf("%w: %d records over %d offsets", ErrInvalidRecord, b.NumRecords(), int64(b.LastOffsetDelta())+1)
	case b.HasProducerID() && (b.ProducerEpoch() < 0 || b.BaseSequence() < 0):
		return fmt.Errorf("%w: producer id %d with epoch %d and sequence %d", ErrInvalidRecord, b.ProducerID(), b.ProducerEpoch(), b.BaseSequence())
	case b.IsTransactional() && !b.HasProducerID():
		return fmt.Errorf("%w: transactional without a producer id", ErrInvalidRecord)
	}
	return nil
}

// walkRecords checks that the records fill the batch exactly and that their
// offsets count up from the base offset. It allocates nothing: keys, values
// and headers are not looked at beyond the record's own length.
func walkRecords(b record.Batch) (record.Times, error) {
	p, times, base := b.RecordBytes(), record.NoTimes(), b.BaseTimestamp()
	for i := range b.NumRecords() {
		size, n := binary.Varint(p)
		if n <= 0 || size < minRecord || size > int64(len(p)-n) {
			return times, fmt.Errorf("%w: record %d of %d has a wrong length", ErrInvalidRecord, i, b.NumRecords())
		}
		body := p[n : n+int(size)]
		p = p[n+int(size):]
		later, t := binary.Varint(body[1:]) // behind the attributes: timestamp delta
		if t <= 0 {
			return times, fmt.Errorf("%w: record %d of %d has no timestamp", ErrInvalidRecord, i, b.NumRecords())
		}
		times.Note(base + later)
		delta, d := binary.Varint(body[1+t:])
		if d <= 0 || delta != int64(i) {
			return times, fmt.Errorf("%w: record %d of %d has offset delta %d", ErrInvalidRecord, i, b.NumRecords(), delta)
		}
	}
	if len(p) != 0 {
		return times, fmt.Errorf("%w: %d bytes after the last record", ErrInvalidRecord, len(p))
	}
	return times, nil
}

// minRecord is attributes, two deltas, two lengths and a header count.
const minRecord = 6
