package kafka

import (
	"testing"
	"time"
)

// Whom a consumer is sent to. The leader is broker 1, in rack a.
func TestRackAware(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	all := []readableReplica{{1, "a", 100, at(9)}, {2, "b", 90, at(5)}, {3, "b", 95, at(1)}, {4, "c", 95, at(1)}, {5, "c", 95, at(2)}, {6, "", 100, at(9)}}
	for _, c := range []struct {
		rack     string
		replicas []readableReplica
		want     int32
	}{
		{"a", all, 1},
		{"b", all, 3},      // it has more
		{"c", all, 5},      // it was caught up later
		{"d", all, 1},      // nobody is there
		{"b", all[:1], 1},  // nobody there has the offset
		{"b", all[1:3], 3}, // the leader cannot be named
		{"c", nil, 1},
	} {
		if got := rackAware(c.rack, 1, c.replicas); got != c.want {
			t.Errorf("rack %s of %v: %d, want %d", c.rack, c.replicas, got, c.want)
		}
	}
}
