package wire

import (
	"errors"
	"reflect"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// The mirror messages of KIP-1279 are not in kmsg, so they are written by hand
// in the files mirror_*.go. Each message has one method, code, that walks its
// fields in wire order; the same walk writes and reads, so the two directions
// cannot drift apart.

// errMirrorMessage is what a malformed mirror message answers. The reader does
// not tell where it stopped: the bytes come from a peer whose framing was
// already wrong.
var errMirrorMessage = errors.New("malformed mirror message")

// A message may take mirrorFactor times its bytes, and mirrorSlack more because
// short names cost many times theirs.
const (
	mirrorFactor = 4
	mirrorSlack  = 1 << 20
)

// mirrorVersion carries the version of one mirror message. All of them have
// version 0 only and the flexible encoding (P1).
type mirrorVersion struct{ Version int16 }

func (v *mirrorVersion) SetVersion(version int16) { v.Version = version }
func (v *mirrorVersion) GetVersion() int16        { return v.Version }
func (v *mirrorVersion) MaxVersion() int16        { return 0 }
func (v *mirrorVersion) IsFlexible() bool         { return true }

// mirrorCodec writes to dst while r is nil, and reads from r otherwise.
type mirrorCodec struct {
	r   *kbin.Reader
	dst []byte
	// room is how many bytes the elements of arrays may still take in memory.
	room int
}

func encodeMirror(dst []byte, code func(*mirrorCodec)) []byte {
	c := mirrorCodec{dst: dst}
	code(&c)
	return c.dst
}

func decodeMirror(src []byte, code func(*mirrorCodec)) error {
	c := mirrorCodec{r: &kbin.Reader{Src: src}, room: mirrorFactor*len(src) + mirrorSlack}
	code(&c)
	if !c.r.Ok() {
		return errMirrorMessage
	}
	return nil
}

func (c *mirrorCodec) bool(v *bool) {
	if c.r != nil {
		*v = c.r.Bool()
		return
	}
	c.dst = kbin.AppendBool(c.dst, *v)
}

func (c *mirrorCodec) int16(v *int16) {
	if c.r != nil {
		*v = c.r.Int16()
		return
	}
	c.dst = kbin.AppendInt16(c.dst, *v)
}

func (c *mirrorCodec) int32(v *int32) {
	if c.r != nil {
		*v = c.r.Int32()
		return
	}
	c.dst = kbin.AppendInt32(c.dst, *v)
}

func (c *mirrorCodec) int64(v *int64) {
	if c.r != nil {
		*v = c.r.Int64()
		return
	}
	c.dst = kbin.AppendInt64(c.dst, *v)
}

func (c *mirrorCodec) uuid(v *[16]byte) {
	if c.r != nil {
		*v = c.r.Uuid()
		return
	}
	c.dst = kbin.AppendUuid(c.dst, *v)
}

func (c *mirrorCodec) string(v *string) {
	if c.r != nil {
		*v = c.r.CompactString()
		return
	}
	c.dst = kbin.AppendCompactString(c.dst, *v)
}

func (c *mirrorCodec) nullableString(v **string) {
	if c.r != nil {
		*v = c.r.CompactNullableString()
		return
	}
	c.dst = kbin.AppendCompactNullableString(c.dst, *v)
}

func (c *mirrorCodec) strings(v *[]string) {
	mirrorArray(c, v, func(c *mirrorCodec, s *string) { c.string(s) })
}

func (c *mirrorCodec) int32s(v *[]int32) {
	mirrorArray(c, v, func(c *mirrorCodec, n *int32) { c.int32(n) })
}

// nullableStrings keeps nil and empty apart, as key 99 needs it.
func (c *mirrorCodec) nullableStrings(v *[]string) {
	if c.r == nil && *v == nil {
		c.dst = kbin.AppendCompactNullableArrayLen(c.dst, 0, true)
		return
	}
	c.strings(v)
}

// mirrorArray walks a compact array. A null array reads as nil. The slice grows
// by appending, so a length that lies costs no more memory than the bytes that
// follow it justify: kbin refuses a length above the bytes left, and the first
// element that does not fit ends the walk.
func mirrorArray[T any](c *mirrorCodec, v *[]T, element func(*mirrorCodec, *T)) {
	if c.r == nil {
		c.dst = kbin.AppendCompactArrayLen(c.dst, len(*v))
		for i := range *v {
			element(c, &(*v)[i])
		}
		return
	}
	n := c.r.CompactArrayLen()
	if n < 0 {
		*v = nil
		return
	}
	out := make([]T, 0, min(n, 64))
	for i := int32(0); i < n && c.r.Ok(); i++ {
		var e T
		if c.room -= int(reflect.TypeFor[T]().Size()); c.room < 0 {
			c.r.Span(len(c.r.Src) + 1) // marks the reader as failed
			return
		}
		element(c, &e)
		out = append(out, e)
	}
	*v = out
}

// mirrorTag is one tagged field. Present is looked at when writing only: a
// field that holds its default is left out.
type mirrorTag struct {
	tag     uint32
	present bool
	code    func(*mirrorCodec)
}

// tags walks the tagged-field section that ends every struct. Known fields come
// in ascending order; unknown ones are skipped (P6).
func (c *mirrorCodec) tags(known ...mirrorTag) {
	if c.r == nil {
		count := 0
		for _, t := range known {
			if t.present {
				count++
			}
		}
		c.dst = kbin.AppendUvarint(c.dst, uint32(count))
		for _, t := range known {
			if !t.present {
				continue
			}
			value := encodeMirror(nil, t.code)
			c.dst = kbin.AppendUvarint(c.dst, t.tag)
			c.dst = kbin.AppendUvarint(c.dst, uint32(len(value)))
			c.dst = append(c.dst, value...)
		}
		return
	}
	for n := c.r.Uvarint(); n > 0 && c.r.Ok(); n-- {
		tag, size := c.r.Uvarint(), c.r.Uvarint()
		if uint64(size) > uint64(len(c.r.Src)) {
			c.r.Span(len(c.r.Src) + 1) // marks the reader as failed
			return
		}
		value := c.r.Span(int(size))
		for _, t := range known {
			if t.tag != tag {
				continue
			}
			if decodeMirror(value, t.code) != nil {
				c.r.Span(len(c.r.Src) + 1)
				return
			}
		}
	}
}

// mirrorStatus is the head of every mirror response, T,E,M in the tables of
// the specification (P2).
type mirrorStatus struct {
	ThrottleMillis int32
	ErrorCode      int16
	ErrorMessage   *string
}

func (s *mirrorStatus) code(c *mirrorCodec) {
	c.int32(&s.ThrottleMillis)
	c.int16(&s.ErrorCode)
	c.nullableString(&s.ErrorMessage)
}

// Status gives the request-wide error of a mirror response.
func (s *mirrorStatus) Status() (code int16, message string) {
	if s.ErrorMessage != nil {
		message = *s.ErrorMessage
	}
	return s.ErrorCode, message
}

// SetStatus sets the request-wide error of a mirror response.
func (s *mirrorStatus) SetStatus(code int16, message string) {
	s.ErrorCode, s.ErrorMessage = code, nil
	if message != "" {
		s.ErrorMessage = kmsg.StringPtr(message)
	}
}

// Throttle makes every mirror response a kmsg.ThrottleResponse.
func (s *mirrorStatus) Throttle() (int32, bool) { return s.ThrottleMillis, true }

// SetThrottle sets the time a client should wait after this response.
func (s *mirrorStatus) SetThrottle(millis int32) { s.ThrottleMillis = millis }
