package wire

import "github.com/twmb/franz-go/pkg/kmsg"

// EpochLookupTopic names partitions whose last mirrored epoch a
// DescribeClusterMirrorsRequest asks for.
type EpochLookupTopic struct {
	TopicID    [16]byte
	Partitions []int32
}

// DescribeClusterMirrorsRequest, key 99, asks for the state and the offsets of
// mirror partitions. MirrorNames nil or empty means all mirrors. ClusterID and
// Lookups are the older way to ask for last mirrored epochs (P13).
type DescribeClusterMirrorsRequest struct {
	mirrorVersion
	MirrorNames                 []string // nullable
	IncludeAuthorizedOperations bool
	ClusterID                   *string            // tag 0
	Lookups                     []EpochLookupTopic // tag 1
	Plan                        *StartPlanRequest  // tag 2: no description, but this
}

func (*DescribeClusterMirrorsRequest) Key() int16 { return 99 }
func (*DescribeClusterMirrorsRequest) ResponseKind() kmsg.Response {
	return new(DescribeClusterMirrorsResponse)
}
func (m *DescribeClusterMirrorsRequest) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }

func (m *DescribeClusterMirrorsRequest) ReadFrom(src []byte) error {
	m.ClusterID, m.Lookups, m.Plan = nil, nil, nil
	return decodeMirror(src, m.code)
}

func (m *DescribeClusterMirrorsRequest) code(c *mirrorCodec) {
	c.nullableStrings(&m.MirrorNames)
	c.bool(&m.IncludeAuthorizedOperations)
	c.tags(
		mirrorTag{0, m.ClusterID != nil, func(c *mirrorCodec) { c.nullableString(&m.ClusterID) }},
		mirrorTag{1, len(m.Lookups) > 0, func(c *mirrorCodec) {
			mirrorArray(c, &m.Lookups, func(c *mirrorCodec, t *EpochLookupTopic) {
				c.uuid(&t.TopicID)
				c.int32s(&t.Partitions)
				c.tags()
			})
		}},
		startPlanRequestTag(2, &m.Plan),
	)
}

// DescribedMirrorPartition is the state of one mirror partition. The offsets
// and the lag are -1 while they mean nothing (P9). RetryAttempt -1 is a failure
// that is not retried (P12).
type DescribedMirrorPartition struct {
	Partition         int32
	SourceOffset      int64
	DestinationOffset int64
	Lag               int64
	StateValue        string
	RetryAttempt      int16
	ErrorMessage      *string
	Progress          *MirrorProgress // tag 0; nil while the topic is STOPPED
}

// DescribedMirrorTopic groups the partitions of one topic.
type DescribedMirrorTopic struct {
	TopicName  string
	Partitions []DescribedMirrorPartition
}

// DescribedMirror is one mirror of DescribeClusterMirrorsResponse.
type DescribedMirror struct {
	ErrorCode            int16
	MirrorName           string
	AuthorizedOperations int32
	Topics               []DescribedMirrorTopic
	Syncs                []MirrorSync // tag 0; empty if the broker that knows does not answer
}

// UnknownAuthorizedOperations is the value of AuthorizedOperations that was not
// asked for.
const UnknownAuthorizedOperations = -2147483648

// EpochLookupPartition is the last mirrored epoch of one partition.
type EpochLookupPartition struct {
	Partition       int32
	LastMirrorEpoch int32
}

// EpochLookupResult groups the lookups of one topic.
type EpochLookupResult struct {
	TopicID    [16]byte
	Partitions []EpochLookupPartition
}

// DescribeClusterMirrorsResponse answers DescribeClusterMirrorsRequest.
type DescribeClusterMirrorsResponse struct {
	mirrorVersion
	mirrorStatus
	Mirrors       []DescribedMirror
	LookupResults []EpochLookupResult // tag 0
	Plan          *StartPlan          // tag 1: if it was asked for
}

func (*DescribeClusterMirrorsResponse) Key() int16 { return 99 }
func (*DescribeClusterMirrorsResponse) RequestKind() kmsg.Request {
	return new(DescribeClusterMirrorsRequest)
}
func (m *DescribeClusterMirrorsResponse) AppendTo(dst []byte) []byte {
	return encodeMirror(dst, m.code)
}

func (m *DescribeClusterMirrorsResponse) ReadFrom(src []byte) error {
	m.LookupResults, m.Plan = nil, nil
	return decodeMirror(src, m.code)
}

func (m *DescribeClusterMirrorsResponse) code(c *mirrorCodec) {
	m.mirrorStatus.code(c)
	mirrorArray(c, &m.Mirrors, func(c *mirrorCodec, e *DescribedMirror) { e.code(c) })
	c.tags(mirrorTag{0, len(m.LookupResults) > 0, func(c *mirrorCodec) {
		mirrorArray(c, &m.LookupResults, func(c *mirrorCodec, t *EpochLookupResult) {
			c.uuid(&t.TopicID)
			mirrorArray(c, &t.Partitions, func(c *mirrorCodec, p *EpochLookupPartition) {
				c.int32(&p.Partition)
				c.int32(&p.LastMirrorEpoch)
				c.tags()
			})
			c.tags()
		})
	}}, startPlanTag(1, &m.Plan))
}

func (m *DescribedMirror) code(c *mirrorCodec) {
	c.int16(&m.ErrorCode)
	c.string(&m.MirrorName)
	c.int32(&m.AuthorizedOperations)
	mirrorArray(c, &m.Topics, func(c *mirrorCodec, t *DescribedMirrorTopic) {
		c.string(&t.TopicName)
		mirrorArray(c, &t.Partitions, func(c *mirrorCodec, p *DescribedMirrorPartition) {
			c.int32(&p.Partition)
			c.int64(&p.SourceOffset)
			c.int64(&p.DestinationOffset)
			c.int64(&p.Lag)
			c.string(&p.StateValue)
			c.int16(&p.RetryAttempt)
			c.nullableString(&p.ErrorMessage)
			c.tags(progressTag(0, &p.Progress))
		})
		c.tags()
	})
	c.tags(syncsTag(0, &m.Syncs))
}
