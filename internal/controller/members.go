package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

func parseMemberName(name string) (node int32, ok bool) {
	text, ok := strings.CutPrefix(name, "node-")
	n, err := strconv.ParseInt(text, 10, 32)
	return int32(n), ok && err == nil
}

// members are the controllers that hold the metadata, as the store knows them.
func (c *Controller) members(ctx context.Context) ([]memberInfo, error) {
	resp, err := c.etcd.client.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list controllers: %w", err)
	}
	members := make([]memberInfo, len(resp.Members))
	for i, m := range resp.Members {
		members[i] = member(m.ID, m.Name, m.PeerURLs, m.IsLearner, len(m.ClientURLs) > 0)
	}
	slices.SortFunc(members, func(a, b memberInfo) int { return int(a.Node) - int(b.Node) })
	return members, nil
}

// addMember adds a controller as a learner; one that is there already stays.
func (c *Controller) addMember(ctx context.Context, node int32, addr string) error {
	c.joining.Lock() // two that join at once ask the same node, most of the time
	defer c.joining.Unlock()
	members, err := c.members(ctx)
	if err != nil {
		return err
	}
	for _, m := range members {
		switch {
		case m.Addr == addr:
			return nil
		case m.Node == node:
			return fmt.Errorf("add controller %d@%s: %w: it is one at %s", node, addr, ErrInvalidRequest, m.Addr)
		case !m.Started:
			// Each starts with the list of members that it was told, which must not
			// change until then.
			return fmt.Errorf("add controller %d@%s: %w: the one at %s was added before and has not started yet", node, addr, ErrInvalidRequest, m.Addr)
		case m.Addr == unreachable:
			return fmt.Errorf("add controller %d@%s: %w: controller %d has no address for others: give it a controller listener first", node, addr, ErrInvalidRequest, m.Node)
		}
	}
	c.o.Logger.Info("adding a controller", "node", node, "addr", addr)
	if _, err := c.etcd.client.MemberAddAsLearner(ctx, []string{peerURL(addr)}); err != nil {
		return fmt.Errorf("add controller %d@%s: %w", node, addr, err)
	}
	return nil
}

