package epoch

import (
	"slices"
	"testing"
)

// Any operations: epochs and starts keep rising, and every answer is that of a
// search through the entries.
func FuzzCache(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 2, 9, 1, 0, 7, 2, 0, 3, 0, 3, 8})
	f.Fuzz(func(t *testing.T, ops []byte) {
		var c Cache
		for len(ops) >= 3 {
			op, e, at := ops[0]%3, int32(ops[1]), int64(ops[2])
			ops = ops[3:]
			switch op {
			case 0:
				c.Assign(e, at)
			case 1:
				c.TruncateEnd(at)
			case 2:
				c.TruncateStart(at)
			}
			all := c.Entries()
			for i := 1; i < len(all); i++ {
				if all[i].Epoch <= all[i-1].Epoch || all[i].Start <= all[i-1].Start {
					t.Fatalf("not rising: %v", all)
				}
			}
			if got := New(all).Entries(); !slices.Equal(got, all) {
				t.Fatalf("%v became %v", all, got)
			}
			want, known := int32(0), false
			for _, x := range all {
				if x.Start <= at {
					want, known = x.Epoch, true
				}
			}
			if got, ok := c.At(at); ok != known || ok && got != want {
				t.Fatalf("epoch at %d of %v is %d %v", at, all, got, ok)
			}
			if i := slices.IndexFunc(all, func(x Entry) bool { return x.Epoch == e }); i >= 0 {
				want := int64(1 << 20)
				if i+1 < len(all) {
					want = all[i+1].Start
				}
				if gotE, got := c.End(e, 1<<20); gotE != e || got != want {
					t.Fatalf("epoch %d of %v ends at %d of %d", e, all, got, gotE)
				}
			}
		}
	})
}
