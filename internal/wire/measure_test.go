package wire

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// fillRandom sets every field, so that a shape which misses one is seen.
func fillRandom(rng *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if t, ok := v.Addr().Interface().(*kmsg.Tags); ok {
			if rng.IntN(3) == 0 {
				t.Set(uint32(1000+rng.IntN(1000)), make([]byte, rng.IntN(300)))
			}
			return
		}
		for i := range v.NumField() {
			fillRandom(rng, v.Field(i))
		}
	case reflect.Pointer:
		if rng.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fillRandom(rng, v.Elem())
		} else {
			v.SetZero()
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(make([]byte, rng.IntN(200)))
			return
		}
		n := rng.IntN(4)
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			fillRandom(rng, v.Index(i))
		}
	case reflect.Array:
		v.Index(0).SetUint(uint64(rng.IntN(256)))
	case reflect.String:
		v.SetString(string(make([]byte, rng.IntN(200))))
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 0)
	case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(rng.Int64())
	case reflect.Uint16, reflect.Uint32:
		v.SetUint(rng.Uint64())
	case reflect.Float64:
		v.SetFloat(rng.Float64())
	}
}

// eachVersion calls fn for every key and version of kmsg's requests.
func eachVersion(fn func(key, version int16)) {
	for key := range int16(firstMirrorKey) {
		if req := kmsg.RequestForKey(key); req != nil {
			for v := range req.MaxVersion() + 1 {
				fn(key, v)
			}
		}
	}
}

// TestShapesMatchTheCodec: a walk over a valid body ends exactly at its end,
// for every key and version. The bytes behind it prove that it went no further,
// one byte less that it went as far.
func TestShapesMatchTheCodec(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	eachVersion(func(key, version int16) {
		s := shapeOf(key, version)
		for range 50 {
			req := kmsg.RequestForKey(key)
			fillRandom(rng, reflect.ValueOf(req).Elem())
			req.SetVersion(version)
			body := req.AppendTo(nil)
			w := walker{flexible: req.IsFlexible()}
			w.Src = append(body[:len(body):len(body)], 0xee, 0xee)
			w.walkStruct(s)
			if !w.Ok() || len(w.Src) != 2 {
				t.Errorf("%s v%d: a valid body of %d bytes: ok %v, %d bytes left over", kmsg.NameForKey(key), version, len(body), w.Ok(), len(w.Src)-2)
				return
			}
		}
	})
}

// TestMeasureIsEnough compares with what the codec allocates, for the bodies
// that cost it most.
func TestMeasureIsEnough(t *testing.T) {
	const size = 256 << 10
	worst := 0.0
	eachVersion(func(key, version int16) {
		if key == 0 {
			return // produce is read by hand
		}
		for _, fill := range []byte{0, 1, 2} {
			body := make([]byte, size)
			for i := range body {
				body[i] = fill
			}
			measured, err := Measure(key, version, body)
			got := allocated(func() {
				req := kmsg.RequestForKey(key)
				req.SetVersion(version)
				if readErr := req.ReadFrom(body); readErr == nil && err != nil {
					t.Errorf("%s v%d, all %d: refused, but the codec reads it: %v", kmsg.NameForKey(key), version, fill, err)
				}
			})
			if err == nil && got > measured+measured/4+8<<10 {
				t.Errorf("%s v%d, all %d: the codec allocates %d bytes, measured %d", kmsg.NameForKey(key), version, fill, got, measured)
			}
			worst = max(worst, float64(got)/size)
		}
	})
	t.Logf("the codec makes at most %.1f times such a body of it", worst)
}

func allocated(fn func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

func TestMeasureRefuses(t *testing.T) {
	for _, tt := range []struct {
		what         string
		key, version int16
		body         []byte
	}{
		{"array count above the body", 3, 4, []byte{0x7f, 0xff, 0xff, 0xff, 0}},
		{"array count that fits no elements", 3, 4, append([]byte{0, 0, 0, 40}, make([]byte, 39)...)},
		{"string above the body", 3, 4, []byte{0, 0, 0, 1, 0x7f, 0xff, 'a'}},
		{"nested array", 9, 1, []byte{0, 1, 'g', 0, 0, 0, 1, 0, 1, 't', 0, 0, 4, 0, 0}},
		{"2^31 tagged fields", 3, 9, []byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x07}},
		{"varint of eleven bytes", 3, 9, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}},
		{"compact array count above the body", 3, 9, []byte{0xff, 0xff, 0xff, 0xff, 0x0f, 0}},
	} {
		if n, err := Measure(tt.key, tt.version, tt.body); !errors.Is(err, ErrShortBody) {
			t.Errorf("%s: measured %d, %v", tt.what, n, err)
		}
	}
}

// FuzzMeasure: whatever the codec reads is measured, and what it allocates is
// no more than that.
func FuzzMeasure(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 4))
	eachVersion(func(key, version int16) {
		if version%3 == 0 {
			req := kmsg.RequestForKey(key)
			fillRandom(rng, reflect.ValueOf(req).Elem())
			req.SetVersion(version)
			f.Add(key, version, req.AppendTo(nil))
		}
	})
	f.Fuzz(func(t *testing.T, key, version int16, body []byte) {
		if shapeOf(key, version) == nil {
			return
		}
		_, err := Measure(key, version, body)
		req := kmsg.RequestForKey(key)
		req.SetVersion(version)
		if req.ReadFrom(body) == nil && err != nil {
			t.Fatal(fmt.Errorf("the codec reads it: %w", err))
		}
	})
}

func BenchmarkMeasureFetch(b *testing.B) {
	req := kmsg.NewPtrFetchRequest()
	req.SetVersion(13)
	req.Topics = []kmsg.FetchRequestTopic{{Partitions: make([]kmsg.FetchRequestTopicPartition, 1)}}
	body := req.AppendTo(nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Measure(1, 13, body); err != nil {
			b.Fatal(err)
		}
	}
}
