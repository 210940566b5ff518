package wire

import "github.com/twmb/franz-go/pkg/kmsg"

// MirrorTopicResult is the outcome for one topic of a mirror command (P16).
type MirrorTopicResult struct {
	Name         string
	ErrorCode    int16
	ErrorMessage *string
}

func (t *MirrorTopicResult) code(c *mirrorCodec) {
	c.string(&t.Name)
	c.int16(&t.ErrorCode)
	c.nullableString(&t.ErrorMessage)
	c.tags()
}

// mirrorTopicResults is the body that keys 95, 96, 102, 103 and 106 share.
type mirrorTopicResults struct {
	mirrorStatus
	Topics []MirrorTopicResult
}

func (r *mirrorTopicResults) code(c *mirrorCodec) {
	r.mirrorStatus.code(c)
	mirrorArray(c, &r.Topics, func(c *mirrorCodec, t *MirrorTopicResult) { t.code(c) })
	c.tags()
}

// Results gives the per-topic outcomes of a mirror command.
func (r *mirrorTopicResults) Results() []MirrorTopicResult { return r.Topics }

// SetResults sets the per-topic outcomes of a mirror command.
func (r *mirrorTopicResults) SetResults(topics []MirrorTopicResult) { r.Topics = topics }

func codeMirrorTopicNames(c *mirrorCodec, names *[]string) {
	mirrorArray(c, names, func(c *mirrorCodec, name *string) {
		c.string(name)
		c.tags()
	})
}

// StartMirrorTopic is one topic named in StartMirrorTopicsRequest. A client
// sends a zero id and no count; the broker fills in the source's.
type StartMirrorTopic struct {
	TopicID       [16]byte
	TopicName     string
	NumPartitions int32
}

// StartMirrorTopicsRequest, key 95, attaches topics to a mirror: those named in
// Topics and those of the source that match a pattern.
type StartMirrorTopicsRequest struct {
	mirrorVersion
	MirrorName            string
	Topics                []StartMirrorTopic
	StateValidationOffset int64
	IncludePatterns       []string // tag 0
	ExcludePatterns       []string // tag 1
}

// NewStartMirrorTopicsRequest gives a request without a validation offset.
func NewStartMirrorTopicsRequest(mirror string) *StartMirrorTopicsRequest {
	return &StartMirrorTopicsRequest{MirrorName: mirror, StateValidationOffset: -1}
}

func (*StartMirrorTopicsRequest) Key() int16                   { return 95 }
func (*StartMirrorTopicsRequest) ResponseKind() kmsg.Response  { return new(StartMirrorTopicsResponse) }
func (m *StartMirrorTopicsRequest) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }

func (m *StartMirrorTopicsRequest) ReadFrom(src []byte) error {
	m.IncludePatterns, m.ExcludePatterns = nil, nil
	return decodeMirror(src, m.code)
}

func (m *StartMirrorTopicsRequest) code(c *mirrorCodec) {
	c.string(&m.MirrorName)
	mirrorArray(c, &m.Topics, func(c *mirrorCodec, t *StartMirrorTopic) {
		c.uuid(&t.TopicID)
		c.string(&t.TopicName)
		c.int32(&t.NumPartitions)
		c.tags()
	})
	c.int64(&m.StateValidationOffset)
	c.tags(
		mirrorTag{0, len(m.IncludePatterns) > 0, func(c *mirrorCodec) { c.strings(&m.IncludePatterns) }},
		mirrorTag{1, len(m.ExcludePatterns) > 0, func(c *mirrorCodec) { c.strings(&m.ExcludePatterns) }},
	)
}

// StartMirrorTopicsResponse answers StartMirrorTopicsRequest.
type StartMirrorTopicsResponse struct {
	mirrorVersion
	mirrorTopicResults
}

func (*StartMirrorTopicsResponse) Key() int16                   { return 95 }
func (*StartMirrorTopicsResponse) RequestKind() kmsg.Request    { return new(StartMirrorTopicsRequest) }
func (m *StartMirrorTopicsResponse) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }
func (m *StartMirrorTopicsResponse) ReadFrom(src []byte) error  { return decodeMirror(src, m.code) }

