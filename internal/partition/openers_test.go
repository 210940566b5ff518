package partition

import "testing"

// A topic of thousands of partitions, made while clients are served, must leave them
// a processor: with all of them opening logs, the good client of make hostile waited
// up to 60 ms for each answer, for two seconds.
func TestOpenersAtOnce(t *testing.T) {
	for _, c := range []struct {
		first      bool
		processors int
		want       int
	}{
		{true, 1, 16}, {true, 64, 16}, // nobody is served yet: the disk decides
		{false, 1, 1}, {false, 2, 1}, {false, 4, 3}, {false, 64, 16},
	} {
		if got := openersAtOnce(c.first, c.processors); got != c.want {
			t.Errorf("first %t, %d processors: %d, want %d", c.first, c.processors, got, c.want)
		}
	}
}
