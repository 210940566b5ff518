package controller

import (
	"testing"
	"time"
)

// What controllers say of themselves, some of whom are behind or away.
func TestQuorumOf(t *testing.T) {
	now := time.Unix(1000, 0)
	members := []memberInfo{{Node: 1, Addr: "a:1", Started: true}, {Node: 2, Addr: "b:1", Started: true}, {Node: 3, Addr: "c:1", Started: true}, {Node: 4, Addr: unreachable, Learner: true, Started: true}}
	q := quorumOf(members, []*quorumAnswer{
		{Leader: 3, Term: 4, Committed: 90, End: 88}, // has not heard of the election
		{Leader: 2, Term: 5, Committed: 100, End: 100},
		nil,
		{Leader: -1, Term: 5, Committed: 95, End: 95},
	}, now)
	if q.Leader != 2 || q.Term != 5 || q.End != 100 || len(q.Voters) != 3 || len(q.Learners) != 1 {
		t.Fatalf("%+v", q)
	}
	for i, want := range []QuorumMember{{1, "a:1", 88, now}, {2, "b:1", 100, now}, {3, "c:1", -1, time.Time{}}} {
		if q.Voters[i] != want {
			t.Errorf("voter %+v, want %+v", q.Voters[i], want)
		}
	}
	if want := (QuorumMember{4, "", 95, now}); q.Learners[0] != want {
		t.Errorf("learner %+v, want %+v", q.Learners[0], want)
	}
}

// TestDescribeQuorum asks three controllers and a broker about them, while one is away.
func TestDescribeQuorum(t *testing.T) {
	w := newTestCluster(t, 3)
	w.startAll()
	o := w.options(4)
	o.BrokerOnly = true
	w.start(o)
	w.broker(w.nodes[4], 4)
	create(t, w.nodes[4], "orders", 3)
	for id, c := range w.nodes {
		q, err := c.DescribeQuorum(t.Context())
		if err != nil || len(q.Voters) != 3 || q.Leader < 1 || q.Leader > 3 || q.Term < 1 || q.End < 10 {
			t.Fatalf("node %d: %+v, %v", id, q, err)
		}
		for i, m := range q.Voters {
			if m.Node != int32(i+1) || m.Addr != w.voters[i].Addr || m.End < 10 || m.Seen.IsZero() {
				t.Errorf("node %d: %+v", id, m)
			}
		}
	}
	w.stop(1)
	q, err := w.nodes[4].DescribeQuorum(t.Context())
	if err != nil || len(q.Voters) != 3 || q.Voters[0].End != -1 || !q.Voters[0].Seen.IsZero() || q.Voters[1].End < 10 {
		t.Errorf("without node 1: %+v, %v", q, err)
	}
}
