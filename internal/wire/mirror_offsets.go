package wire

import "github.com/twmb/franz-go/pkg/kmsg"

// ReadMirrorOffsetsTopic names partitions in ReadMirrorOffsetsRequest.
type ReadMirrorOffsetsTopic struct {
	TopicName  string
	Partitions []int32
}

// ReadMirrorOffsetsRequest, key 107, is what one broker of a cluster asks another:
// how far are the mirror partitions that you lead?
type ReadMirrorOffsetsRequest struct {
	mirrorVersion
	MirrorName string
	Topics     []ReadMirrorOffsetsTopic
	Epochs     bool // tag 0, of ours: with the leader epochs of the logs
}

func (*ReadMirrorOffsetsRequest) Key() int16                   { return 107 }
func (*ReadMirrorOffsetsRequest) ResponseKind() kmsg.Response  { return new(ReadMirrorOffsetsResponse) }
func (m *ReadMirrorOffsetsRequest) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }

func (m *ReadMirrorOffsetsRequest) ReadFrom(src []byte) error {
	m.Epochs = false
	return decodeMirror(src, m.code)
}

func (m *ReadMirrorOffsetsRequest) code(c *mirrorCodec) {
	c.string(&m.MirrorName)
	mirrorArray(c, &m.Topics, func(c *mirrorCodec, t *ReadMirrorOffsetsTopic) {
		c.string(&t.TopicName)
		mirrorArray(c, &t.Partitions, func(c *mirrorCodec, p *int32) { c.int32(p) })
		c.tags()
	})
	c.tags(mirrorTag{0, m.Epochs, func(c *mirrorCodec) { c.bool(&m.Epochs) }})
}

// MirrorOffsets is how far one mirror partition is, as its leader knows it. An
// offset that it does not know is -1, never 0.
type MirrorOffsets struct {
	Partition         int32
	SourceOffset      int64 // high watermark of the source at the last fetch
	DestinationOffset int64 // high watermark here
	// What a commit of a source's group is kept inside of (W52). Tags of ours.
	LogStart  int64           // tag 0
	LogEnd    int64           // tag 1
	LastEpoch int32           // tag 2: leader epoch of the last batch
	Progress  *MirrorProgress // tag 3
	// Epochs are the log's, oldest first, if they were asked for; none where they are not
	// known. Tag 4.
	Epochs []EpochStart
}

// ReadMirrorOffsetsResponseTopic groups the answers of one topic.
type ReadMirrorOffsetsResponseTopic struct {
	TopicName  string
	Partitions []MirrorOffsets
}

// ReadMirrorOffsetsResponse answers ReadMirrorOffsetsRequest. Partitions that the
// broker does not lead are not in it.
type ReadMirrorOffsetsResponse struct {
	mirrorVersion
	mirrorStatus
	Topics []ReadMirrorOffsetsResponseTopic
	Syncs  []MirrorSync // tag 0: only from the broker that does the mirror's own work
}

func (*ReadMirrorOffsetsResponse) Key() int16                   { return 107 }
func (*ReadMirrorOffsetsResponse) RequestKind() kmsg.Request    { return new(ReadMirrorOffsetsRequest) }
func (m *ReadMirrorOffsetsResponse) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }

func (m *ReadMirrorOffsetsResponse) ReadFrom(src []byte) error {
	m.Syncs = nil
	return decodeMirror(src, m.code)
}

func (m *ReadMirrorOffsetsResponse) code(c *mirrorCodec) {
	m.mirrorStatus.code(c)
	mirrorArray(c, &m.Topics, func(c *mirrorCodec, t *ReadMirrorOffsetsResponseTopic) {
		c.string(&t.TopicName)
		mirrorArray(c, &t.Partitions, func(c *mirrorCodec, p *MirrorOffsets) {
			c.int32(&p.Partition)
			c.int64(&p.SourceOffset)
			c.int64(&p.DestinationOffset)
			if c.r != nil {
				p.LogStart, p.LogEnd, p.LastEpoch = -1, -1, -1
			}
			c.tags(
				mirrorTag{0, p.LogStart != -1, func(c *mirrorCodec) { c.int64(&p.LogStart) }},
				mirrorTag{1, p.LogEnd != -1, func(c *mirrorCodec) { c.int64(&p.LogEnd) }},
				mirrorTag{2, p.LastEpoch != -1, func(c *mirrorCodec) { c.int32(&p.LastEpoch) }},
				progressTag(3, &p.Progress),
				epochsTag(4, &p.Epochs),
			)
		})
		c.tags()
	})
	c.tags(syncsTag(0, &m.Syncs))
}
