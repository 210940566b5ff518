package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
)

// Admin asks the controllers of a cluster about themselves, over their listener: it
// needs the cluster's secret and nothing else, above all no broker.
type Admin struct {
	nodes *nodes
	addrs []string
}

// Member is one controller.
type Member struct {
	Node    int32 // -1: it was added and has not started yet
	Addr    string
	Learner bool // it catches up, and does not vote yet
	Active  bool
}

// OpenAdmin takes the options of any node of the cluster.
func OpenAdmin(o Options) (*Admin, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	seal, err := o.sealer()
	if err != nil {
		return nil, err
	}
	id, err := newIdentity(seal.secret, o.NodeID, o.Rand)
	if err != nil {
		return nil, err
	}
	a := &Admin{nodes: newNodes(id), addrs: o.controllers()}
	if len(a.addrs) == 0 && o.Advertised != "" {
		a.addrs = []string{o.Advertised}
	}
	if o.External != nil || len(a.addrs) == 0 {
		return nil, errors.New("controllers: this configuration names no controllers that hold the metadata (controller.quorum.voters)")
	}
	return a, nil
}

// Close ends the connections.
func (a *Admin) Close() { a.nodes.close() }

// ask has the first controller answer that can be reached.
func (a *Admin) ask(ctx context.Context, method string, in, out any, refusal func() *errorMessage) error {
	var errs []error
	for _, addr := range a.addrs {
		err := a.nodes.call(ctx, addr, method, in, out)
		if err == nil {
			if err = decodeError(refusal()); !errors.Is(err, errAskAnother) {
				return err
			}
			errs = append(errs, fmt.Errorf("controller at %s: %w", addr, err))
			continue
		}
		if errors.Is(err, errNotSent) {
			// gRPC does not say why; the handshake does.
			conn, derr := dial(ctx, a.nodes.id, addr, protocolCalls)
			if derr != nil {
				err = derr
			} else {
				conn.Close()
			}
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// List answers the controllers by node.
func (a *Admin) List(ctx context.Context) ([]Member, error) {
	var answer membersAnswer
	if err := a.ask(ctx, "Members", &membersCall{}, &answer, func() *errorMessage { return answer.Err }); err != nil {
		return nil, err
	}
	members := make([]Member, len(answer.Members))
	for i, m := range answer.Members {
		members[i] = Member{m.Node, m.Addr, m.Learner, m.Node >= 0 && m.Node == answer.Active}
	}
	return members, nil
}

// Add announces a controller, NODE@HOST:PORT, that is about to be started. One that
// names the others in its configuration does that by itself.
func (a *Admin) Add(ctx context.Context, voter string) error {
	v, err := parseVoter(voter)
	if err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	var answer joinAnswer
	return a.ask(ctx, "Join", &joinCall{v.ID, v.Addr}, &answer, func() *errorMessage { return answer.Err })
}

// Remove takes a controller out, by the number of its node or by the host:port of its
// listener, whether it is there or not.
func (a *Admin) Remove(ctx context.Context, which string) error {
	in := &removeCall{Addr: which}
	if n, err := strconv.ParseInt(which, 10, 32); err == nil {
		in = &removeCall{Node: int32(n)}
	} else if _, _, err := net.SplitHostPort(which); err != nil {
		return fmt.Errorf("controllers: %q is neither the number of a node nor HOST:PORT", which)
	}
	var answer removeAnswer
	return a.ask(ctx, "Remove", in, &answer, func() *errorMessage { return answer.Err })
}
