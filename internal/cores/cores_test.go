package cores

import "testing"

func TestWithSpare(t *testing.T) {
	for n, want := range map[int]int{1: 3, 2: 4, 4: 6, 8: 10, 16: 20, 64: 80} {
		if got := withSpare(n); got != want {
			t.Errorf("withSpare(%d) is %d, want %d", n, got, want)
		}
	}
}
