package controller

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Voter is one controller that a cluster begins with.
type Voter struct {
	ID   int32
	Addr string // host:port of its controller listener
}

func (v Voter) String() string { return strconv.Itoa(int(v.ID)) + "@" + v.Addr }

// ParseVoters reads ID@HOST:PORT,…, as in controller.quorum.voters.
func ParseVoters(text string) ([]Voter, error) {
	var voters []Voter
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		v, err := parseVoter(item)
		if err != nil {
			return nil, err
		}
		for _, o := range voters {
			if o.ID == v.ID || o.Addr == v.Addr {
				return nil, fmt.Errorf("%q: the id or the address stands there twice", item)
			}
		}
		voters = append(voters, v)
	}
	return voters, nil
}

func parseVoter(item string) (Voter, error) {
	idText, addr, ok := strings.Cut(item, "@")
	id, err := strconv.ParseInt(idText, 10, 32)
	if !ok || err != nil || id < 0 {
		return Voter{}, fmt.Errorf("%q is not ID@HOST:PORT", item)
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return Voter{}, fmt.Errorf("%q is not ID@HOST:PORT", item)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return Voter{}, fmt.Errorf("%q has no valid port", item)
	}
	return Voter{int32(id), addr}, nil
}

// remote says that the metadata is not in this process.
func (o *Options) remote() bool { return o.BrokerOnly || o.External != nil }

// several says that this node is one of several, or wants to be reachable for more.
func (o *Options) several() bool {
	return len(o.others()) > 0 || o.BrokerOnly || o.External != nil
}

// others are the addresses of controllers that are not this node.
func (o *Options) others() []string {
	var mine []string
	if !o.BrokerOnly {
		mine = append(mine, o.Advertised)
	}
	for _, v := range o.Voters {
		if v.ID == o.NodeID {
			mine = append(mine, v.Addr)
		}
	}
	return slices.DeleteFunc(o.controllers(), func(a string) bool { return slices.Contains(mine, a) })
}

// controllers are the addresses at which a cluster can be found.
func (o *Options) controllers() []string {
	addrs := slices.Clone(o.Bootstrap)
	for _, v := range o.Voters {
		if !slices.Contains(addrs, v.Addr) {
			addrs = append(addrs, v.Addr)
		}
	}
	return addrs
}

// minSecret is how long a secret has to be: whoever guesses it is a controller.
const minSecret = 16

// checkCluster finds faults of what makes this node one of several.
func (o *Options) checkCluster() []error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Secret != "" && len(o.Secret) < minSecret {
		fault("cluster.secret: has %d characters, at least %d are needed", len(o.Secret), minSecret)
	}
	if o.several() && o.Secret == "" {
		errs = append(errs, errors.New("cluster.secret: required where a cluster has several nodes; the same on all of them"))
	}
	if len(o.Voters) > 1 && o.External != nil {
		fault("controller.quorum.voters: the metadata is in metadata.etcd.endpoints; name no voters")
	}
	if n := len(o.Voters); n > 1 && n%2 == 0 {
		fault("controller.quorum.voters: %d controllers survive no more failures than %d do; name 3 or 5", n, n-1)
	}
	i := slices.IndexFunc(o.Voters, func(v Voter) bool { return v.ID == o.NodeID })
	switch {
	case o.BrokerOnly && i >= 0:
		fault("controller.quorum.voters: names this node (node.id=%d), which is no controller by process.roles", o.NodeID)
	case !o.BrokerOnly && len(o.Voters) > 0 && i < 0 && len(o.Bootstrap) == 0:
		fault("controller.quorum.voters: does not name this node (node.id=%d)", o.NodeID)
	}
	if o.BrokerOnly && o.External == nil && len(o.controllers()) == 0 {
		fault("controller.quorum.voters or controller.quorum.bootstrap.servers: required where process.roles is broker")
	}
	if !o.BrokerOnly && o.several() && o.Listen == "" {
		fault("controller.listener.names: a controller of a cluster needs a listener of that name in listeners")
	}
	if o.External != nil && len(o.External.Endpoints) == 0 {
		fault("metadata.etcd.endpoints: empty")
	}
	if o.Tick < 10*time.Millisecond || o.Tick > 5*time.Second {
		fault("metadata.etcd.heartbeat.interval.ms: %d is not between 10 and 5000", o.Tick/time.Millisecond)
	}
	return errs
}
