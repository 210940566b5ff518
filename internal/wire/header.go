package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	keyApiVersions = 18

	// minRequestHeader is key, version and correlation id. Only one ancient
	// request (ControlledShutdown v0) stops there, the rest add a client id.
	minRequestHeader = 8

	// maxHeaderTags bounds the tagged fields we walk over in a header. No
	// release of Kafka sends any; the walk is linear in the bytes anyway.
	maxHeaderTags = 64
)

// RequestHeader is a request header v1 or v2 (KIP-482: v2 has tagged fields,
// which are skipped). The client id stays a plain nullable string in both.
type RequestHeader struct {
	Key, Version  int16
	CorrelationID int32
	ClientID      *string
}

// ParseRequestHeader splits a request frame. The body aliases the frame.
//
// An unknown key or a version newer than ours is not an error here, because
// the caller owes ApiVersions an answer for that case (KIP-511); such headers
// are read as if the message were flexible when its newest known version is.
func ParseRequestHeader(frame []byte) (h RequestHeader, body []byte, err error) {
	if len(frame) < minRequestHeader {
		return h, nil, fmt.Errorf("request header: %w", ErrShortBody)
	}
	h.Key = int16(binary.BigEndian.Uint16(frame))
	h.Version = int16(binary.BigEndian.Uint16(frame[2:]))
	h.CorrelationID = int32(binary.BigEndian.Uint32(frame[4:]))
	if h.Version < 0 {
		return h, nil, fmt.Errorf("request header: key %d version %d", h.Key, h.Version)
	}
	r := kbin.Reader{Src: frame[minRequestHeader:]}
	h.ClientID = r.NullableString()
	if IsFlexible(h.Key, h.Version) {
		skipTags(&r)
	}
	if !r.Ok() {
		return h, nil, fmt.Errorf("request header: key %d version %d: %w", h.Key, h.Version, ErrShortBody)
	}
	return h, r.Src, nil
}

func skipTags(r *kbin.Reader) {
	n := r.Uvarint()
	if n > maxHeaderTags {
		r.Src = nil
		r.Span(1) // marks the reader as failed
		return
	}
	for ; n > 0 && r.Ok(); n-- {
		r.Uvarint()
		r.Span(int(r.Uvarint()))
	}
}

// AppendRequest appends a whole request frame, size prefix included.
func AppendRequest(dst []byte, corr int32, clientID string, req kmsg.Request) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = kbin.AppendInt16(dst, req.Key())
	dst = kbin.AppendInt16(dst, req.GetVersion())
	dst = kbin.AppendInt32(dst, corr)
	dst = kbin.AppendString(dst, clientID)
	if req.IsFlexible() {
		dst = append(dst, 0)
	}
	dst = req.AppendTo(dst)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	return dst
}

// AppendResponse appends a whole response frame, size prefix included.
// flexible says whether the request's version was; an ApiVersions answer has
// header v0 always, so that a client can read it before it knows us (KIP-511).
func AppendResponse(dst []byte, corr int32, resp kmsg.Response, flexible bool) []byte {
	start := len(dst)
	dst = AppendResponseHeader(append(dst, 0, 0, 0, 0), corr, resp.Key(), flexible)
	dst = resp.AppendTo(dst)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	return dst
}

// AppendResponseHeader appends a response header without the size, for
// answers whose body is written by hand (Fetch).
func AppendResponseHeader(dst []byte, corr int32, key int16, flexible bool) []byte {
	dst = kbin.AppendInt32(dst, corr)
	if flexible && key != keyApiVersions {
		dst = append(dst, 0)
	}
	return dst
}

// ParseResponseHeader splits a response frame.
func ParseResponseHeader(frame []byte, key int16, flexible bool) (corr int32, body []byte, err error) {
	r := kbin.Reader{Src: frame}
	corr = r.Int32()
	if flexible && key != keyApiVersions {
		skipTags(&r)
	}
	if !r.Ok() {
		return 0, nil, fmt.Errorf("response header: %w", ErrShortBody)
	}
	return corr, r.Src, nil
}
