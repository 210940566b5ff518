package wire

import (
	"bytes"
	"encoding/hex"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// mirrorMessage is what requests and responses have in common.
type mirrorMessage interface {
	Key() int16
	MaxVersion() int16
	IsFlexible() bool
	AppendTo([]byte) []byte
	ReadFrom([]byte) error
}

// mirrorMessages gives a new request and a new response of every mirror key.
func mirrorMessages() []func() mirrorMessage {
	var all []func() mirrorMessage
	for _, key := range MirrorKeys {
		all = append(all,
			func() mirrorMessage { return NewRequest(key) },
			func() mirrorMessage { return NewRequest(key).ResponseKind() })
	}
	return all
}

// fillMirror puts random values into every field, slices never empty.
func fillMirror(r *rand.Rand, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Name != "Version" {
				fillMirror(r, v.Field(i))
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1+r.IntN(3), 3))
		v.SetLen(1 + r.IntN(v.Cap()))
		for i := range v.Len() {
			fillMirror(r, v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fillMirror(r, v.Index(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillMirror(r, v.Elem())
	case reflect.String:
		v.SetString(strings.Repeat("ä", r.IntN(200)))
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Uint8:
		v.SetUint(uint64(r.IntN(256)))
	default:
		v.SetInt(int64(r.Uint64()) >> (64 - v.Type().Bits()))
	}
}

func TestMirrorMessagesRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, make := range mirrorMessages() {
		for range 10 {
			in, out := make(), make()
			fillMirror(r, reflect.ValueOf(in).Elem())
			b := in.AppendTo(nil)
			if err := out.ReadFrom(b); err != nil {
				t.Fatalf("%T: %v", in, err)
			}
			if !reflect.DeepEqual(in, out) {
				t.Fatalf("%T: wrote %+v, read %+v", in, in, out)
			}
			if again := in.AppendTo(nil); !bytes.Equal(b, again) {
				t.Fatalf("%T: a second AppendTo gave other bytes", in)
			}
			// Cut short at any place it is an error, never a panic.
			for cut := range len(b) {
				if make().ReadFrom(b[:cut]) == nil {
					t.Fatalf("%T: %d of %d bytes were accepted", in, cut, len(b))
				}
			}
		}
	}
}

// The bytes of a few messages, worked out by hand from section 5.3: a codec
// that is wrong in both directions at once would pass the round trip.
func TestMirrorMessagesBytes(t *testing.T) {
	start := NewStartMirrorTopicsRequest("m")
	start.Topics = []StartMirrorTopic{{TopicName: "ab", NumPartitions: 3}}
	start.IncludePatterns = []string{".*"}
	list := &ListClusterMirrorsResponse{Mirrors: []ListedMirror{{MirrorName: "m", SourceBootstrap: "h", SourceClusterID: "c", TopicCount: 1}}}
	list.SetStatus(35, "x")
	lme := &LastMirroredEpochsResponse{Topics: []LastMirroredEpochsResponseTopic{{Name: "t", Partitions: []LastMirroredEpochsResponsePartition{
		{Partition: 1, LastMirroredEpoch: 5, LastMirroredOffset: 100},
		{Partition: 2, LastMirroredEpoch: -1, LastMirroredOffset: -1},
	}}}}
	for _, test := range []struct {
		m    mirrorMessage
		want string
	}{
		{&CreateClusterMirrorRequest{MirrorName: "m", Config: []MirrorConfig{{Name: "k", Value: kmsg.StringPtr("v")}, {Name: "n"}}},
			"026d" + "03" + "026b" + "0276" + "00" + "026e" + "00" + "00" + "00"},
		{start, "026d" + "02" + "00000000000000000000000000000000" + "036162" + "00000003" + "00" +
			"ffffffffffffffff" + "01" + "00" + "04" + "02" + "032e2a"},
		{&DescribeClusterMirrorsRequest{}, "00" + "00" + "00"},
		{&DescribeClusterMirrorsRequest{MirrorNames: []string{}}, "01" + "00" + "00"},
		{list, "00000000" + "0023" + "0278" + "02" + "026d" + "0268" + "0263" + "00000001" + "01" + "00" + "00"},
		{lme, "00000000" + "0000" + "00" + "02" + "0274" + "03" +
			"00000001" + "00000005" + "0000" + "01" + "00" + "08" + "0000000000000064" +
			"00000002" + "ffffffff" + "0000" + "00" + "00" + "00"},
	} {
		if got := hex.EncodeToString(test.m.AppendTo(nil)); got != test.want {
			t.Errorf("%T:\n got %s\nwant %s", test.m, got, test.want)
		}
	}
}

// A tagged field that the sender left out reads as its default, also into a
// message that was used before; one that nobody knows is skipped (P6).
func TestMirrorMessagesTags(t *testing.T) {
	used := &RemoveTopicsFromMirrorRequest{Patterns: []string{"old"}}
	b, _ := hex.DecodeString("026d" + "01" + "ffffffffffffffff" + "01" + "09" + "02" + "dead")
	if err := used.ReadFrom(b); err != nil || used.Patterns != nil || used.StateValidationOffset != -1 {
		t.Errorf("got %+v, %v", used, err)
	}
	lme := new(LastMirroredEpochsResponse)
	b, _ = hex.DecodeString("00000000" + "0000" + "00" + "02" + "0274" + "02" + "00000002" + "00000007" + "0000" + "00" + "00" + "00")
	if err := lme.ReadFrom(b); err != nil || lme.Topics[0].Partitions[0].LastMirroredOffset != -1 {
		t.Errorf("got %+v, %v", lme, err)
	}
}

func TestMirrorKeysHaveMessages(t *testing.T) {
	for _, key := range MirrorKeys {
		req := NewRequest(key)
		resp := req.ResponseKind()
		if req.Key() != key || resp.Key() != key || resp.RequestKind().Key() != key || !req.IsFlexible() || req.MaxVersion() != 0 {
			t.Errorf("key %d: %T, %T", key, req, resp)
		}
	}
	for _, key := range []int16{100, 101, 105} {
		if NewRequest(key) != nil {
			t.Errorf("key %d must not be served", key)
		}
	}
}

func FuzzMirrorMessages(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for i, make := range mirrorMessages() {
		m := make()
		fillMirror(r, reflect.ValueOf(m).Elem())
		f.Add(uint8(i), m.AppendTo(nil))
	}
	f.Add(uint8(0), []byte{2, 'm', 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		all := mirrorMessages()
		make := all[int(kind)%len(all)]
		first := make()
		if first.ReadFrom(b) != nil {
			return
		}
		one := first.AppendTo(nil)
		second := make()
		if err := second.ReadFrom(one); err != nil {
			t.Fatalf("%T: cannot read what it wrote: %v", first, err)
		}
		if two := second.AppendTo(nil); !bytes.Equal(one, two) {
			t.Fatalf("%T: %x became %x", first, one, two)
		}
	})
}
