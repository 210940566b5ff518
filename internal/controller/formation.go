package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

// How a controller with an empty directory finds its place. It asks the others what
// they are:
//
//   - one of them is in a cluster: this node joins it, as a learner that the active
//     controller promotes when it has caught up. If the cluster expects this node
//     since it was founded, it simply comes late;
//   - all of controller.quorum.voters are as new as this node and name the same
//     voters: they found a cluster together. All have to be there for that once:
//     a majority could not tell whether the missing one belongs to a cluster whose
//     successor they would become by mistake;
//   - nobody else is named: it founds a cluster alone.

// memberInfo is one controller, as members know each other.
type memberInfo struct {
	ID      uint64
	Node    int32 // -1: it has not started yet
	Addr    string
	Learner bool
	Started bool // it once was a working member
}

type (
	identifyCall   struct{ Node int32 }
	identifyAnswer struct {
		Node int32
		// Fresh: it belongs to no cluster, or is about to found one.
		Fresh bool
		// Member: it belongs to a cluster that works, whose members these are.
		Member    bool
		Members   []memberInfo `json:",omitempty"`
		ClusterID string       `json:",omitempty"`
		// Voters are those of its configuration.
		Voters string
		// Restores is the id of a backup with which it wants to found.
		Restores string `json:",omitempty"`
	}
	joinCall struct {
		Node int32
		Addr string
	}
	joinAnswer struct {
		Members []memberInfo
		Err     *errorMessage
	}
)

const (
	formationPause = 200 * time.Millisecond
	formationTell  = 10 * time.Second
	// identifyTimeout bounds one look at another node, whose machine may be gone.
	identifyTimeout = 2 * time.Second
)

func votersText(voters []Voter) string {
	v := slices.Clone(voters)
	slices.SortFunc(v, func(a, b Voter) int { return int(a.ID) - int(b.ID) })
	var b strings.Builder
	for i, one := range v {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(one.String())
	}
	return b.String()
}

func peerURL(addr string) string { return (&url.URL{Scheme: "https", Host: addr}).String() }

// form answers how this node's member starts.
func (c *Controller) form(ctx context.Context) (formation, error) {
	others := c.o.others()
	switch {
	case len(others) == 0:
		return formation{}, nil
	case hasMember(c.o.Dir):
		return formation{}, c.checkOthers(ctx, others)
	}
	told := c.o.Clock.Now().Add(-formationTell / 2)
	for {
		f, wait, err := c.consider(ctx, others)
		if err != nil || wait == "" {
			return f, err
		}
		if now := c.o.Clock.Now(); now.Sub(told) >= formationTell {
			told = now
			c.o.Logger.Info("waiting for the other controllers", "reason", wait)
		}
		if pause(ctx, c.o.Clock, formationPause); ctx.Err() != nil {
			return formation{}, fmt.Errorf("the other controllers: %s: %w", wait, ctx.Err())
		}
	}
}

