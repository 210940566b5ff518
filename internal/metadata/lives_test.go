package metadata

import (
	"math"
	"reflect"
	"testing"
)

// A topic was deleted while a broker was away, and a mirror brought it back with its id.
// The broker still has the log of before, whose epochs a new history may use for other
// records: it was left out of nothing and would follow with what it has. So every replica
// of a topic that may have been here before begins behind a barrier that no log of a life
// before has behind it, in a leader epoch that nobody remembers.
func TestLives(t *testing.T) {
	none := &Partition{Replicas: []int32{1, 2}}
	Lives{}.Begin(none)
	if none.Barrier != 0 || none.LeaderEpoch != 0 || none.Stale != nil {
		t.Errorf("nothing was ever deleted: %+v", none)
	}
	l := Lives{}.After(&Topic{Partitions: []*Partition{{LeaderEpoch: 4}, {LeaderEpoch: 9, Barrier: 2}}})
	l = l.After(&Topic{Partitions: []*Partition{{LeaderEpoch: 1}}})
	if want := (Lives{LeaderEpoch: 10, Barrier: 3}); l != want {
		t.Errorf("%+v, want %+v", l, want)
	}
	again := &Partition{Replicas: []int32{1, 2}}
	l.Begin(again)
	if again.LeaderEpoch != 10 || again.Barrier != 3 || !reflect.DeepEqual(again.Stale, []StaleReplica{{ID: 1, Barrier: 3}, {ID: 2, Barrier: 3}}) {
		t.Errorf("%+v", again)
	}
	if end := l.After(&Topic{Partitions: []*Partition{{LeaderEpoch: math.MaxInt32, Barrier: math.MaxInt32}}}); end.LeaderEpoch != math.MaxInt32 || end.Barrier != math.MaxInt32 {
		t.Errorf("at the end of the range: %+v", end)
	}
}