// removeMember takes a controller out, by its node or, if it never started, by its
// address. It need not be there any more. asked tells whether etcd was asked before,
// and may have done it.
func (c *Controller) removeMember(ctx context.Context, in *removeCall, asked *bool) error {
	members, err := c.members(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(members, func(m memberInfo) bool {
		return in.Addr != "" && m.Addr == in.Addr || in.Addr == "" && m.Node == in.Node
	})
	switch {
	case i < 0 && *asked:
		return nil
	case i < 0:
		return fmt.Errorf("remove controller: %w: there is none with that number or address", ErrInvalidRequest)
	case len(members) == 1:
		return fmt.Errorf("remove controller: %w: it is the only one", ErrInvalidRequest)
	}
	c.o.Logger.Warn("removing a controller", "node", members[i].Node, "addr", members[i].Addr)
	*asked = true
	if _, err := c.etcd.client.MemberRemove(ctx, members[i].ID); err != nil {
		return fmt.Errorf("remove controller at %s: %w", members[i].Addr, err)
	}
	return nil
}

const (
	promoteInterval = time.Second
	// promoteTimeout bounds one try; etcd refuses at once while a learner lags.
	promoteTimeout = 5 * time.Second
)

// promote makes controllers of learners that have caught up, from the active
// controller, until ctx ends.
func (c *Controller) promote(ctx context.Context) {
	for {
		if pause(ctx, c.o.Clock, promoteInterval); ctx.Err() != nil {
			return
		}
		if !c.Leading() {
			continue
		}
		for _, m := range membersOf(c.etcd.member.Server.Cluster().Members()) {
			if !m.Learner || !m.Started {
				continue
			}
			try, cancel := context.WithTimeout(ctx, promoteTimeout)
			if _, err := c.etcd.client.MemberPromote(try, m.ID); err != nil {
				c.o.Logger.Debug("a controller is not promoted yet", "node", m.Node, "error", err)
			} else {
				c.o.Logger.Info("a controller has caught up and votes from now on", "node", m.Node, "addr", m.Addr)
			}
			cancel()
		}
	}
}

// unreachable is the peer address of a member that was started without a listener.
const unreachable = "127.0.0.1:0"

// announce corrects this member's address in the store, if it has moved or had none.
func (c *Controller) announce(ctx context.Context) error {
	if c.o.Listen == "" || c.etcd.member == nil {
		return nil
	}
	id, want := uint64(c.etcd.member.Server.MemberID()), peerURL(c.o.Advertised)
	for _, m := range c.etcd.member.Server.Cluster().Members() {
		if uint64(m.ID) != id || slices.Equal(m.PeerURLs, []string{want}) {
			continue
		}
		c.o.Logger.Info("this controller has another address", "was", m.PeerURLs, "is", want)
		if _, err := c.etcd.client.MemberUpdate(ctx, id, []string{want}); err != nil {
			return fmt.Errorf("announce this controller's address %s: %w", c.o.Advertised, err)
		}
	}
	return nil
}

type (
	membersCall   struct{}
	membersAnswer struct {
		Members []memberInfo
		Active  int32 // node with the office, -1: none
		Err     *errorMessage
	}
	removeCall struct {
		Node int32
		Addr string // instead of Node, if not empty
	}
	removeAnswer struct{ Err *errorMessage }
)

// asMember calls fn with this node's member, within etcd's time.
func (c *Controller) asMember(ctx context.Context, fn func(context.Context) error) *errorMessage {
	if e := c.up.Load(); e == nil || e.member == nil {
		return encodeError(fmt.Errorf("%w: node %d has no part in the metadata, or is starting", errAskAnother, c.o.NodeID))
	}
	ctx, cancel := context.WithTimeout(ctx, c.o.RequestTimeout)
	defer cancel()
	return encodeError(insist(ctx, c.o.Clock, fn))
}

// wasRemoved tells whether the other controllers do not count this node among them:
// its directory is that of a member that is no more, and etcd only says that it stopped.
func (c *Controller) wasRemoved() bool {
	for _, addr := range c.o.others() {
		if a, err := c.identify(c.stopCtx, addr); err == nil && a.Member {
			return !slices.ContainsFunc(a.Members, func(m memberInfo) bool { return m.Node == c.o.NodeID })
		}
	}
	return false
}

// insistPause lies between two tries to change the members.
const insistPause = 200 * time.Millisecond

// insist tries fn again while etcd says that it cannot just now: a leader is being
// elected, or members have not been in touch for long enough. The last such answer
// is put into an operator's words.
func insist(ctx context.Context, clk clock.Clock, fn func(context.Context) error) error {
	for {
		err := fn(ctx)
		var store rpctypes.EtcdError
		if !errors.As(err, &store) || store.Code() != codes.Unavailable {
			return advise(err)
		}
		if pause(ctx, clk, insistPause); ctx.Err() != nil {
			return advise(err)
		}
	}
}

// advise says what an operator can do about a refusal of etcd's.
func advise(err error) error {
	var store rpctypes.EtcdError
	switch {
	case errors.Is(err, rpctypes.ErrUnhealthy):
		return fmt.Errorf("the controllers have to have been in touch with each other for 5 seconds: start the one that is missing, or remove it first (lockstep controllers list, remove): %w", err)
	case errors.Is(err, rpctypes.ErrMemberNotEnoughStarted):
		return fmt.Errorf("of the controllers that remained too few run to be a majority: start them first: %w", err)
	case errors.As(err, &store) && store.Code() == codes.Unavailable:
		return fmt.Errorf("%w: this one has found no majority of the controllers: %w", errAskAnother, err)
	}
	return err
}

func (c *Controller) answerMembers(ctx context.Context, _ *membersCall) *membersAnswer {
	a := &membersAnswer{Active: -1}
	a.Err = c.asMember(ctx, func(ctx context.Context) (err error) {
		if node, _, ok := c.Active(); ok {
			a.Active = node
		}
		a.Members, err = c.members(ctx)
		return err
	})
	return a
}

func (c *Controller) answerRemove(ctx context.Context, in *removeCall) *removeAnswer {
	asked := false
	return &removeAnswer{c.asMember(ctx, func(ctx context.Context) error { return c.removeMember(ctx, in, &asked) })}
}
