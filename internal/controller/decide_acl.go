package controller

import (
	"errors"
	"fmt"
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

// decideCreateACL adds one ACL. One that exists already is a success, as in Kafka.
func decideCreateACL(img *metadata.Image, c createACL) ([]Change, error) {
	if err := checkACL(c.ACL); err != nil {
		return nil, err
	}
	switch {
	case img.HasACL(c.ACL):
		return nil, nil
	case img.NumACLs() >= maxACLs:
		return nil, fmt.Errorf("%w: there are %d, the most that are kept", ErrTooManyACLs, maxACLs)
	}
	return []Change{putACL{c.ACL}}, nil
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
