package authz

import (
	"net/netip"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// index is the ACLs of one revision, arranged for the question "which are about
// this resource and this client?": a handful of lookups by key, however many
// ACLs there are, and no allocation.
type index struct {
	revision int64
	types    [metadata.ACLClusterMirror + 1]typeIndex
}

// typeIndex is the ACLs of one resource type.
type typeIndex struct {
	literal  map[string]*grants
	wildcard *grants // the literal pattern *; nil: none
	prefixed map[string]*grants
	lengths  []int // of the prefixes, each once, ascending
}

// grants is what one resource pattern says, by principal.
type grants struct{ byPrincipal map[Principal]*hosts }

// hosts is what one pattern says to one principal, by host.
type hosts struct {
	every  mask // host *
	byHost map[string]mask
}

// mask is what is given and what is taken, as sets that may hold All.
type mask struct{ allow, deny Operations }

func (m *mask) merge(o mask) { m.allow, m.deny = m.allow|o.allow, m.deny|o.deny }

// allows applies Kafka's rules: a denial wins, and it denies what it names; what
// is allowed brings the right to see along.
func (m mask) allows(op Operation) bool {
	if m.deny.Has(op) || m.deny.Has(All) {
		return false
	}
	return m.allow&implying[op] != 0
}

// implying has the operations that give each one.
var implying = func() (t [metadata.ACLTwoPhaseCommit + 1]Operations) {
	for op := All; op.Valid(); op++ {
		t[op] = metadata.OperationsOf(All, op)
	}
	t[Describe] |= metadata.OperationsOf(Read, Write, Delete, Alter)
	t[DescribeConfigs] |= metadata.OperationsOf(AlterConfigs)
	return t
}()

func newIndex(img *metadata.Image) *index {
	x := &index{revision: img.ACLRevision}
	for a := range img.ACLs() {
		p, ok := ParsePrincipal(a.Principal)
		if !ok || !a.ResourceType.Valid() {
			continue // the controller stores no such ACL
		}
		h := x.types[a.ResourceType].pattern(a).of(p)
		m := mask{}
		if a.Permission == metadata.ACLDeny {
			m.deny = 1 << a.Operation
		} else {
			m.allow = 1 << a.Operation
		}
		h.add(a.Host, m)
	}
	return x
}

// pattern is the place of an ACL's resource pattern.
func (t *typeIndex) pattern(a metadata.ACL) *grants {
	if a.Pattern == metadata.ACLLiteral && a.ResourceName == metadata.ACLWildcard {
		if t.wildcard == nil {
			t.wildcard = newGrants()
		}
		return t.wildcard
	}
	names := &t.literal
	if a.Pattern == metadata.ACLPrefixed {
		names = &t.prefixed
		if n, found := slices.BinarySearch(t.lengths, len(a.ResourceName)); !found {
			t.lengths = slices.Insert(t.lengths, n, len(a.ResourceName))
		}
	}
	if *names == nil {
		*names = map[string]*grants{}
	}
	g := (*names)[a.ResourceName]
	if g == nil {
		g = newGrants()
		(*names)[a.ResourceName] = g
	}
	return g
}

func newGrants() *grants { return &grants{byPrincipal: map[Principal]*hosts{}} }

func (g *grants) of(p Principal) *hosts {
	h := g.byPrincipal[p]
	if h == nil {
		h = new(hosts)
		g.byPrincipal[p] = h
	}
	return h
}

func (h *hosts) add(host string, m mask) {
	if host == metadata.ACLWildcard {
		h.every.merge(m)
		return
	}
	if h.byHost == nil {
		h.byHost = map[string]mask{}
	}
	host = canonicalHost(host)
	sum := h.byHost[host]
	sum.merge(m)
	h.byHost[host] = sum
}

// canonicalHost spells an address as connections are spelled, because there are
// many ways to write one of IPv6.
func canonicalHost(host string) string {
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().WithZone("").String()
	}
	return host
}

// match gathers what all patterns that fit the name say to p at host. found is
// false when there is no such pattern, whomever it speaks to.
func (x *index) match(p Principal, host string, res ResourceType, name string) (m mask, found bool) {
	if !res.Valid() {
		return m, false
	}
	t := &x.types[res]
	found = t.matchPrefixes(&m, p, host, name)
	for _, g := range [2]*grants{t.wildcard, t.literal[name]} {
		if g != nil {
			g.say(&m, p, host)
			found = true
		}
	}
	return m, found
}

// matchPrefixes gathers what the prefixes of name say.
func (t *typeIndex) matchPrefixes(m *mask, p Principal, host, name string) (found bool) {
	for _, n := range t.lengths {
		if n > len(name) {
			break
		}
		if g := t.prefixed[name[:n]]; g != nil {
			g.say(m, p, host)
			found = true
		}
	}
	return found
}

// say adds what g says to p itself and to everybody of its type.
func (g *grants) say(m *mask, p Principal, host string) {
	for _, who := range [2]Principal{p, {p.Type, metadata.ACLWildcard}} {
		if h := g.byPrincipal[who]; h != nil {
			m.merge(h.every)
			m.merge(h.byHost[host])
		}
	}
}

// anyOf tells whether there is a resource of the type on which p may do op. A
// pattern that allows counts unless another one denies all that it covers:
// whether a resource of that name exists does not matter, as with Kafka.
func (x *index) anyOf(p Principal, host string, op Operation, res ResourceType, allowIfNoACL bool) bool {
	if !res.Valid() {
		return false
	}
	t := &x.types[res]
	var all mask
	if t.wildcard != nil {
		t.wildcard.say(&all, p, host)
	}
	switch {
	case all.deny&metadata.OperationsOf(op, All) != 0:
		return false
	case all.allows(op), allowIfNoACL && t.wildcard == nil:
		return true // the second: some name is under no pattern
	}
	for name := range t.literal {
		if m, _ := x.match(p, host, res, name); m.allows(op) {
			return true
		}
	}
	for prefix := range t.prefixed {
		// A literal denial of the prefix itself leaves the longer names.
		var m mask
		if t.matchPrefixes(&m, p, host, prefix); m.allows(op) {
			return true
		}
	}
	return false
}
