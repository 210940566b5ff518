package authz

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Options configures an Authorizer.
type Options struct {
	// SuperUsers may do everything, whatever ACLs say (super.users).
	SuperUsers []Principal
	// AllowIfNoACL opens resources that no ACL is about
	// (allow.everyone.if.no.acl.found). Otherwise they are closed.
	AllowIfNoACL bool
}

// ParseSuperUsers reads super.users: principals divided by semicolons, because
// a distinguished name has commas.
func ParseSuperUsers(s string) ([]Principal, error) {
	var out []Principal
	for _, f := range strings.Split(s, ";") {
		if f = strings.TrimSpace(f); f == "" {
			continue
		}
		p, ok := ParsePrincipal(f)
		if !ok {
			return nil, fmt.Errorf("super.users: %q is not of the form Type:Name", f)
		}
		out = append(out, p)
	}
	return out, nil
}

// Authorizer decides by the ACLs of an image. Any goroutine may ask it.
type Authorizer struct {
	super        map[Principal]bool
	allowIfNoACL bool

	index   atomic.Pointer[index]
	indexMu sync.Mutex // held while an index is built: who waits needs it
}

// New makes an Authorizer.
func New(o Options) *Authorizer {
	a := &Authorizer{super: make(map[Principal]bool, len(o.SuperUsers)), allowIfNoACL: o.AllowIfNoACL}
	for _, p := range o.SuperUsers {
		a.super[p] = true
	}
	return a
}

// Allowed tells whether p, connected from host, may do op on the resource.
func (a *Authorizer) Allowed(img *metadata.Image, p Principal, host string, op Operation, res ResourceType, name string) bool {
	if a.super[p] {
		return true
	}
	m, found := a.at(img).match(p, host, res, name)
	if !found {
		return a.allowIfNoACL
	}
	return m.allows(op)
}

// AllowedByType tells whether p may do op on any resource of the type, which
// is what an idempotent producer needs that has no right on the cluster
// (KIP-679).
func (a *Authorizer) AllowedByType(img *metadata.Image, p Principal, host string, op Operation, res ResourceType) bool {
	if a.super[p] {
		return true
	}
	return a.at(img).anyOf(p, host, op, res, a.allowIfNoACL)
}

// Operations is what p may do with the resource, of the operations that its
// type has.
func (a *Authorizer) Operations(img *metadata.Image, p Principal, host string, res ResourceType, name string) Operations {
	if a.super[p] {
		return res.Operations()
	}
	m, found := a.at(img).match(p, host, res, name)
	if !found {
		if a.allowIfNoACL {
			return res.Operations()
		}
		return 0
	}
	var out Operations
	for op := metadata.ACLRead; op.Valid(); op++ {
		if res.Operations().Has(op) && m.allows(op) {
			out |= 1 << op
		}
	}
	return out
}

// at is the index of the image's ACLs. An older image than the last one asked
// about keeps its own answer, but is not kept.
func (a *Authorizer) at(img *metadata.Image) *index {
	if x := a.index.Load(); x != nil && x.revision == img.ACLRevision {
		return x
	}
	a.indexMu.Lock()
	defer a.indexMu.Unlock()
	cur := a.index.Load()
	if cur != nil && cur.revision == img.ACLRevision {
		return cur
	}
	x := newIndex(img)
	if cur == nil || cur.revision < x.revision {
		a.index.Store(x)
	}
	return x
}
