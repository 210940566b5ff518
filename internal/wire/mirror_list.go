package wire

import "github.com/twmb/franz-go/pkg/kmsg"

// ListClusterMirrorsRequest, key 98, lists mirrors and, if asked, the names of
// the topics that are mirrored or paused.
type ListClusterMirrorsRequest struct {
	mirrorVersion
	IncludeTopicNames bool
	// AskedClusterIDs and AskMillis have the cluster ask the sources of its own mirrors
	// first from where their topics come, and wait so long: what it remembers of that may be
	// old. They in turn ask theirs, unless they have been asked already, as these were. Tags
	// of ours, 0 and 1.
	AskedClusterIDs []string
	AskMillis       int32
}

func (*ListClusterMirrorsRequest) Key() int16 { return 98 }
func (*ListClusterMirrorsRequest) ResponseKind() kmsg.Response {
	return new(ListClusterMirrorsResponse)
}
func (m *ListClusterMirrorsRequest) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }

func (m *ListClusterMirrorsRequest) ReadFrom(src []byte) error {
	m.AskedClusterIDs, m.AskMillis = nil, 0
	return decodeMirror(src, m.code)
}

func (m *ListClusterMirrorsRequest) code(c *mirrorCodec) {
	c.bool(&m.IncludeTopicNames)
	c.tags(
		mirrorTag{0, len(m.AskedClusterIDs) > 0, func(c *mirrorCodec) { c.strings(&m.AskedClusterIDs) }},
		mirrorTag{1, m.AskMillis != 0, func(c *mirrorCodec) { c.int32(&m.AskMillis) }},
	)
}

// ListedMirror is one mirror of ListClusterMirrorsResponse. TopicCount counts
// the topics with desired state MIRRORING; TopicNames, filled on request, holds
// those that are mirrored or paused.
type ListedMirror struct {
	MirrorName      string
	SourceBootstrap string
	SourceClusterID string
	TopicCount      int32
	TopicNames      []string
	// Origins are told for topics that come from further than the source, with the
	// names. A tagged field of ours, tag 0.
	Origins []TopicOrigins
}

// TopicOrigins are the ids of the clusters from which a topic comes beyond its direct
// source.
type TopicOrigins struct {
	TopicName  string
	ClusterIDs []string
	Stale      bool // tag 0: somebody on the way did not answer, and they may be old
}

// ListClusterMirrorsResponse answers ListClusterMirrorsRequest.
type ListClusterMirrorsResponse struct {
	mirrorVersion
	mirrorStatus
	Mirrors []ListedMirror
}

func (*ListClusterMirrorsResponse) Key() int16                   { return 98 }
func (*ListClusterMirrorsResponse) RequestKind() kmsg.Request    { return new(ListClusterMirrorsRequest) }
func (m *ListClusterMirrorsResponse) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }
func (m *ListClusterMirrorsResponse) ReadFrom(src []byte) error  { return decodeMirror(src, m.code) }

func (m *ListClusterMirrorsResponse) code(c *mirrorCodec) {
	m.mirrorStatus.code(c)
	mirrorArray(c, &m.Mirrors, func(c *mirrorCodec, e *ListedMirror) {
		c.string(&e.MirrorName)
		c.string(&e.SourceBootstrap)
		c.string(&e.SourceClusterID)
		c.int32(&e.TopicCount)
		c.strings(&e.TopicNames)
		c.tags(mirrorTag{0, len(e.Origins) > 0, func(c *mirrorCodec) {
			mirrorArray(c, &e.Origins, func(c *mirrorCodec, o *TopicOrigins) {
				c.string(&o.TopicName)
				c.strings(&o.ClusterIDs)
				c.tags(mirrorTag{0, o.Stale, func(c *mirrorCodec) { c.bool(&o.Stale) }})
			})
		}})
	})
	c.tags()
}
