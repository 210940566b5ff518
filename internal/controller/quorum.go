package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Quorum is the log of the metadata and who has how much of it, as far as those could
// be asked.
type Quorum struct {
	Leader int32 // whose copy leads; it need not be the active controller. -1: none
	Term   int64 // of that leadership
	End    int64 // exclusive end of what is committed
	Voters []QuorumMember
	// Learners catch up and do not vote.
	Learners []QuorumMember
}

// QuorumMember is one controller.
type QuorumMember struct {
	Node int32
	Addr string    // host:port of its controller listener, empty if it has none
	End  int64     // exclusive end of what it has taken in; -1: it did not answer
	Seen time.Time // when it said so
}

type (
	quorumCall   struct{}
	quorumAnswer struct {
		Leader         int32
		Term           int64
		Committed, End int64
		Err            *errorMessage
	}
)

// DescribeQuorum asks the controllers. Where the metadata are in an etcd of the
// operator's, the controllers have no log of their own: all of them are voters who
// have everything, and the active one is the leader.
func (c *Controller) DescribeQuorum(ctx context.Context) (*Quorum, error) {
	if c.o.External != nil {
		return c.externalQuorum()
	}
	members, err := c.quorumMembers(ctx)
	if err != nil {
		return nil, err
	}
	answers := make([]*quorumAnswer, len(members))
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() {
			var a quorumAnswer
			switch {
			case m.Node == c.o.NodeID && c.etcd.member != nil:
				a = *c.answerQuorum(ctx, nil)
			case !m.Started || c.nodes == nil || c.nodes.call(ctx, m.Addr, "Quorum", &quorumCall{}, &a) != nil:
				return
			}
			if a.Err == nil {
				answers[i] = &a
			}
		})
	}
	wg.Wait()
	return quorumOf(members, answers, c.o.Clock.Now()), nil
}

// quorumOf puts answers together, in the order of the members; nil: none came. What
// those say of the newest term counts.
func quorumOf(members []memberInfo, answers []*quorumAnswer, now time.Time) *Quorum {
	q := &Quorum{Leader: -1}
	for i, m := range members {
		qm := QuorumMember{Node: m.Node, Addr: m.Addr, End: -1}
		if m.Addr == unreachable {
			qm.Addr = ""
		}
		if a := answers[i]; a != nil {
			qm.End, qm.Seen = a.End, now
			if a.Term > q.Term {
				q.Term, q.Leader = a.Term, -1
			}
			if a.Term == q.Term && a.Leader >= 0 {
				q.Leader = a.Leader
			}
			q.End = max(q.End, a.Committed)
		}
		switch {
		case m.Learner:
			q.Learners = append(q.Learners, qm)
		default:
			q.Voters = append(q.Voters, qm)
		}
	}
	return q
}

func (c *Controller) externalQuorum() (*Quorum, error) {
	standing, _ := c.follower.office()
	holder, ok := standing.holder()
	if !ok {
		return nil, ErrNotController
	}
	now, end := c.o.Clock.Now(), c.Image().Revision+1
	q := &Quorum{Leader: holder.node, Term: holder.created, End: end}
	for _, s := range standing {
		q.Voters = append(q.Voters, QuorumMember{s.node, s.addr, end, now})
	}
	return q, nil
}

// quorumMembers asks this node's member, or another node's, who the members are.
func (c *Controller) quorumMembers(ctx context.Context) ([]memberInfo, error) {
	if c.etcd.member != nil {
		ctx, cancel := context.WithTimeout(ctx, c.o.RequestTimeout)
		defer cancel()
		return c.members(ctx)
	}
	var errs []error
	for _, addr := range c.o.controllers() {
		try, cancel := context.WithTimeout(ctx, identifyTimeout)
		var a membersAnswer
		err := c.nodes.call(try, addr, "Members", &membersCall{}, &a)
		cancel()
		if err == nil {
			err = decodeError(a.Err)
		}
		if err == nil {
			return a.Members, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("list controllers: %w", errors.Join(errs...))
}

func (c *Controller) answerQuorum(context.Context, *quorumCall) *quorumAnswer {
	e := c.up.Load()
	if e == nil || e.member == nil {
		return &quorumAnswer{Err: encodeError(fmt.Errorf("%w: node %d has no part in the metadata, or is starting", ErrInvalidRequest, c.o.NodeID))}
	}
	s := e.member.Server
	a := &quorumAnswer{Leader: -1, Term: int64(s.Term()), Committed: int64(s.CommittedIndex()) + 1, End: int64(s.AppliedIndex()) + 1}
	for _, m := range s.Cluster().Members() {
		if m.ID == s.Leader() {
			a.Leader = member(uint64(m.ID), m.Name, m.PeerURLs, m.IsLearner, true).Node
		}
	}
	return a
}
