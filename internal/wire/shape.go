package wire

import (
	"reflect"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// shape is what the body of one version of a request looks like, or a struct
// inside of it: enough to walk over the bytes without building anything.
//
// kmsg knows the same only as code. So the shape is asked of its encoder, once
// per key and version: a field is set to another value, and what that does to
// the bytes tells whether and how the version has it. A test compares every
// shape with random messages.
type shape struct {
	fields []shapeField
	tags   bool    // ends in a section of tagged fields
	size   uintptr // of the Go value, what its own slices and strings point to not counted
	min    int     // fewest bytes it takes on the wire
}

type shapeField struct {
	kind  fieldKind
	width int    // fixed: bytes
	elem  *shape // structs, nullable: what is inside; array: nil for elements of a plain kind
	plain shapeKind
}

type fieldKind uint8

const (
	fixed    fieldKind = iota
	text               // string, nullable or not: its bytes are copied
	pointer            // string behind a pointer: the same bytes, one more allocation
	blob               // byte slice, which the codec does not copy
	array              // of structs or of plain kinds
	nullable           // a struct behind one byte that says whether it is there
)

// shapeKind is an array's element where that is no struct.
type shapeKind struct {
	kind  fieldKind
	width int
	size  uintptr
}

// shapes caches by key and version. Two that look at once make the same.
var shapes [firstMirrorKey][]atomic.Pointer[shape]

func init() {
	for key := range shapes {
		if req := kmsg.RequestForKey(int16(key)); req != nil {
			shapes[key] = make([]atomic.Pointer[shape], req.MaxVersion()+1)
		}
	}
}

// shapeOf is nil for what kmsg does not know; mirror requests, which have a
// codec of their own, among it.
func shapeOf(key, version int16) *shape {
	if key < 0 || int(key) >= len(shapes) || version < 0 || int(version) >= len(shapes[key]) {
		return nil
	}
	cached := &shapes[key][version]
	if s := cached.Load(); s != nil {
		return s
	}
	p := prober{req: kmsg.RequestForKey(key)}
	p.req.SetVersion(version)
	s := p.describe(reflect.ValueOf(p.req).Elem())
	cached.Store(s)
	return s
}

// prober asks the encoder of one request.
type prober struct{ req kmsg.Request }

func (p *prober) len() int { return len(p.req.AppendTo(nil)) }

// describe finds the shape of v, a struct of the request that is in place and
// holds defaults, and leaves it as it was.
func (p *prober) describe(v reflect.Value) *shape {
	s := &shape{size: v.Type().Size()}
	for i := range v.NumField() {
		f := v.Field(i)
		name := v.Type().Field(i).Name
		switch {
		case name == "Version" && v.Addr().Interface() == any(p.req):
		case name == "UnknownTags":
			tags := f.Addr().Interface().(*kmsg.Tags)
			before := p.len()
			tags.Set(1<<20, nil)
			s.tags = p.len() > before
			*tags = kmsg.Tags{}
		default:
			s.add(p.field(f))
		}
	}
	if s.tags {
		s.min++
	}
	return s
}

// add appends a field; neighbours of fixed width become one.
func (s *shape) add(f *shapeField) {
	if f == nil {
		return
	}
	s.min += f.min()
	if n := len(s.fields); f.kind == fixed && n > 0 && s.fields[n-1].kind == fixed {
		s.fields[n-1].width += f.width
		return
	}
	s.fields = append(s.fields, *f)
}

func (f *shapeField) min() int {
	if f.kind == fixed {
		return f.width
	}
	return 1 // a compact length; longer ones are checked when they are read
}

// field tells how the version encodes a field; nil: not at all, or tagged,
// which the walk steps over.
func (p *prober) field(f reflect.Value) *shapeField {
	old := reflect.ValueOf(f.Interface())
	defer f.Set(old)
	switch f.Kind() {
	case reflect.Struct: // one of the fields of its own at least, or it is tagged
		inner := p.describe(f)
		if len(inner.fields) == 0 {
			return nil
		}
		return &shapeField{kind: nullable, width: -1, elem: inner}
	case reflect.Pointer:
		if f.Type().Elem().Kind() == reflect.Struct {
			return p.nullableStruct(f)
		}
		f.SetZero()
		before := p.len()
		f.Set(reflect.ValueOf(kmsg.StringPtr("x")))
		return ifGrownBy(1, p.len()-before, &shapeField{kind: pointer})
	case reflect.String:
		before := p.len()
		f.SetString(f.String() + "x")
		return ifGrownBy(1, p.len()-before, &shapeField{kind: text})
	case reflect.Slice:
		if f.Type().Elem().Kind() == reflect.Uint8 {
			f.SetBytes(nil)
			before := p.len()
			f.SetBytes([]byte{1})
			return ifGrownBy(1, p.len()-before, &shapeField{kind: blob})
		}
		return p.array(f)
	}
	return p.fixed(f)
}

func ifGrownBy(want, got int, f *shapeField) *shapeField {
	if got != want {
		return nil
	}
	return f
}

// fixed: another value changes bytes of a plain field and adds some to a
// tagged one.
func (p *prober) fixed(f reflect.Value) *shapeField {
	before := p.req.AppendTo(nil)
	switch f.Kind() {
	case reflect.Bool:
		f.SetBool(!f.Bool())
	case reflect.Float64:
		f.SetFloat(f.Float() + 1)
	case reflect.Uint16, reflect.Uint32:
		f.SetUint(f.Uint() ^ 1)
	case reflect.Array:
		f.Index(0).SetUint(f.Index(0).Uint() ^ 1)
	default:
		f.SetInt(f.Int() ^ 1)
	}
	after := p.req.AppendTo(nil)
	if len(before) != len(after) || string(before) == string(after) {
		return nil
	}
	return &shapeField{kind: fixed, width: int(f.Type().Size())}
}

// array: the second element takes as many bytes as the first, unless the first
// brought a tag with it.
func (p *prober) array(f reflect.Value) *shapeField {
	elem := f.Type().Elem()
	with := func(n int) int {
		s := reflect.MakeSlice(f.Type(), n, n)
		for i := range n {
			setDefault(s.Index(i))
		}
		f.Set(s)
		return p.len()
	}
	f.SetZero() // null takes as much as empty, where it is not tagged
	none := p.len()
	one, two := with(1), with(2)
	if one == none || two-one != one-none {
		return nil
	}
	out := &shapeField{kind: array}
	switch with(1); elem.Kind() {
	case reflect.Struct:
		out.elem = p.describe(f.Index(0))
	case reflect.String:
		out.plain = shapeKind{kind: text, size: elem.Size()}
	case reflect.Slice:
		out.plain = shapeKind{kind: blob, size: elem.Size()}
	default:
		out.plain = shapeKind{kind: fixed, width: int(elem.Size()), size: elem.Size()}
	}
	return out
}

func (p *prober) nullableStruct(f reflect.Value) *shapeField {
	f.SetZero()
	before := p.len()
	f.Set(reflect.New(f.Type().Elem()))
	setDefault(f.Elem())
	grown := p.len() - before
	inner := p.describe(f.Elem())
	// A struct of defaults takes its least, in the flexible versions that have
	// such structs; more of it is a tag.
	if len(inner.fields) == 0 || grown > inner.min {
		return nil
	}
	return &shapeField{kind: nullable, elem: inner}
}

func setDefault(v reflect.Value) {
	if d, ok := v.Addr().Interface().(interface{ Default() }); ok {
		d.Default()
	}
}