// RemoveTopicsFromMirrorRequest, key 96, is the failover: it detaches topics
// from their source so that they become writable. Patterns are matched against
// the topics of the mirror only.
type RemoveTopicsFromMirrorRequest struct {
	mirrorVersion
	MirrorName            string
	Topics                []string
	StateValidationOffset int64
	Patterns              []string // tag 0
}

// NewRemoveTopicsFromMirrorRequest gives a request without a validation offset.
func NewRemoveTopicsFromMirrorRequest(mirror string) *RemoveTopicsFromMirrorRequest {
	return &RemoveTopicsFromMirrorRequest{MirrorName: mirror, StateValidationOffset: -1}
}

func (*RemoveTopicsFromMirrorRequest) Key() int16 { return 96 }
func (*RemoveTopicsFromMirrorRequest) ResponseKind() kmsg.Response {
	return new(RemoveTopicsFromMirrorResponse)
}
func (m *RemoveTopicsFromMirrorRequest) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }

func (m *RemoveTopicsFromMirrorRequest) ReadFrom(src []byte) error {
	m.Patterns = nil
	return decodeMirror(src, m.code)
}

func (m *RemoveTopicsFromMirrorRequest) code(c *mirrorCodec) {
	c.string(&m.MirrorName)
	codeMirrorTopicNames(c, &m.Topics)
	c.int64(&m.StateValidationOffset)
	c.tags(mirrorTag{0, len(m.Patterns) > 0, func(c *mirrorCodec) { c.strings(&m.Patterns) }})
}

// RemoveTopicsFromMirrorResponse answers RemoveTopicsFromMirrorRequest.
type RemoveTopicsFromMirrorResponse struct {
	mirrorVersion
	mirrorTopicResults
}

func (*RemoveTopicsFromMirrorResponse) Key() int16 { return 96 }
func (*RemoveTopicsFromMirrorResponse) RequestKind() kmsg.Request {
	return new(RemoveTopicsFromMirrorRequest)
}
func (m *RemoveTopicsFromMirrorResponse) AppendTo(dst []byte) []byte {
	return encodeMirror(dst, m.code)
}
func (m *RemoveTopicsFromMirrorResponse) ReadFrom(src []byte) error { return decodeMirror(src, m.code) }

// PauseMirrorTopicsRequest, key 102, stops fetching; the topics stay attached
// and read-only. Patterns, a tagged field of ours, lets the broker expand
// expressions against the topics of the mirror, as key 96 does (K3).
type PauseMirrorTopicsRequest struct {
	mirrorVersion
	MirrorName            string
	Topics                []string
	StateValidationOffset int64
	Patterns              []string // tag 0
}

// NewPauseMirrorTopicsRequest gives a request without a validation offset.
func NewPauseMirrorTopicsRequest(mirror string) *PauseMirrorTopicsRequest {
	return &PauseMirrorTopicsRequest{MirrorName: mirror, StateValidationOffset: -1}
}

func (*PauseMirrorTopicsRequest) Key() int16                   { return 102 }
func (*PauseMirrorTopicsRequest) ResponseKind() kmsg.Response  { return new(PauseMirrorTopicsResponse) }
func (m *PauseMirrorTopicsRequest) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }

func (m *PauseMirrorTopicsRequest) ReadFrom(src []byte) error {
	m.Patterns = nil
	return decodeMirror(src, m.code)
}

func (m *PauseMirrorTopicsRequest) code(c *mirrorCodec) {
	c.string(&m.MirrorName)
	codeMirrorTopicNames(c, &m.Topics)
	c.int64(&m.StateValidationOffset)
	c.tags(mirrorTag{0, len(m.Patterns) > 0, func(c *mirrorCodec) { c.strings(&m.Patterns) }})
}

// PauseMirrorTopicsResponse answers PauseMirrorTopicsRequest.
type PauseMirrorTopicsResponse struct {
	mirrorVersion
	mirrorTopicResults
}

