package controller

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// "controllers remove" right after kill -9 of the node with etcd's leader answered
// "etcdserver: leader changed", and the operator had to type it again.
func TestInsist(t *testing.T) {
	fault := errors.New("fault")
	for _, test := range []struct {
		name  string
		tries []error // and then the time is over
		want  error
		words string
	}{
		{"done", []error{nil}, nil, ""},
		{"a leader is elected meanwhile", []error{rpctypes.ErrLeaderChanged, rpctypes.ErrNoLeader, nil}, nil, ""},
		{"no majority", []error{rpctypes.ErrNoLeader, rpctypes.ErrTimeout}, errAskAnother, "no majority"},
		{"a member is missing", []error{rpctypes.ErrUnhealthy, rpctypes.ErrUnhealthy}, rpctypes.ErrUnhealthy, "start the one that is missing"},
		{"too few would remain", []error{rpctypes.ErrMemberNotEnoughStarted, nil}, rpctypes.ErrMemberNotEnoughStarted, "too few run"},
		{"refused", []error{fault, nil}, fault, "fault"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		try := 0
		err := insist(ctx, clock.System(), func(context.Context) error {
			try++
			if try == len(test.tries) {
				defer cancel()
			}
			return test.tries[try-1]
		})
		if !errors.Is(err, test.want) || err != nil && !strings.Contains(err.Error(), test.words) {
			t.Errorf("%s: %v", test.name, err)
		}
		cancel()
	}
}

// A third controller joined while the second had not heard of it: etcd asked that one
// who is there, heard of two, and the third process ended with "member count is
// unequal". It waits until all that run name the same members.
func TestSameMembers(t *testing.T) {
	one, two, three := memberInfo{ID: 1, Node: 1, Addr: "a:1", Started: true}, memberInfo{ID: 2, Node: 2, Addr: "b:1", Learner: true}, memberInfo{ID: 3, Node: -1, Addr: "c:1"}
	voting, named, moved, again := two, three, two, three
	voting.Learner, voting.Started, named.Node, moved.Addr, again.ID = false, true, 3, "b:2", 4
	for _, test := range []struct {
		name string
		a, b []memberInfo
		want bool
	}{
		{"the same", []memberInfo{one, two, three}, []memberInfo{three, one, two}, true},
		{"one has not heard of the newest", []memberInfo{one, two}, []memberInfo{one, two, three}, false},
		{"or not that another is gone", []memberInfo{one, two, three}, []memberInfo{one, three}, false},
		{"what they are is no matter", []memberInfo{one, voting, named}, []memberInfo{one, two, three}, true},
		{"where they are is", []memberInfo{one, moved, three}, []memberInfo{one, two, three}, false},
		{"removed and added again", []memberInfo{one, two, again}, []memberInfo{one, two, three}, false},
	} {
		if got := sameMembers(test.a, test.b); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}