// checkOthers fails if nobody else has the key that this node has: etcd's members
// would not find each other, and not say why.
func (c *Controller) checkOthers(ctx context.Context, others []string) error {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	errs := make([]error, len(others))
	var wg sync.WaitGroup
	for i, addr := range others {
		wg.Go(func() {
			conn, err := dial(ctx, c.id, addr, protocolCalls)
			if errs[i] = err; err == nil {
				conn.Close()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if !errors.Is(err, errOtherKey) {
			return nil
		}
	}
	return errors.Join(errs...)
}

// consider asks the others once. A text says what has to be waited for.
func (c *Controller) consider(ctx context.Context, others []string) (f formation, wait string, err error) {
	fresh, foreign, restores := 0, 0, c.stagedID()
	var last error
	for _, addr := range others {
		a, err := c.identify(ctx, addr)
		switch {
		case errors.Is(err, errOtherKey):
			foreign++
			last = err
		case err != nil:
			wait, last = err.Error(), err
		case a.Member:
			return c.enter(ctx, addr, a)
		case !a.Fresh:
			wait = fmt.Sprintf("the controller at %s waits for the majority of its cluster", addr)
		case len(c.o.Voters) > 1 && a.Voters != votersText(c.o.Voters):
			return f, "", fmt.Errorf("controller.quorum.voters: %q here, %q at %s; the same is needed on all controllers", votersText(c.o.Voters), a.Voters, addr)
		case a.Restores != "" && restores != "" && a.Restores != restores:
			return f, "", fmt.Errorf("the controller at %s, or another one, has another backup to restore than this node: %s and %s", addr, a.Restores, restores)
		default:
			fresh++
			restores = max(restores, a.Restores)
		}
	}
	switch {
	case foreign == len(others):
		return f, "", last
	case fresh == len(others) && len(c.o.Voters) > 1:
		c.o.Logger.Info("founding a cluster", "controllers", votersText(c.o.Voters))
		var members []string
		for _, v := range c.o.Voters {
			members = append(members, memberName(v.ID)+"="+peerURL(v.Addr))
		}
		return formation{members: strings.Join(members, ",")}, "", beginFounding(c.o.Dir, restores)
	case fresh == len(others):
		return f, "none of controller.quorum.bootstrap.servers is in a cluster yet; name all controllers in controller.quorum.voters to found one", nil
	case wait == "":
		wait = last.Error()
	}
	return f, wait, nil
}

// identify asks one node what it is. Its first handshake shows whether it is of
// this cluster, which gRPC would hide.
func (c *Controller) identify(ctx context.Context, addr string) (*identifyAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	var a identifyAnswer
	if err := c.nodes.call(ctx, addr, "Identify", &identifyCall{c.o.NodeID}, &a); err != nil {
		if conn, derr := dial(ctx, c.id, addr, protocolCalls); derr != nil {
			return nil, derr
		} else {
			conn.Close()
		}
		return nil, err
	}
	return &a, nil
}

// enter finds this node's place in a cluster that exists.
func (c *Controller) enter(ctx context.Context, addr string, a *identifyAnswer) (f formation, wait string, err error) {
	members := a.Members
	i := slices.IndexFunc(members, func(m memberInfo) bool { return m.Addr == c.o.Advertised })
	if j := slices.IndexFunc(members, func(m memberInfo) bool { return m.Node == c.o.NodeID }); j >= 0 && j != i {
		return f, "", fmt.Errorf("node %d is a controller of this cluster at %s, not at %s: remove it first (lockstep controllers remove %d), or give this node its address", c.o.NodeID, members[j].Addr, c.o.Advertised, c.o.NodeID)
	}
	switch {
	case i >= 0 && members[i].Started:
		return f, "", fmt.Errorf("%s is empty, but node %d was a controller of this cluster before: it must not come back without its memory; remove it first (lockstep controllers remove %d)", c.o.Dir, c.o.NodeID, c.o.NodeID)
	case i < 0:
		c.o.Logger.Info("joining a cluster", "cluster_id", a.ClusterID, "through", addr)
		var in joinAnswer
		if err := c.nodes.call(ctx, addr, "Join", &joinCall{c.o.NodeID, c.o.Advertised}, &in); err != nil {
			return f, err.Error(), nil
		}
		if err := decodeError(in.Err); err != nil {
			return f, "join through " + addr + ": " + err.Error(), nil
		}
		members = in.Members
	}
	if behind := c.behind(ctx, members); behind != "" {
		return f, behind, nil
	}
	var names []string
	for _, m := range members {
		name := memberName(m.Node)
		switch {
		case m.Addr == c.o.Advertised:
			name = memberName(c.o.NodeID)
		case m.Node < 0: // another one that joins: any name that is nobody else's
			name = fmt.Sprintf("joining-%x", m.ID)
		}
		names = append(names, name+"="+peerURL(m.Addr))
	}
	return formation{members: strings.Join(names, ","), existing: true}, "", nil
}

// behind names a member that runs and has not heard of all the others yet, as one does
// that joined a moment ago itself. etcd asks any of them who is there before it starts a
// new member, and gives up where the answer is another than what that was told
// ("member count is unequal"). Those that do not answer us are not asked.
func (c *Controller) behind(ctx context.Context, members []memberInfo) string {
	for _, m := range members {
		if m.Addr == c.o.Advertised {
			continue
		}
		a, err := c.identify(ctx, m.Addr)
		switch {
		case err != nil:
		case !a.Member:
			return fmt.Sprintf("the controller at %s is starting", m.Addr)
		case !sameMembers(a.Members, members):
			return fmt.Sprintf("the controller at %s has not heard of all the others yet", m.Addr)
		}
	}
	return ""
}

// sameMembers tells whether two lists name the same members at the same addresses.
func sameMembers(a, b []memberInfo) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(m memberInfo) bool {
		return !slices.ContainsFunc(b, func(o memberInfo) bool { return o.ID == m.ID && o.Addr == m.Addr })
	})
}

// While a cluster is being founded, a file says so: a node that dies in between has
// a directory with a member, and must not be taken for one of an old cluster.
const foundingFile = "founding"

func isFounding(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, foundingFile))
	return err == nil
}

// foundingRestores tells whether a cluster is being founded with a backup.
func foundingRestores(dir string) bool {
	id, err := os.ReadFile(filepath.Join(dir, foundingFile))
	return err == nil && len(id) > 0
}

func beginFounding(dir, restores string) error {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, foundingFile), []byte(restores), 0o600)
	}
	if err != nil {
		return fmt.Errorf("metadata directory: %w", err)
	}
	return nil
}

func endFounding(dir string) error {
	if err := os.Remove(filepath.Join(dir, foundingFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("metadata directory: %w", err)
	}
	return nil
}

// answerIdentify says what this node is.
func (c *Controller) answerIdentify(_ context.Context, _ *identifyCall) *identifyAnswer {
	a := &identifyAnswer{Node: c.o.NodeID, Voters: votersText(c.o.Voters), Fresh: !hasMember(c.o.Dir) || isFounding(c.o.Dir), Restores: c.stagedID()}
	if e := c.up.Load(); e != nil && e.member != nil {
		a.Member, a.Members, a.ClusterID = true, membersOf(e.member.Server.Cluster().Members()), c.Image().ClusterID
	}
	return a
}

func membersOf(of []*membership.Member) []memberInfo {
	members := make([]memberInfo, len(of))
	for i, m := range of {
		members[i] = member(uint64(m.ID), m.Name, m.PeerURLs, m.IsLearner, len(m.ClientURLs) > 0)
	}
	return members
}

func member(id uint64, name string, peers []string, learner, started bool) memberInfo {
	m := memberInfo{ID: id, Node: -1, Learner: learner, Started: started}
	if n, ok := parseMemberName(name); ok {
		m.Node = n
	}
	if len(peers) > 0 {
		if u, err := url.Parse(peers[0]); err == nil {
			m.Addr = u.Host
		}
	}
	return m
}

// answerJoin adds a node as a learner. One that asks twice is one that did not hear
// the first answer.
func (c *Controller) answerJoin(ctx context.Context, in *joinCall) *joinAnswer {
	a := new(joinAnswer)
	a.Err = c.asMember(ctx, func(ctx context.Context) (err error) {
		if err = c.addMember(ctx, in.Node, in.Addr); err == nil {
			a.Members, err = c.members(ctx)
		}
		return err
	})
	return a
}
