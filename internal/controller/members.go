package controller

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
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
