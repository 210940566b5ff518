package wire

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kbin"
)

// perTag is what the codec keeps of a tagged field it does not know: an entry
// of a map that grows.
const perTag = 96

// Measure walks over the body of a request and tells how many bytes decoding it
// would allocate, about and rather too many. It allocates nothing and stops at
// the first count that the rest of the body cannot hold, with ErrShortBody.
// Bytes behind the last field are left alone, as the codec leaves them.
//
// A decoder multiplies: a topic of two bytes becomes a struct of 64. What it
// would take has to be known before it begins.
func Measure(key, version int16, body []byte) (int, error) {
	if key >= firstMirrorKey && key <= lastMirrorKey {
		return mirrorFactor * len(body), nil // their codec holds itself to that
	}
	s := shapeOf(key, version)
	if s == nil {
		return 0, fmt.Errorf("no shape of key %d version %d", key, version)
	}
	w := walker{Reader: kbin.Reader{Src: body}, flexible: IsFlexible(key, version)}
	w.walkStruct(s)
	if !w.Ok() {
		return 0, fmt.Errorf("key %d version %d: %w", key, version, ErrShortBody)
	}
	return int(s.size) + w.bytes, nil
}

type walker struct {
	kbin.Reader
	flexible bool
	bytes    int
}

// walkStruct walks over one struct. Depth is bounded by the types.
func (w *walker) walkStruct(s *shape) {
	for i := range s.fields {
		switch f := &s.fields[i]; f.kind {
		case fixed:
			w.Span(f.width)
		case array:
			w.array(f)
		case nullable:
			if f.width < 0 || w.Int8() >= 0 && w.Ok() {
				w.bytes += int(f.elem.size)
				w.walkStruct(f.elem)
			}
		default:
			w.sized(f.kind)
		}
	}
	if s.tags {
		w.tags()
	}
}

// sized walks over a string or bytes.
func (w *walker) sized(kind fieldKind) {
	var n int
	switch {
	case w.flexible:
		n = int(w.Uvarint()) - 1
	case kind == blob:
		n = int(w.Int32())
	default:
		n = int(w.Int16())
	}
	if n > 0 {
		w.Span(n)
	}
	switch kind {
	case pointer:
		w.bytes += 16 + roundUp(n)
	case text:
		w.bytes += roundUp(n)
	}
}

// roundUp is what the allocator makes of n bytes, nearly.
func roundUp(n int) int { return (max(n, 0) + 15) &^ 15 }

func (w *walker) array(f *shapeField) {
	var n int
	if w.flexible {
		n = int(w.Uvarint()) - 1
	} else {
		n = int(w.Int32())
	}
	if n <= 0 || !w.Ok() {
		return
	}
	size, least := int(f.plain.size), max(f.plain.width, 1)
	if f.elem != nil {
		size, least = int(f.elem.size), max(f.elem.min, 1)
	}
	if n > len(w.Src)/least {
		w.fail()
		return
	}
	w.bytes += n*size + n*size/8
	switch {
	case f.elem != nil:
		for i := 0; i < n && w.Ok(); i++ {
			w.walkStruct(f.elem)
		}
	case f.plain.kind == fixed:
		w.Span(n * f.plain.width)
	default:
		for i := 0; i < n && w.Ok(); i++ {
			w.sized(f.plain.kind)
		}
	}
}

func (w *walker) tags() {
	n := int(w.Uvarint())
	if n == 0 {
		return
	}
	if n > len(w.Src)/2 { // number and size, a byte each at the least
		w.fail()
		return
	}
	for i := 0; i < n && w.Ok(); i++ {
		w.Uvarint()
		size := w.Uvarint()
		// A known field may be an array; its elements are bounded as those of
		// other fields are, by the codec.
		w.bytes += perTag + min(int(size), len(w.Src))*taggedFactor
		w.Span(int(size))
	}
}

// taggedFactor is what the codec may make of a byte of a tagged field that it
// knows: arrays of ids and of short strings are the worst there.
const taggedFactor = 16

// fail makes the reader answer zeros from here on.
func (w *walker) fail() {
	w.Src = nil
	w.Span(1)
}
