package controller

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// TestCopyACL: who an ACL belongs to, and when it goes (W57, DEC-09). Each step is
// done upon what the ones before it left.
func TestCopyACL(t *testing.T) {
	e := metadata.NewImage().Edit()
	for _, name := range []string{"m", "n"} {
		e.PutMirror(&metadata.Mirror{Name: name})
	}
	start, a := e.Image(1), testACL()
	copied := func(mirror string, clusters ...string) copyACL {
		return copyACL{CopyACL{ACLSource: metadata.ACLSource{Mirror: mirror, Clusters: clusters}, ACL: a}}
	}
	gone := func(mirror string) copyACL {
		c := copied(mirror)
		c.Gone = true
		return c
	}
	every := everyACL(func(*metadata.ACLFilter) {})
	type step struct {
		cmd  Command
		want string // the mirrors and clusters of the ACL, own, or nothing
	}
	for name, script := range map[string][]step{
		"copied and gone":              {{copied("m", "A"), "m:A"}, {copied("m", "A"), "m:A"}, {gone("m"), ""}, {gone("m"), ""}},
		"our own stays":                {{createACL{a}, "own"}, {copied("m", "A"), "own"}, {gone("m"), "own"}},
		"made here too stays":          {{copied("m", "A"), "m:A"}, {createACL{a}, "own"}, {gone("m"), "own"}},
		"two mirrors, the last counts": {{copied("n", "B"), "n:B"}, {copied("m", "A"), "m:A n:B"}, {gone("n"), "m:A"}, {gone("n"), "m:A"}, {gone("m"), ""}},
		"another's is not taken":       {{copied("m", "A"), "m:A"}, {gone("n"), "m:A"}},
		"from further away, in order":  {{copied("m", "B", "A", "B"), "m:A,B"}, {copied("m", "B"), "m:B"}},
		"deleted here, copied again":   {{copied("m", "A"), "m:A"}, {deleteACLs{every}, ""}, {copied("m", "A"), "m:A"}},
		"the mirror goes, rights stay": {{copied("m", "A"), "m:A"}, {removeMirror{"m", -1}, "own"}},
		"one of two mirrors goes":      {{copied("m", "A"), "m:A"}, {copied("n", "B"), "m:A n:B"}, {removeMirror{"m", -1}, "own"}, {gone("n"), "own"}},
		"another mirror goes":          {{copied("m", "A"), "m:A"}, {removeMirror{"n", -1}, "m:A"}},
	} {
		img := start
		for i, s := range script {
			changes, err := Decide(img, s.cmd)
			if err != nil {
				t.Fatalf("%s, step %d: %v", name, i, err)
			}
			b := newBuilder(img)
			if err := b.apply(changes, 2); err != nil {
				t.Fatalf("%s, step %d: %v", name, i, err)
			}
			img = b.seal(2)
			var got []string
			for _, src := range img.ACLSources(a) {
				got = append(got, src.Mirror+":"+strings.Join(src.Clusters, ","))
			}
			if img.HasACL(a) && got == nil {
				got = []string{"own"}
			}
			if g := strings.Join(got, " "); g != s.want {
				t.Fatalf("%s, step %d: %q, want %q", name, i, g, s.want)
			}
			if again, err := Decide(img, s.cmd); len(again) > 0 || err != nil && !errors.Is(err, ErrUnknownMirror) {
				t.Errorf("%s, step %d, once more: %v, %v", name, i, again, err)
			}
		}
	}
}

// TestCopyACLRefuses what a source must not be able to bring here.
func TestCopyACLRefuses(t *testing.T) {
	e := metadata.NewImage().Edit()
	e.PutMirror(&metadata.Mirror{Name: "m"})
	img := e.Image(1)
	for name, tc := range map[string]struct {
		edit func(*CopyACL)
		want error
	}{
		"no such mirror":       {func(c *CopyACL) { c.Mirror = "x" }, ErrUnknownMirror},
		"of a mirror":          {func(c *CopyACL) { c.ACL.ResourceType = metadata.ACLClusterMirror }, ErrInvalidRequest},
		"a right of later":     {func(c *CopyACL) { c.ACL.Operation = 99 }, ErrInvalidRequest},
		"too many clusters":    {func(c *CopyACL) { c.Clusters = make([]string, maxACLClusters+1) }, ErrInvalidRequest},
		"a long cluster id":    {func(c *CopyACL) { c.Clusters = []string{strings.Repeat("x", maxACLClusterText+1)} }, ErrInvalidRequest},
		"a cluster id of \xff": {func(c *CopyACL) { c.Clusters = []string{"\xff"} }, ErrInvalidRequest},
	} {
		c := CopyACL{ACLSource: metadata.ACLSource{Mirror: "m", Clusters: []string{"A"}}, ACL: testACL()}
		tc.edit(&c)
		if changes, err := Decide(img, copyACL{c}); !errors.Is(err, tc.want) || changes != nil {
			t.Errorf("%s: %v, %v", name, changes, err)
		}
	}
}

// TestCopiedACLsLast: who has copied an ACL is found again after a restart.
func TestCopiedACLsLast(t *testing.T) {
	dir := t.TempDir()
	c := open(t, testOptions(t, dir))
	if err := c.CreateMirror(t.Context(), "m", map[string]string{"bootstrap.servers": "localhost:1", metadata.MirrorSourceClusterID: "A"}); err != nil {
		t.Fatal(err)
	}
	want := metadata.ACLSource{Mirror: "m", Clusters: []string{"A", "Z"}}
	if errs := c.CopyACLs(t.Context(), []CopyACL{{ACLSource: want, ACL: testACL()}, {ACLSource: want}}); errs[0] != nil || !errors.Is(errs[1], ErrInvalidRequest) {
		t.Fatal(errs)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = open(t, testOptions(t, dir))
	if got := c.Image().ACLSources(testACL()); !reflect.DeepEqual(got, []metadata.ACLSource{want}) {
		t.Error(got)
	}
}
