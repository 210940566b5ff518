package wire

import "github.com/twmb/franz-go/pkg/kmsg"

// LastMirroredEpochsTopic names partitions in LastMirroredEpochsRequest. A
// topic id, if given, counts instead of the name.
type LastMirroredEpochsTopic struct {
	Name       string
	Partitions []int32
	TopicID    [16]byte // tag 0
}

// LastMirroredEpochsRequest, key 97, is what the new destination asks the old
// one in a failback: which leader epoch of mine did you mirror last?
type LastMirroredEpochsRequest struct {
	mirrorVersion
	MirrorName         string
	Topics             []LastMirroredEpochsTopic
	RequesterClusterID *string // tag 0, see W61
}

func (*LastMirroredEpochsRequest) Key() int16 { return 97 }
func (*LastMirroredEpochsRequest) ResponseKind() kmsg.Response {
	return new(LastMirroredEpochsResponse)
}
func (m *LastMirroredEpochsRequest) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }

func (m *LastMirroredEpochsRequest) ReadFrom(src []byte) error {
	m.RequesterClusterID = nil
	return decodeMirror(src, m.code)
}

func (m *LastMirroredEpochsRequest) code(c *mirrorCodec) {
	c.string(&m.MirrorName)
	mirrorArray(c, &m.Topics, func(c *mirrorCodec, t *LastMirroredEpochsTopic) {
		c.string(&t.Name)
		mirrorArray(c, &t.Partitions, func(c *mirrorCodec, p *int32) {
			c.int32(p)
			c.tags()
		})
		c.tags(mirrorTag{0, t.TopicID != [16]byte{}, func(c *mirrorCodec) { c.uuid(&t.TopicID) }})
	})
	c.tags(mirrorTag{0, m.RequesterClusterID != nil, func(c *mirrorCodec) { c.nullableString(&m.RequesterClusterID) }})
}

// LastMirroredEpochsResponsePartition is the answer for one partition.
// LastMirroredEpoch -1 with error 0 is authoritative: never mirrored (P7).
type LastMirroredEpochsResponsePartition struct {
	Partition          int32
	LastMirroredEpoch  int32
	ErrorCode          int16
	LastMirroredOffset int64   // tag 0; -1 is unknown
	ErrorMessage       *string // tag 1
}

// LastMirroredEpochsResponseTopic groups the answers of one topic.
type LastMirroredEpochsResponseTopic struct {
	Name       string
	Partitions []LastMirroredEpochsResponsePartition
}

// LastMirroredEpochsResponse answers LastMirroredEpochsRequest.
type LastMirroredEpochsResponse struct {
	mirrorVersion
	mirrorStatus
	Topics []LastMirroredEpochsResponseTopic
}

func (*LastMirroredEpochsResponse) Key() int16                   { return 97 }
func (*LastMirroredEpochsResponse) RequestKind() kmsg.Request    { return new(LastMirroredEpochsRequest) }
func (m *LastMirroredEpochsResponse) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }
func (m *LastMirroredEpochsResponse) ReadFrom(src []byte) error  { return decodeMirror(src, m.code) }

func (m *LastMirroredEpochsResponse) code(c *mirrorCodec) {
	m.mirrorStatus.code(c)
	mirrorArray(c, &m.Topics, func(c *mirrorCodec, t *LastMirroredEpochsResponseTopic) {
		c.string(&t.Name)
		mirrorArray(c, &t.Partitions, func(c *mirrorCodec, p *LastMirroredEpochsResponsePartition) {
			c.int32(&p.Partition)
			c.int32(&p.LastMirroredEpoch)
			c.int16(&p.ErrorCode)
			if c.r != nil {
				p.LastMirroredOffset = -1
			}
			c.tags(
				mirrorTag{0, p.LastMirroredOffset != -1, func(c *mirrorCodec) { c.int64(&p.LastMirroredOffset) }},
				mirrorTag{1, p.ErrorMessage != nil, func(c *mirrorCodec) { c.nullableString(&p.ErrorMessage) }},
			)
		})
		c.tags()
	})
	c.tags()
}
