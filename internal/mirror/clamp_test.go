package mirror

import "testing"

// A.7 of the specification: log start 50, log end 200.
func TestClampOffset(t *testing.T) {
	for _, test := range [][2]int64{{20, 50}, {50, 50}, {120, 120}, {200, 200}, {260, 200}} {
		if got := clampOffset(test[0], 50, 200); got != test[1] {
			t.Errorf("clampOffset(%d) = %d, want %d", test[0], got, test[1])
		}
	}
}
