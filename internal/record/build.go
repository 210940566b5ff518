package record

import (
	"encoding/binary"
	"math"
)

// BuildHeader is what Build cannot derive from the records. The zero value of
// Producer fields is *not* "no producer": set ProducerID, ProducerEpoch and
// BaseSequence to -1, or start from NoProducer.
type BuildHeader struct {
	BaseOffset    int64
	LeaderEpoch   int32
	BaseTimestamp int64 // records count their timestamps from here

	ProducerID    int64
	ProducerEpoch int16
	BaseSequence  int32

	Transactional bool
	Control       bool
	TimestampType TimestampType
}

// NoProducer is the header of a batch without a producer id, with every
// record's timestamp counted from ts.
func NoProducer(ts int64) BuildHeader {
	return BuildHeader{BaseTimestamp: ts, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1}
}

// Build makes one uncompressed batch of recs, CRC included. LastOffsetDelta and
// MaxTimestamp follow from the records; offset deltas must rise.
func Build(h BuildHeader, recs []Record) []byte {
	size := HeaderSize
	for i := range recs {
		n := recordSize(&recs[i])
		size += varintLen(int64(n)) + n
	}
	b := make([]byte, HeaderSize, size)
	maxTS := h.BaseTimestamp
	var last int32
	for i := range recs {
		r := &recs[i]
		if ts := h.BaseTimestamp + r.TimestampDelta; i == 0 || ts > maxTS {
			maxTS = ts
		}
		last = max(last, r.OffsetDelta)
		b = appendRecord(b, r)
	}
	var attrs uint16
	if h.Transactional {
		attrs |= attrTransactional
	}
	if h.Control {
		attrs |= attrControl
	}
	if h.TimestampType == LogAppendTime {
		attrs |= attrLogAppendTime
	}
	be := binary.BigEndian
	be.PutUint64(b, uint64(h.BaseOffset))
	be.PutUint32(b[posLength:], uint32(len(b)-prefixSize))
	be.PutUint32(b[posLeaderEpoch:], uint32(h.LeaderEpoch))
	b[posMagic] = Magic
	be.PutUint16(b[posAttributes:], attrs)
	be.PutUint32(b[posLastOffsetDelta:], uint32(last))
	be.PutUint64(b[posBaseTimestamp:], uint64(h.BaseTimestamp))
	be.PutUint64(b[posMaxTimestamp:], uint64(maxTS))
	be.PutUint64(b[posProducerID:], uint64(h.ProducerID))
	be.PutUint16(b[posProducerEpoch:], uint16(h.ProducerEpoch))
	be.PutUint32(b[posBaseSequence:], uint32(h.BaseSequence))
	be.PutUint32(b[posNumRecords:], uint32(len(recs)))
	Batch(b).seal()
	return b
}

func appendRecord(b []byte, r *Record) []byte {
	b = binary.AppendVarint(b, int64(recordSize(r)))
	b = append(b, 0) // attributes: none are defined for records
	b = binary.AppendVarint(b, r.TimestampDelta)
	b = binary.AppendVarint(b, int64(r.OffsetDelta))
	b = appendVarbytes(b, r.Key)
	b = appendVarbytes(b, r.Value)
	b = binary.AppendVarint(b, int64(len(r.Headers)))
	for _, h := range r.Headers {
		b = binary.AppendVarint(b, int64(len(h.Key)))
		b = append(b, h.Key...)
		b = appendVarbytes(b, h.Value)
	}
	return b
}

func appendVarbytes(b, field []byte) []byte {
	if field == nil {
		return binary.AppendVarint(b, -1)
	}
	b = binary.AppendVarint(b, int64(len(field)))
	return append(b, field...)
}

func recordSize(r *Record) int {
	n := 1 + varintLen(r.TimestampDelta) + varintLen(int64(r.OffsetDelta)) +
		varbytesLen(r.Key) + varbytesLen(r.Value) + varintLen(int64(len(r.Headers)))
	for _, h := range r.Headers {
		n += varintLen(int64(len(h.Key))) + len(h.Key) + varbytesLen(h.Value)
	}
	return n
}

func varbytesLen(field []byte) int {
	if field == nil {
		return 1
	}
	return varintLen(int64(len(field))) + len(field)
}

func varintLen(v int64) int {
	u := uint64(v<<1) ^ uint64(v>>63)
	n := 1
	for ; u >= 0x80; u >>= 7 {
		n++
	}
	return n
}

// ControlType is what a control record says.
type ControlType int16

