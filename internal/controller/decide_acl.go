package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Bounds of ACLs. Everybody who may alter the cluster may add them, every broker
// keeps them in memory, and each is looked at when an index of them is made.
const (
	maxACLs    = 50_000
	maxACLText = 1024 // bytes of a name, a principal or a host
)

// ErrTooManyACLs is a creation beyond maxACLs.
var ErrTooManyACLs = errors.New("too many ACLs")

// decideCreateACL adds one ACL. One that exists already is a success, as in Kafka; if
// a mirror has copied it here, it is this cluster's own from now on, and stays.
func decideCreateACL(img *metadata.Image, c createACL) ([]Change, error) {
	if err := checkACL(c.ACL); err != nil {
		return nil, err
	}
	if img.HasACL(c.ACL) && len(img.ACLSources(c.ACL)) == 0 {
		return nil, nil
	}
	if err := checkNumACLs(img, c.ACL); err != nil {
		return nil, err
	}
	return []Change{putACL{ACL: c.ACL}}, nil
}

func checkNumACLs(img *metadata.Image, a metadata.ACL) error {
	if !img.HasACL(a) && img.NumACLs() >= maxACLs {
		return fmt.Errorf("%w: there are %d, the most that are kept", ErrTooManyACLs, maxACLs)
	}
	return nil
}

// CopyACL is what a mirror has seen of one ACL of its source.
type CopyACL struct {
	metadata.ACLSource
	ACL  metadata.ACL
	Gone bool // the source has it no more; Clusters do not matter
}

// Bounds of what a source says of where an ACL comes from.
const (
	maxACLClusters    = 32
	maxACLClusterText = 128
)

// decideCopyACL brings one ACL to what the mirror's source has (W56, W57). What is
// this cluster's own stays as it is, and an ACL that another mirror has copied too
// goes when the last of their sources has it no more.
func decideCopyACL(img *metadata.Image, c copyACL) ([]Change, error) {
	if err := requireMirror(img, c.Mirror); err != nil {
		return nil, err
	}
	if err := checkACL(c.ACL); err != nil {
		return nil, err
	}
	switch {
	case c.ACL.ResourceType == metadata.ACLClusterMirror:
		return nil, fmt.Errorf("%w: ACL: those of mirrors are not copied", ErrInvalidRequest)
	case len(c.Clusters) > maxACLClusters:
		return nil, fmt.Errorf("%w: ACL: it comes from %d clusters, more than %d", ErrInvalidRequest, len(c.Clusters), maxACLClusters)
	}
	for _, id := range c.Clusters {
		if len(id) > maxACLClusterText || !utf8.ValidString(id) {
			return nil, fmt.Errorf("%w: ACL: cluster id %.*q", ErrInvalidRequest, maxACLClusterText, id)
		}
	}
	sources := img.ACLSources(c.ACL)
	if img.HasACL(c.ACL) && len(sources) == 0 {
		return nil, nil
	}
	at, known := slices.BinarySearchFunc(sources, c.Mirror, func(s metadata.ACLSource, name string) int { return strings.Compare(s.Mirror, name) })
	if c.Gone {
		switch {
		case !known:
			return nil, nil
		case len(sources) == 1:
			return []Change{deleteACL{c.ACL}}, nil
		}
		return []Change{putACL{c.ACL, slices.Delete(slices.Clone(sources), at, at+1)}}, nil
	}
	if err := checkNumACLs(img, c.ACL); err != nil {
		return nil, err
	}
	source := metadata.ACLSource{Mirror: c.Mirror, Clusters: slices.Compact(slices.Sorted(slices.Values(c.Clusters)))}
	if !known {
		return []Change{putACL{c.ACL, slices.Insert(slices.Clone(sources), at, source)}}, nil
	}
	if sources[at].Equal(source) {
		return nil, nil
	}
	sources = slices.Clone(sources)
	sources[at] = source
	return []Change{putACL{c.ACL, sources}}, nil
}

// keepACLs makes this cluster's own what a mirror that is deleted has copied: clients
// live on it after a failover.
func keepACLs(img *metadata.Image, mirror string) (changes []Change) {
	for a := range img.ACLs() {
		for _, s := range img.ACLSources(a) {
			if s.Mirror == mirror {
				changes = append(changes, putACL{ACL: a})
				break
			}
		}
	}
	return changes
}

func checkACL(a metadata.ACL) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: ACL: %s", ErrInvalidRequest, fmt.Sprintf(format, args...))
	}
	kind, name, typed := strings.Cut(a.Principal, ":")
	switch {
	case !a.ResourceType.Valid():
		return bad("resource type %d", a.ResourceType)
	case !a.Pattern.Valid():
		return bad("resource pattern type %d: only literal and prefixed ones can be stored", a.Pattern)
	case !a.Operation.Valid():
		return bad("operation %d", a.Operation)
	case !a.Permission.Valid():
		return bad("permission type %d", a.Permission)
	case a.ResourceName == "":
		return bad("the resource name is empty")
	case a.ResourceType == metadata.ACLCluster && a.ResourceName != metadata.ClusterResource:
		return bad("the cluster's resource name is %s, not %q", metadata.ClusterResource, a.ResourceName)
	case !typed || kind == "" || name == "":
		return bad("principal %q is not of the form Type:Name", a.Principal)
	case a.Host == "":
		return bad("the host is empty; * stands for all")
	}
	for _, f := range []struct{ field, text string }{{"resource name", a.ResourceName}, {"principal", a.Principal}, {"host", a.Host}} {
		if len(f.text) > maxACLText {
			return bad("the %s has %d bytes, more than %d", f.field, len(f.text), maxACLText)
		}
		if !utf8.ValidString(f.text) {
			return bad("the %s is not UTF-8", f.field)
		}
	}
	return nil
}

// decideDeleteACLs removes what a filter selects, which may be nothing.
func decideDeleteACLs(img *metadata.Image, c deleteACLs) ([]Change, error) {
	if err := CheckACLFilter(&c.Filter); err != nil {
		return nil, err
	}
	var changes []Change
	for a := range img.ACLs() {
		if c.Filter.Matches(a) {
			changes = append(changes, deleteACL{a})
		}
	}
	return changes, nil
}

// CheckACLFilter refuses values that we do not know: what they would select is
// not known either.
func CheckACLFilter(f *metadata.ACLFilter) error {
	switch {
	case f.ResourceType != metadata.ACLAnyResource && !f.ResourceType.Valid():
		return fmt.Errorf("%w: ACL filter: resource type %d", ErrInvalidRequest, f.ResourceType)
	case f.Pattern < metadata.ACLAnyPattern || f.Pattern > metadata.ACLPrefixed:
		return fmt.Errorf("%w: ACL filter: resource pattern type %d", ErrInvalidRequest, f.Pattern)
	case f.Operation != metadata.ACLAnyOperation && !f.Operation.Valid():
		return fmt.Errorf("%w: ACL filter: operation %d", ErrInvalidRequest, f.Operation)
	case f.Permission != metadata.ACLAnyPermission && !f.Permission.Valid():
		return fmt.Errorf("%w: ACL filter: permission type %d", ErrInvalidRequest, f.Permission)
	}
	return nil
}