func (*PauseMirrorTopicsResponse) Key() int16                   { return 102 }
func (*PauseMirrorTopicsResponse) RequestKind() kmsg.Request    { return new(PauseMirrorTopicsRequest) }
func (m *PauseMirrorTopicsResponse) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }
func (m *PauseMirrorTopicsResponse) ReadFrom(src []byte) error  { return decodeMirror(src, m.code) }

// ResumeMirrorTopicsRequest, key 103, goes on with paused topics at their log
// end.
type ResumeMirrorTopicsRequest struct {
	mirrorVersion
	MirrorName            string
	Topics                []string
	StateValidationOffset int64
	Patterns              []string // tag 0, as in PauseMirrorTopicsRequest
}

// NewResumeMirrorTopicsRequest gives a request without a validation offset.
func NewResumeMirrorTopicsRequest(mirror string) *ResumeMirrorTopicsRequest {
	return &ResumeMirrorTopicsRequest{MirrorName: mirror, StateValidationOffset: -1}
}

func (*ResumeMirrorTopicsRequest) Key() int16 { return 103 }
func (*ResumeMirrorTopicsRequest) ResponseKind() kmsg.Response {
	return new(ResumeMirrorTopicsResponse)
}
func (m *ResumeMirrorTopicsRequest) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }

func (m *ResumeMirrorTopicsRequest) ReadFrom(src []byte) error {
	m.Patterns = nil
	return decodeMirror(src, m.code)
}

func (m *ResumeMirrorTopicsRequest) code(c *mirrorCodec) {
	c.string(&m.MirrorName)
	codeMirrorTopicNames(c, &m.Topics)
	c.int64(&m.StateValidationOffset)
	c.tags(mirrorTag{0, len(m.Patterns) > 0, func(c *mirrorCodec) { c.strings(&m.Patterns) }})
}

// ResumeMirrorTopicsResponse answers ResumeMirrorTopicsRequest.
type ResumeMirrorTopicsResponse struct {
	mirrorVersion
	mirrorTopicResults
}

func (*ResumeMirrorTopicsResponse) Key() int16                   { return 103 }
func (*ResumeMirrorTopicsResponse) RequestKind() kmsg.Request    { return new(ResumeMirrorTopicsRequest) }
func (m *ResumeMirrorTopicsResponse) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }
func (m *ResumeMirrorTopicsResponse) ReadFrom(src []byte) error  { return decodeMirror(src, m.code) }

// RecoverMirrorTopicsRequest, key 106, takes FAILED partitions out of FAILED.
// No topic and no pattern means every topic of the mirror.
type RecoverMirrorTopicsRequest struct {
	mirrorVersion
	MirrorName string
	Topics     []string
	Patterns   []string // tag 0, as in PauseMirrorTopicsRequest
}

func (*RecoverMirrorTopicsRequest) Key() int16 { return 106 }
func (*RecoverMirrorTopicsRequest) ResponseKind() kmsg.Response {
	return new(RecoverMirrorTopicsResponse)
}
func (m *RecoverMirrorTopicsRequest) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }

func (m *RecoverMirrorTopicsRequest) ReadFrom(src []byte) error {
	m.Patterns = nil
	return decodeMirror(src, m.code)
}

func (m *RecoverMirrorTopicsRequest) code(c *mirrorCodec) {
	c.string(&m.MirrorName)
	codeMirrorTopicNames(c, &m.Topics)
	c.tags(mirrorTag{0, len(m.Patterns) > 0, func(c *mirrorCodec) { c.strings(&m.Patterns) }})
}

// RecoverMirrorTopicsResponse answers RecoverMirrorTopicsRequest.
type RecoverMirrorTopicsResponse struct {
	mirrorVersion
	mirrorTopicResults
}

func (*RecoverMirrorTopicsResponse) Key() int16 { return 106 }
func (*RecoverMirrorTopicsResponse) RequestKind() kmsg.Request {
	return new(RecoverMirrorTopicsRequest)
}
func (m *RecoverMirrorTopicsResponse) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }
func (m *RecoverMirrorTopicsResponse) ReadFrom(src []byte) error  { return decodeMirror(src, m.code) }
