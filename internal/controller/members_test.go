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
