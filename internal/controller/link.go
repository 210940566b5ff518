package controller

import (
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// A node that stops without a word is missed after seconds: the lease of its
// office ends, or its session. But when a process is killed, its connections break
// at once and new ones are refused, because the machine under it lives. That is
// proof enough to go on without it: its lease is revoked, and the session of its
// broker ends. Should the proof be wrong, because a firewall refuses in the
// machine's name, a controller loses its office and is fenced; nothing is lost.

const (
	// refusals in a row, refusalPause apart, are taken for a process that is gone.
	refusals     = 2
	refusalPause = 50 * time.Millisecond
	// stayPause is between two tries to stay with a controller.
	stayPause = 50 * time.Millisecond
	// deposeTry bounds one try to end a candidacy. The node that is gone may well
	// have led etcd: what is proposed before the others notice is sent to it and lost,
	// and nobody says so. News of another leader end the try too.
	deposeTry = 300 * time.Millisecond
)

// keepTouch stays with the active controller, whoever that is, until ctx ends.
func (c *Controller) keepTouch(ctx context.Context) {
	for ctx.Err() == nil {
		changed := c.changed()
		standing, _ := c.follower.office()
		holder, ok := standing.holder()
		if !ok || holder.addr == "" || holder.node == c.o.NodeID {
			c.waitChange(ctx, changed)
			continue
		}
		err := c.stayWith(ctx, holder)
		if ctx.Err() != nil {
			return
		}
		if !c.holds(holder) {
			c.checkPredecessor(ctx, holder)
		} else {
			c.o.Logger.Warn("connection to the active controller broke", "node", holder.node, "addr", holder.addr, "error", err)
			if c.isGone(ctx, holder.node, holder.addr) {
				c.depose(ctx, holder)
			}
		}
		pause(ctx, c.o.Clock, stayPause)
	}
}

// checkPredecessor asks a node whose office ended whether it is there. If it is not,
// because it was cut off or stopped, its lease ran out unheard, and whoever comes into
// office need not give its broker a whole session more.
func (c *Controller) checkPredecessor(ctx context.Context, was contender) {
	try, cancel := context.WithTimeout(ctx, afterLoss)
	defer cancel()
	var a identifyAnswer
	if err := c.nodes.call(try, was.addr, "Identify", &identifyCall{c.o.NodeID}, &a); err == nil || ctx.Err() != nil {
		return
	}
	c.lose(loss{broker: was.node})
	c.isGone(ctx, was.node, was.addr)
}

// lose has whoever is in office here know, or comes into it: another node may have ended
// the candidacy of the one that is lost, and this one have its office already.
func (c *Controller) lose(l loss) {
	c.note(l)
	c.tell(l)
}

// isGone tells whether the process of a node is gone, and has its broker's session end.
// A process that comes after this has begun is another one.
func (c *Controller) isGone(ctx context.Context, node int32, addr string) bool {
	l := loss{broker: node}
	if b := c.Image().Broker(node); b != nil {
		l.gone = b.Epoch
	}
	if !gone(ctx, addr, c.o) {
		return false
	}
	c.lose(l)
	return true
}

// holds tells whether that very candidacy still has the office.
func (c *Controller) holds(was contender) bool {
	standing, _ := c.follower.office()
	is, ok := standing.holder()
	return ok && is.key == was.key && is.created == was.created
}

// stayWith stays with a controller as long as it holds the office and is there.
func (c *Controller) stayWith(ctx context.Context, holder contender) error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	defer func() { cancel(); <-done }()
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			_, moved := c.follower.office()
			if !c.holds(holder) {
				cancel()
				return
			}
			select {
			case <-moved:
			case <-ctx.Done():
			}
		}
	}()
	return c.nodes.stay(ctx, holder.addr, &stayCall{c.o.NodeID, c.o.Advertised})
}

// gone tells whether the machine at addr says that no process listens there.
func gone(ctx context.Context, addr string, o Options) bool {
	for i := range refusals {
		if i > 0 {
			pause(ctx, o.Clock, refusalPause)
		}
		d := net.Dialer{Timeout: time.Second}
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			conn.Close()
			return false
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return false
		}
	}
	return ctx.Err() == nil
}

// depose ends a candidacy whose process is gone.
func (c *Controller) depose(ctx context.Context, who contender) {
	c.o.Logger.Warn("a controller is gone: its port refuses connections; ending its candidacy", "node", who.node, "addr", who.addr)
	for {
		try, cancel := untilNewLeader(ctx, deposeTry, c.etcd.leaderChanged())
		_, err := c.etcd.client.Revoke(try, clientv3.LeaseID(who.lease))
		cancel()
		if err == nil || errors.Is(err, rpctypes.ErrLeaseNotFound) || !c.stands(who) {
			return
		}
		if ctx.Err() != nil {
			if c.stopCtx.Err() == nil {
				c.o.Logger.Warn("the candidacy of a controller that is gone ends with its lease", "node", who.node, "error", err)
			}
			return
		}
		pause(ctx, c.o.Clock, stayPause)
	}
}

// stands tells whether that very candidacy is still there, in office or in line.
func (c *Controller) stands(was contender) bool {
	standing, _ := c.follower.office()
	return slices.ContainsFunc(standing.of(was.node), func(is contender) bool { return is.key == was.key && is.created == was.created })
}

// answerStay keeps another node's stream until it breaks.
func (c *Controller) answerStay(in *stayCall, stream grpc.ServerStream) error {
	select {
	case <-stream.Context().Done():
	case <-c.stopCtx.Done():
		return nil
	}
	c.tell(loss{broker: in.Node})
	if in.Addr == "" || !c.Leading() || !c.isGone(c.stopCtx, in.Node, in.Addr) {
		return nil
	}
	// Its own candidacy would be next in line, for as long as its lease lasts.
	standing, _ := c.follower.office()
	for _, who := range standing.of(in.Node) {
		c.depose(c.stopCtx, who)
	}
	return nil
}
