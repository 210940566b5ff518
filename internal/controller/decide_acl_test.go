package controller

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func testACL(change ...func(*metadata.ACL)) metadata.ACL {
	a := metadata.ACL{ResourceType: metadata.ACLTopic, Pattern: metadata.ACLLiteral, ResourceName: "orders",
		Principal: "User:alice", Host: "*", Operation: metadata.ACLRead, Permission: metadata.ACLAllow}
	for _, f := range change {
		f(&a)
	}
	return a
}

// everyACL is the filter that selects all.
func everyACL(change ...func(*metadata.ACLFilter)) metadata.ACLFilter {
	f := metadata.ACLFilter{ResourceType: metadata.ACLAnyResource, Pattern: metadata.ACLAnyPattern,
		Operation: metadata.ACLAnyOperation, Permission: metadata.ACLAnyPermission}
	for _, c := range change {
		c(&f)
	}
	return f
}

func TestDecideCreateACL(t *testing.T) {
	type edit = func(*metadata.ACL)
	for _, tc := range []struct {
		name string
		edit edit
		text string // of the error; "": it is stored
	}{
		{"ordinary", func(a *metadata.ACL) {}, ""},
		{"prefixed", func(a *metadata.ACL) { a.Pattern = metadata.ACLPrefixed }, ""},
		{"a mirror", func(a *metadata.ACL) { a.ResourceType = metadata.ACLClusterMirror }, ""},
		{"the cluster", func(a *metadata.ACL) { a.ResourceType, a.ResourceName = metadata.ACLCluster, "kafka-cluster" }, ""},
		{"names have slashes and colons", func(a *metadata.ACL) { a.ResourceName, a.Principal = "a/b c", "User:CN=x:y,O=ü" }, ""},
		{"all resources", func(a *metadata.ACL) { a.ResourceType = metadata.ACLAnyResource }, "resource type 1"},
		{"unknown resource", func(a *metadata.ACL) { a.ResourceType = 9 }, "resource type 9"},
		{"match", func(a *metadata.ACL) { a.Pattern = metadata.ACLMatch }, "pattern type 2"},
		{"any operation", func(a *metadata.ACL) { a.Operation = metadata.ACLAnyOperation }, "operation 1"},
		{"unknown operation", func(a *metadata.ACL) { a.Operation = 16 }, "operation 16"},
		{"any permission", func(a *metadata.ACL) { a.Permission = metadata.ACLAnyPermission }, "permission type 1"},
		{"no name", func(a *metadata.ACL) { a.ResourceName = "" }, "resource name is empty"},
		{"another cluster", func(a *metadata.ACL) { a.ResourceType = metadata.ACLCluster }, "kafka-cluster"},
		{"no type of principal", func(a *metadata.ACL) { a.Principal = "alice" }, "principal"},
		{"no name of principal", func(a *metadata.ACL) { a.Principal = "User:" }, "principal"},
		{"no host", func(a *metadata.ACL) { a.Host = "" }, "host"},
		{"long name", func(a *metadata.ACL) { a.ResourceName = strings.Repeat("x", maxACLText+1) }, "resource name"},
		{"long principal", func(a *metadata.ACL) { a.Principal = "User:" + strings.Repeat("x", maxACLText) }, "principal"},
		{"long host", func(a *metadata.ACL) { a.Host = strings.Repeat("x", maxACLText+1) }, "host"},
		{"no text", func(a *metadata.ACL) { a.ResourceName = "a\xff" }, "UTF-8"},
	} {
		changes, err := Decide(metadata.NewImage(), createACL{testACL(tc.edit)})
		if tc.text == "" {
			if want := []Change{putACL{ACL: testACL(tc.edit)}}; err != nil || !reflect.DeepEqual(changes, want) {
				t.Errorf("%s: %v, %v", tc.name, changes, err)
			}
			continue
		}
		if !errors.Is(err, ErrInvalidRequest) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestTooManyACLs(t *testing.T) {
	e := metadata.NewImage().Edit()
	for i := range maxACLs {
		e.PutACL(testACL(func(a *metadata.ACL) { a.ResourceName = fmt.Sprint(i) }), nil)
	}
	img := e.Image(1)
	if _, err := Decide(img, createACL{testACL()}); !errors.Is(err, ErrTooManyACLs) {
		t.Error(err)
	}
	// What is there may be said again.
	if ch, err := Decide(img, createACL{testACL(func(a *metadata.ACL) { a.ResourceName = "7" })}); err != nil || ch != nil {
		t.Error(ch, err)
	}
}

// TestDecideDeleteACLs: which of five a filter removes.
func TestDecideDeleteACLs(t *testing.T) {
	all := map[string]metadata.ACL{
		"literal":  testACL(),
		"prefix":   testACL(func(a *metadata.ACL) { a.Pattern, a.ResourceName = metadata.ACLPrefixed, "ord" }),
		"samename": testACL(func(a *metadata.ACL) { a.Pattern = metadata.ACLPrefixed }),
		"wildcard": testACL(func(a *metadata.ACL) { a.ResourceName, a.Permission = "*", metadata.ACLDeny }),
		"group":    testACL(func(a *metadata.ACL) { a.ResourceType, a.Principal, a.Host = metadata.ACLGroup, "User:bob", "10.0.0.7" }),
	}
	e := metadata.NewImage().Edit()
	for _, a := range all {
		e.PutACL(a, nil)
	}
	img := e.Image(1)
	text := func(s string) *string { return &s }
	type edit = func(*metadata.ACLFilter)
	for _, tc := range []struct {
		name string
		edit edit
		want string
	}{
		{"everything", func(f *metadata.ACLFilter) {}, "group literal prefix samename wildcard"},
		{"any pattern of a name", func(f *metadata.ACLFilter) { f.ResourceName = text("orders") }, "group literal samename"},
		{"literal of a name", func(f *metadata.ACLFilter) { f.ResourceName, f.Pattern = text("orders"), metadata.ACLLiteral }, "group literal"},
		{"prefixed of a name", func(f *metadata.ACLFilter) { f.ResourceName, f.Pattern = text("orders"), metadata.ACLPrefixed }, "samename"},
		{"match of a name", func(f *metadata.ACLFilter) { f.ResourceName, f.Pattern = text("orders"), metadata.ACLMatch }, "group literal prefix samename wildcard"},
		{"match of another", func(f *metadata.ACLFilter) { f.ResourceName, f.Pattern = text("order"), metadata.ACLMatch }, "prefix wildcard"},
		{"match of all", func(f *metadata.ACLFilter) { f.Pattern = metadata.ACLMatch }, "group literal prefix samename wildcard"},
		{"the wildcard itself", func(f *metadata.ACLFilter) { f.ResourceName = text("*") }, "wildcard"},
		{"a type", func(f *metadata.ACLFilter) { f.ResourceType = metadata.ACLGroup }, "group"},
		{"a principal", func(f *metadata.ACLFilter) { f.Principal = text("User:bob") }, "group"},
		{"everybody's principal is a name here", func(f *metadata.ACLFilter) { f.Principal = text("User:*") }, ""},
		{"a host", func(f *metadata.ACLFilter) { f.Host = text("10.0.0.7") }, "group"},
		{"every host is a name here", func(f *metadata.ACLFilter) { f.Host = text("*") }, "literal prefix samename wildcard"},
		{"a permission", func(f *metadata.ACLFilter) { f.Permission = metadata.ACLDeny }, "wildcard"},
		{"another operation", func(f *metadata.ACLFilter) { f.Operation = metadata.ACLAll }, ""},
	} {
		changes, err := Decide(img, deleteACLs{everyACL(tc.edit)})
		var got []string
		for _, ch := range changes {
			for name, a := range all {
				if (deleteACL{a}) == ch {
					got = append(got, name)
				}
			}
		}
		slices.Sort(got)
		if strings.Join(got, " ") != tc.want || err != nil {
			t.Errorf("%s: %v, %v; want %s", tc.name, got, err, tc.want)
		}
	}
	for name, edit := range map[string]edit{
		"type 0":       func(f *metadata.ACLFilter) { f.ResourceType = 0 },
		"type 9":       func(f *metadata.ACLFilter) { f.ResourceType = 9 },
		"pattern 0":    func(f *metadata.ACLFilter) { f.Pattern = 0 },
		"pattern 5":    func(f *metadata.ACLFilter) { f.Pattern = 5 },
		"operation 0":  func(f *metadata.ACLFilter) { f.Operation = 0 },
		"operation 16": func(f *metadata.ACLFilter) { f.Operation = 16 },
		"permission 4": func(f *metadata.ACLFilter) { f.Permission = 4 },
	} {
		if ch, err := Decide(img, deleteACLs{everyACL(edit)}); !errors.Is(err, ErrInvalidRequest) {
			t.Errorf("%s: %v, %v", name, ch, err)
		}
	}
}

// TestACLs stores ACLs, finds them again after a restart, and has one caller add
// while another removes the very same, so that both land in one batch.
func TestACLs(t *testing.T) {
	dir := t.TempDir()
	c := open(t, testOptions(t, dir))
	var acls []metadata.ACL
	for i := range 300 { // more than a transaction holds
		acls = append(acls, testACL(func(a *metadata.ACL) { a.ResourceName = fmt.Sprintf("t/%d", i) }))
	}
	for i, err := range c.CreateACLs(t.Context(), acls) {
		if err != nil {
			t.Fatal(i, err)
		}
	}
	if img := c.Image(); img.NumACLs() != 300 || img.ACLRevision == 0 {
		t.Fatalf("%d ACLs as of %d", img.NumACLs(), img.ACLRevision)
	}
	bad := testACL(func(a *metadata.ACL) { a.Host = "" })
	if errs := c.CreateACLs(t.Context(), []metadata.ACL{bad, testACL()}); errs[0] == nil || errs[1] != nil {
		t.Fatal(errs)
	}
	one := testACL()
	var both sync.WaitGroup
	for range 4 {
		both.Go(func() {
			for range 20 {
				if err := c.CreateACLs(t.Context(), []metadata.ACL{one})[0]; err != nil {
					t.Error(err)
				}
			}
		})
		both.Go(func() {
			for range 20 {
				f := everyACL(func(f *metadata.ACLFilter) { f.ResourceName = &one.ResourceName })
				if d := c.DeleteACLs(t.Context(), []metadata.ACLFilter{f, f}); d[0].Err != nil || d[1].Err != nil || len(d[1].ACLs) > 0 {
					t.Error(d)
				}
			}
		})
	}
	both.Wait()
	if errs := c.CreateACLs(t.Context(), []metadata.ACL{one}); errs[0] != nil {
		t.Fatal(errs)
	}
	was := c.Image().ACLRevision
	closeNow(t, c)
	c = open(t, testOptions(t, dir))
	img := c.Image()
	if img.NumACLs() != 301 || !img.HasACL(one) || !img.HasACL(acls[299]) || img.ACLRevision < was {
		t.Fatalf("after the restart: %d ACLs as of %d", img.NumACLs(), img.ACLRevision)
	}
	d := c.DeleteACLs(t.Context(), []metadata.ACLFilter{everyACL()})
	if d[0].Err != nil || len(d[0].ACLs) != 301 || c.Image().NumACLs() != 0 {
		t.Fatalf("%v, %d deleted, %d left", d[0].Err, len(d[0].ACLs), c.Image().NumACLs())
	}
}
