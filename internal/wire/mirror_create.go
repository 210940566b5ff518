package wire

import "github.com/twmb/franz-go/pkg/kmsg"

// MirrorConfig is one setting of a mirror in CreateClusterMirrorRequest.
type MirrorConfig struct {
	Name  string
	Value *string
}

// CreateClusterMirrorRequest, key 94, creates a mirror from the settings of the
// connection to its source. Config must not repeat a name (P3).
type CreateClusterMirrorRequest struct {
	mirrorVersion
	MirrorName string
	Config     []MirrorConfig
}

func (*CreateClusterMirrorRequest) Key() int16 { return 94 }
func (*CreateClusterMirrorRequest) ResponseKind() kmsg.Response {
	return new(CreateClusterMirrorResponse)
}
func (m *CreateClusterMirrorRequest) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }
func (m *CreateClusterMirrorRequest) ReadFrom(src []byte) error  { return decodeMirror(src, m.code) }

func (m *CreateClusterMirrorRequest) code(c *mirrorCodec) {
	c.string(&m.MirrorName)
	mirrorArray(c, &m.Config, func(c *mirrorCodec, e *MirrorConfig) {
		c.string(&e.Name)
		c.nullableString(&e.Value)
		c.tags()
	})
	c.tags()
}

// CreateClusterMirrorResponse answers CreateClusterMirrorRequest.
type CreateClusterMirrorResponse struct {
	mirrorVersion
	mirrorStatus
}

func (*CreateClusterMirrorResponse) Key() int16 { return 94 }
func (*CreateClusterMirrorResponse) RequestKind() kmsg.Request {
	return new(CreateClusterMirrorRequest)
}
func (m *CreateClusterMirrorResponse) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }
func (m *CreateClusterMirrorResponse) ReadFrom(src []byte) error  { return decodeMirror(src, m.code) }

func (m *CreateClusterMirrorResponse) code(c *mirrorCodec) {
	m.mirrorStatus.code(c)
	c.tags()
}

// DeleteClusterMirrorRequest, key 104, deletes a mirror all of whose topics are
// STOPPED. StateValidationOffset is -1 from a client; a broker fills it in with
// the metadata revision its checks were made at (P14).
type DeleteClusterMirrorRequest struct {
	mirrorVersion
	MirrorName            string
	StateValidationOffset int64
}

// NewDeleteClusterMirrorRequest gives a request without a validation offset.
func NewDeleteClusterMirrorRequest(mirror string) *DeleteClusterMirrorRequest {
	return &DeleteClusterMirrorRequest{MirrorName: mirror, StateValidationOffset: -1}
}

func (*DeleteClusterMirrorRequest) Key() int16 { return 104 }
func (*DeleteClusterMirrorRequest) ResponseKind() kmsg.Response {
	return new(DeleteClusterMirrorResponse)
}
func (m *DeleteClusterMirrorRequest) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }
func (m *DeleteClusterMirrorRequest) ReadFrom(src []byte) error  { return decodeMirror(src, m.code) }

func (m *DeleteClusterMirrorRequest) code(c *mirrorCodec) {
	c.string(&m.MirrorName)
	c.int64(&m.StateValidationOffset)
	c.tags()
}

// DeleteClusterMirrorResponse answers DeleteClusterMirrorRequest.
type DeleteClusterMirrorResponse struct {
	mirrorVersion
	mirrorStatus
}

func (*DeleteClusterMirrorResponse) Key() int16 { return 104 }
func (*DeleteClusterMirrorResponse) RequestKind() kmsg.Request {
	return new(DeleteClusterMirrorRequest)
}
func (m *DeleteClusterMirrorResponse) AppendTo(dst []byte) []byte { return encodeMirror(dst, m.code) }
func (m *DeleteClusterMirrorResponse) ReadFrom(src []byte) error  { return decodeMirror(src, m.code) }

func (m *DeleteClusterMirrorResponse) code(c *mirrorCodec) {
	m.mirrorStatus.code(c)
	c.tags()
}
