package kafka

import (
	"github.com/twmb/franz-go/pkg/kbin"
)

// The two bodies that are read or written by hand (Produce, Fetch) have an old
// and a flexible encoding (KIP-482). bodyReader and bodyWriter hide which.

// bodyReader reads fields; after the first that does not fit, everything reads
// as zero and Complete tells.
type bodyReader struct {
	kbin.Reader
	flexible bool
}

// fail makes the reader answer zeros from here on.
func (r *bodyReader) fail() {
	r.Src = nil
	r.Span(1)
}

// arrayLen reads a length and refuses what cannot fit: every element has at
// least elem bytes. Null counts as empty.
func (r *bodyReader) arrayLen(elem int) int {
	var n int32
	if r.flexible {
		n = int32(r.Uvarint()) - 1
	} else {
		n = r.Int32()
	}
	if n <= 0 {
		return 0
	}
	if int(n) > len(r.Src)/elem {
		r.fail()
		return 0
	}
	return int(n)
}

func (r *bodyReader) unsafeString() string {
	if r.flexible {
		return r.UnsafeCompactString()
	}
	return r.UnsafeString()
}

// unsafeNullableString aliases the body; nil is null.
func (r *bodyReader) unsafeNullableString() *string {
	if r.flexible {
		return r.UnsafeCompactNullableString()
	}
	return r.UnsafeNullableString()
}

func (r *bodyReader) nullableBytes() []byte {
	if r.flexible {
		return r.CompactNullableBytes()
	}
	return r.NullableBytes()
}

// tags skips the tagged fields.
func (r *bodyReader) tags() {
	if !r.flexible {
		return
	}
	n := r.Uvarint()
	if int64(n) > int64(len(r.Src)) { // two bytes each at the least
		r.fail()
		return
	}
	for range n {
		r.Uvarint()
		r.Span(int(r.Uvarint()))
	}
}

// bodyWriter appends fields.
type bodyWriter struct {
	b        []byte
	flexible bool
}

func (w *bodyWriter) int16(v int16) { w.b = kbin.AppendInt16(w.b, v) }
func (w *bodyWriter) int32(v int32) { w.b = kbin.AppendInt32(w.b, v) }
func (w *bodyWriter) int64(v int64) { w.b = kbin.AppendInt64(w.b, v) }

func (w *bodyWriter) arrayLen(n int) {
	if w.flexible {
		w.b = kbin.AppendCompactArrayLen(w.b, n)
	} else {
		w.b = kbin.AppendArrayLen(w.b, n)
	}
}

func (w *bodyWriter) nullArray() {
	if w.flexible {
		w.b = kbin.AppendCompactNullableArrayLen(w.b, 0, true)
	} else {
		w.b = kbin.AppendNullableArrayLen(w.b, 0, true)
	}
}

func (w *bodyWriter) string(s string) {
	if w.flexible {
		w.b = kbin.AppendCompactString(w.b, s)
	} else {
		w.b = kbin.AppendString(w.b, s)
	}
}

func (w *bodyWriter) nullableString(s *string) {
	if w.flexible {
		w.b = kbin.AppendCompactNullableString(w.b, s)
	} else {
		w.b = kbin.AppendNullableString(w.b, s)
	}
}

// bytesLen is the length in front of n bytes that follow from elsewhere.
func (w *bodyWriter) bytesLen(n int) {
	if w.flexible {
		w.b = kbin.AppendUvarint(w.b, uint32(n)+1)
	} else {
		w.b = kbin.AppendInt32(w.b, int32(n))
	}
}

// tags writes an empty section of tagged fields.
func (w *bodyWriter) tags() {
	if w.flexible {
		w.b = append(w.b, 0)
	}
}

// tag appends one tagged field with the content that fill appends.
func (w *bodyWriter) tag(number uint32, fill func(b []byte) []byte) {
	var scratch [64]byte
	content := fill(scratch[:0])
	w.b = kbin.AppendUvarint(w.b, number)
	w.b = kbin.AppendUvarint(w.b, uint32(len(content)))
	w.b = append(w.b, content...)
}

// leader appends a tagged current leader (KIP-951).
func (w *bodyWriter) leader(number uint32, id, epoch int32) {
	w.tag(number, func(b []byte) []byte {
		return append(kbin.AppendInt32(kbin.AppendInt32(b, id), epoch), 0)
	})
}

// leaderTag is a whole section with only the current leader in it.
func (w *bodyWriter) leaderTag(number uint32, id, epoch int32) {
	w.b = kbin.AppendUvarint(w.b, 1)
	w.leader(number, id, epoch)
}

// node is a broker as the endpoints tag names it.
type node struct {
	id   int32
	host string
	port int32
	rack *string
}

// endpointsTag is a whole section with only tag 0, the node endpoints of
// KIP-951, in it.
func (w *bodyWriter) endpointsTag(nodes []node) {
	if len(nodes) == 0 {
		w.tags()
		return
	}
	w.b = kbin.AppendUvarint(w.b, 1)
	w.tag(0, func(b []byte) []byte {
		b = kbin.AppendCompactArrayLen(b, len(nodes))
		for _, n := range nodes {
			b = kbin.AppendInt32(b, n.id)
			b = kbin.AppendCompactString(b, n.host)
			b = kbin.AppendInt32(b, n.port)
			b = append(kbin.AppendCompactNullableString(b, n.rack), 0)
		}
		return b
	})
}
