package controller

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"
)

// A proxy, or a firewall that forgot a connection, may keep one open and deliver nothing
// on it in one direction. etcd's members say something on each of their streams every
// 1.7 s and mean to give up one that is silent for 5 s, but the timeout does not reach
// the connections (it is set on Dial, and net/http prefers the DialContext beside it),
// and TCP's keep-alive asks only the proxy. The member then does not hear the other
// until that one writes so much that buffers fill, and when a third fails nobody is
// elected. So silent connections to other controllers are ended here: etcd opens new
// ones. Those that we speak gRPC on are asked for a sign of life every 5 s, so that only
// broken ones are that silent; idle ones are opened again when they are needed.

const (
	// silenceLimit and silenceInterval together bound the silence to 10 s.
	silenceLimit    = 8 * time.Second
	silenceInterval = 2 * time.Second
	// lookupTimeout bounds the look for a member's address.
	lookupTimeout = time.Second
)

// endSilence ends silent connections to the other controllers, until ctx ends.
func (c *Controller) endSilence(ctx context.Context) {
	for {
		if pause(ctx, c.o.Clock, silenceInterval); ctx.Err() != nil {
			return
		}
		self := uint64(c.etcd.member.Server.MemberID())
		for _, m := range membersOf(c.etcd.member.Server.Cluster().Members()) {
			if m.ID == self {
				continue
			}
			at := resolve(ctx, m.Addr)
			if n := closeSilent(func(peer netip.AddrPort) bool { return slices.Contains(at, peer) }, silenceLimit); n > 0 {
				c.o.Logger.Warn("connections to another controller were silent and are opened anew", "node", m.Node, "addr", m.Addr, "connections", n, "silent_for", silenceLimit.String())
			}
		}
	}
}

// resolve answers the addresses of a member; none if they cannot be found now.
func resolve(ctx context.Context, addr string) []netip.AddrPort {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil
	}
	all := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		all[i] = netip.AddrPortFrom(ip.Unmap(), uint16(n))
	}
	return all
}