// The control types. 2 to 6 belong to Kafka's own metadata log and never
// appear in a partition we serve; type 7 is KIP-1279's (spec 10.4).
const (
	Abort          ControlType = 0
	Commit         ControlType = 1
	MirrorPIDReset ControlType = 7
)

func (t ControlType) String() string {
	switch t {
	case Abort:
		return "ABORT"
	case Commit:
		return "COMMIT"
	case MirrorPIDReset:
		return "MIRROR_PID_RESET"
	}
	return "UNKNOWN"
}

// IsMarker says that the type ends a transaction.
func (t ControlType) IsMarker() bool { return t == Abort || t == Commit }

// Control reads the one record of a control batch. The coordinator epoch is
// that of a transaction marker; -1 for other types, and for a marker whose
// value ends early.
func (b Batch) Control() (t ControlType, coordinatorEpoch int32, err error) {
	if !b.IsControl() {
		return 0, -1, corrupt(b, "not a control batch")
	}
	if b.Codec() != CodecNone {
		return 0, -1, corrupt(b, "control batch is compressed")
	}
	coordinatorEpoch = -1
	var r Record
	if b.NumRecords() < 1 {
		return 0, -1, corrupt(b, "control batch without a record")
	}
	if _, err := parseRecord(b.RecordBytes(), &r); err != nil {
		return 0, -1, corrupt(b, "control record: %v", err)
	}
	if len(r.Key) < 4 {
		return 0, -1, corrupt(b, "control record key has %d bytes, want 4", len(r.Key))
	}
	if v := int16(binary.BigEndian.Uint16(r.Key)); v < 0 {
		return 0, -1, corrupt(b, "control record key version is %d", v)
	}
	t = ControlType(binary.BigEndian.Uint16(r.Key[2:]))
	if t.IsMarker() && len(r.Value) >= 6 {
		coordinatorEpoch = int32(binary.BigEndian.Uint32(r.Value[2:]))
	}
	return t, coordinatorEpoch, nil
}

func controlKey(t ControlType) []byte {
	return []byte{0, 0, byte(uint16(t) >> 8), byte(t)}
}

// Marker makes a transaction marker: base offset and leader epoch are 0 and
// the appender sets them.
func Marker(t ControlType, pid int64, epoch int16, coordEpoch int32, ts int64) []byte {
	value := binary.BigEndian.AppendUint32([]byte{0, 0}, uint32(coordEpoch))
	return Build(BuildHeader{
		BaseTimestamp: ts, ProducerID: pid, ProducerEpoch: epoch, BaseSequence: -1,
		Transactional: true, Control: true,
	}, []Record{{Key: controlKey(t), Value: value}})
}

// AbortMarker makes the marker that aborts the open transaction of a producer,
// as a stop does for every transaction it finds open (W58, spec 9.14 step 4).
func AbortMarker(pid int64, epoch int16, coordEpoch int32, ts int64) []byte {
	return Marker(Abort, pid, epoch, coordEpoch, ts)
}

// CommitMarker makes the marker that commits a transaction.
func CommitMarker(pid int64, epoch int16, coordEpoch int32, ts int64) []byte {
	return Marker(Commit, pid, epoch, coordEpoch, ts)
}

// PIDReset makes the control batch that empties the producer state of every
// log it gets into (L13, L14). An unknown cluster id is the empty string.
func PIDReset(clusterID string, ts int64) []byte {
	if len(clusterID) > math.MaxInt16 {
		clusterID = clusterID[:math.MaxInt16]
	}
	value := []byte{0, 0}
	value = binary.AppendUvarint(value, uint64(len(clusterID))+1) // compact string
	value = append(value, clusterID...)
	value = append(value, 0) // tagged fields
	h := NoProducer(ts)
	h.Control = true
	return Build(h, []Record{{Key: controlKey(MirrorPIDReset), Value: value}})
}

// PIDResetClusterID reads the source cluster id back from a MIRROR_PID_RESET
// batch. A value that ends early gives the empty string (L14).
func (b Batch) PIDResetClusterID() string {
	if t, _, err := b.Control(); err != nil || t != MirrorPIDReset {
		return ""
	}
	var id string
	_ = b.Records(func(r Record) error {
		if len(r.Value) > 2 {
			if n, k := binary.Uvarint(r.Value[2:]); k > 0 && n > 0 && n-1 <= uint64(len(r.Value)-2-k) {
				id = string(r.Value[2+k : 2+k+int(n-1)])
			}
		}
		return nil
	})
	return id
}
