package record

import (
	"encoding/binary"
	"math"
)

// Head is the header of a batch, taken apart once for who wants most of its fields of
// very many batches. The fields are what Batch's methods of the same names say.
type Head struct {
	BaseOffset      int64
	LastOffsetDelta int32
	Size            int

	PartitionLeaderEpoch int32
	Attributes           int16
	MaxTimestamp         int64
	ProducerID           int64
	ProducerEpoch        int16
	BaseSequence         int32
	NumRecords           int32
}

// Next is the function Next: it takes the first batch of b apart, and fails where that
// does. The rest of b begins at Size.
func (h *Head) Next(b []byte) error {
	if len(b) < HeaderSize {
		_, _, err := Next(b)
		return err
	}
	h.Of(b)
	if h.Size < HeaderSize || h.Size > len(b) || b[posMagic] != Magic || h.BaseOffset < 0 || h.LastOffsetDelta < 0 ||
		h.BaseOffset > math.MaxInt64-1-int64(h.LastOffsetDelta) {
		_, _, err := Next(b)
		return err
	}
	return nil
}

// Of takes a batch apart of which that is known that Next checks.
func (h *Head) Of(b Batch) {
	p := (*[HeaderSize]byte)(b)
	h.BaseOffset = int64(binary.BigEndian.Uint64(p[:]))
	h.Size = int(int32(binary.BigEndian.Uint32(p[posLength:]))) + prefixSize
	h.PartitionLeaderEpoch = int32(binary.BigEndian.Uint32(p[posLeaderEpoch:]))
	h.Attributes = int16(binary.BigEndian.Uint16(p[posAttributes:]))
	h.LastOffsetDelta = int32(binary.BigEndian.Uint32(p[posLastOffsetDelta:]))
	h.MaxTimestamp = int64(binary.BigEndian.Uint64(p[posMaxTimestamp:]))
	h.ProducerID = int64(binary.BigEndian.Uint64(p[posProducerID:]))
	h.ProducerEpoch = int16(binary.BigEndian.Uint16(p[posProducerEpoch:]))
	h.BaseSequence = int32(binary.BigEndian.Uint32(p[posBaseSequence:]))
	h.NumRecords = int32(binary.BigEndian.Uint32(p[posNumRecords:]))
}

// LastOffset is that of Batch.
func (h *Head) LastOffset() int64 { return h.BaseOffset + int64(h.LastOffsetDelta) }

// LastSequence is that of Batch.
func (h *Head) LastSequence() int32 {
	if h.BaseSequence < 0 {
		return h.BaseSequence
	}
	return AddSequence(h.BaseSequence, h.LastOffsetDelta)
}

// IsTransactional is that of Batch.
func (h *Head) IsTransactional() bool { return h.Attributes&attrTransactional != 0 }

// IsControl is that of Batch.
func (h *Head) IsControl() bool { return h.Attributes&attrControl != 0 }
