package authz

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// imageOf is a cluster with those ACLs, as of a revision.
func imageOf(revision int64, acls ...metadata.ACL) *metadata.Image {
	e := metadata.NewImage().Edit()
	for _, a := range acls {
		e.PutACL(a, nil)
	}
	return e.Image(revision)
}

// acl reads "allow User:alice read topic orders", with a host behind an @ and a
// trailing ~ for a prefix.
func acl(t testing.TB, s string) metadata.ACL {
	t.Helper()
	f := strings.Fields(s)
	a := metadata.ACL{Permission: metadata.ACLAllow, Principal: f[1], Host: "*", Pattern: metadata.ACLLiteral, ResourceName: f[4]}
	if f[0] == "deny" {
		a.Permission = metadata.ACLDeny
	}
	if who, host, ok := strings.Cut(f[1], "@"); ok {
		a.Principal, a.Host = who, host
	}
	if name, ok := strings.CutSuffix(f[4], "~"); ok {
		a.ResourceName, a.Pattern = name, metadata.ACLPrefixed
	}
	for o := metadata.ACLAll; o.Valid(); o++ {
		if strings.EqualFold(o.String(), f[2]) {
			a.Operation = o
		}
	}
	for r := metadata.ACLTopic; r.Valid(); r++ {
		if strings.EqualFold(r.String(), f[3]) {
			a.ResourceType = r
		}
	}
	if !a.Operation.Valid() || !a.ResourceType.Valid() {
		t.Fatalf("cannot read %q", s)
	}
	return a
}

var (
	alice = Principal{UserType, "alice"}
	bob   = Principal{UserType, "bob"}
)

func TestAllowed(t *testing.T) {
	const host = "10.0.0.7"
	for _, tc := range []struct {
		name string
		acls string
		p    Principal
		op   Operation
		res  ResourceType
		on   string
		want bool
	}{
		{"nothing is said", "", alice, Read, Topic, "orders", false},
		{"literal", "allow User:alice read topic orders", alice, Read, Topic, "orders", true},
		{"another's", "allow User:alice read topic orders", bob, Read, Topic, "orders", false},
		{"another resource", "allow User:alice read topic orders", alice, Read, Topic, "orders2", false},
		{"another type", "allow User:alice read topic orders", alice, Read, Group, "orders", false},
		{"another operation", "allow User:alice read topic orders", alice, Write, Topic, "orders", false},
		{"a prefix", "allow User:alice read topic ord~", alice, Read, Topic, "orders", true},
		{"a prefix is its own name", "allow User:alice read topic ord~", alice, Read, Topic, "ord", true},
		{"a longer prefix", "allow User:alice read topic orders~", alice, Read, Topic, "ord", false},
		{"all names", "allow User:alice read topic *", alice, Read, Topic, "orders", true},
		{"a prefix of * is no wildcard", "allow User:alice read topic *~", alice, Read, Topic, "orders", false},
		{"all users", "allow User:* read topic orders", bob, Read, Topic, "orders", true},
		{"all of another type", "allow Group:* read topic orders", bob, Read, Topic, "orders", false},
		{"all operations", "allow User:alice all topic orders", alice, AlterConfigs, Topic, "orders", true},
		{"its host", "allow User:alice@10.0.0.7 read topic orders", alice, Read, Topic, "orders", true},
		{"another host", "allow User:alice@10.0.0.8 read topic orders", alice, Read, Topic, "orders", false},
		{"networks are not hosts", "allow User:alice@10.0.0.0/8 read topic orders", alice, Read, Topic, "orders", false},
		{"deny wins over literal", "allow User:alice read topic orders\ndeny User:alice read topic ord~", alice, Read, Topic, "orders", false},
		{"deny of everybody", "allow User:alice read topic orders\ndeny User:* read topic *", alice, Read, Topic, "orders", false},
		{"deny from one host", "allow User:alice read topic orders\ndeny User:alice@10.0.0.7 read topic orders", alice, Read, Topic, "orders", false},
		{"deny from another host", "allow User:alice read topic orders\ndeny User:alice@10.0.0.8 read topic orders", alice, Read, Topic, "orders", true},
		{"deny all", "allow User:alice read topic orders\ndeny User:alice all topic orders", alice, Read, Topic, "orders", false},
		{"deny of another operation", "allow User:alice all topic orders\ndeny User:alice write topic orders", alice, Read, Topic, "orders", true},
		{"read shows", "allow User:alice read topic orders", alice, Describe, Topic, "orders", true},
		{"write shows", "allow User:alice write topic orders", alice, Describe, Topic, "orders", true},
		{"delete shows", "allow User:alice delete topic orders", alice, Describe, Topic, "orders", true},
		{"alter shows", "allow User:alice alter topic orders", alice, Describe, Topic, "orders", true},
		{"create does not show", "allow User:alice create topic orders", alice, Describe, Topic, "orders", false},
		{"configs do not show", "allow User:alice alterconfigs topic orders", alice, Describe, Topic, "orders", false},
		{"configs changed are configs shown", "allow User:alice alterconfigs topic orders", alice, DescribeConfigs, Topic, "orders", true},
		{"denied read leaves describe", "allow User:alice describe topic orders\ndeny User:alice read topic orders", alice, Describe, Topic, "orders", true},
		{"denied describe", "allow User:alice read topic orders\ndeny User:alice describe topic orders", alice, Describe, Topic, "orders", false},
		{"denied describe leaves read", "allow User:alice read topic orders\ndeny User:alice describe topic orders", alice, Read, Topic, "orders", true},
		{"super user", "deny User:root all topic *", Principal{UserType, "root"}, Delete, Topic, "orders", true},
		{"mirror", "allow User:alice alter clustermirror m", alice, Alter, ClusterMirror, "m", true},
		{"cluster", "allow User:alice clusteraction cluster kafka-cluster", alice, ClusterAction, Cluster, ClusterName, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var acls []metadata.ACL
			for l := range strings.Lines(tc.acls) {
				acls = append(acls, acl(t, l))
			}
			a := New(Options{SuperUsers: []Principal{{UserType, "root"}}})
			img := imageOf(5, acls...)
			if got := a.Allowed(img, tc.p, host, tc.op, tc.res, tc.on); got != tc.want {
				t.Errorf("allowed: %v", got)
			}
			if !tc.res.Operations().Has(tc.op) {
				return
			}
			if got := a.Operations(img, tc.p, host, tc.res, tc.on); got.Has(tc.op) != tc.want {
				t.Errorf("operations %b", got)
			}
		})
	}
}

// TestAllowIfNoACL: any ACL about a resource closes it to the others.
func TestAllowIfNoACL(t *testing.T) {
	a := New(Options{AllowIfNoACL: true})
	img := imageOf(5, acl(t, "allow User:alice read topic orders"), acl(t, "allow User:alice@1.2.3.4 read topic pay~"))
	for name, want := range map[string]bool{"orders": false, "payments": false, "other": true} {
		if got := a.Allowed(img, bob, "10.0.0.7", Read, Topic, name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := a.Operations(img, bob, "10.0.0.7", Topic, "other"); got != Topic.Operations() {
		t.Errorf("operations %b", got)
	}
}

func TestAllowedByType(t *testing.T) {
	for _, tc := range []struct {
		acls string
		want bool
	}{
		{"", false},
		{"allow User:alice write topic orders", true},
		{"allow User:alice read topic orders", false},
		{"allow User:alice write topic ord~", true},
		{"allow User:* all topic *", true},
		{"allow User:alice write topic orders\ndeny User:alice write topic orders", false},
		{"allow User:alice write topic orders\ndeny User:alice write topic ord~", false},
		{"allow User:alice write topic orders\ndeny User:alice read topic ord~", true},
		{"allow User:alice write topic ord~\ndeny User:alice write topic ord", true}, // orders is left
		{"allow User:alice write topic ord~\ndeny User:alice write topic orders~", true},
		{"allow User:alice write topic *\ndeny User:alice write topic *", false},
		{"allow User:alice write topic *\ndeny User:alice write topic orders", true},
		{"allow User:alice@10.0.0.8 write topic *", false},
	} {
		var acls []metadata.ACL
		for l := range strings.Lines(tc.acls) {
			acls = append(acls, acl(t, l))
		}
		if got := New(Options{}).AllowedByType(imageOf(5, acls...), alice, "10.0.0.7", Write, Topic); got != tc.want {
			t.Errorf("%q: %v", tc.acls, got)
		}
	}
	if !New(Options{AllowIfNoACL: true}).AllowedByType(imageOf(5), alice, "10.0.0.7", Write, Topic) {
		t.Error("no ACL closes what is open without")
	}
}

// TestNewerImage: an answer belongs to the image that was asked about, also when
// an older one comes late.
func TestNewerImage(t *testing.T) {
	a := New(Options{})
	before, after := imageOf(5), imageOf(6, acl(t, "allow User:alice read topic orders"))
	for _, step := range []struct {
		img  *metadata.Image
		want bool
	}{{before, false}, {after, true}, {before, false}, {after, true}} {
		if got := a.Allowed(step.img, alice, "10.0.0.7", Read, Topic, "orders"); got != step.want {
			t.Errorf("revision %d: %v", step.img.Revision, got)
		}
	}
}

func TestHostSpelling(t *testing.T) {
	img := imageOf(5, acl(t, "allow User:alice@0:0:0:0:0:0:0:1 read topic orders"), acl(t, "allow User:bob@::ffff:10.0.0.7 read topic orders"))
	a := New(Options{})
	if !a.Allowed(img, alice, "::1", Read, Topic, "orders") || !a.Allowed(img, bob, "10.0.0.7", Read, Topic, "orders") {
		t.Error("an address in another spelling is another address")
	}
}

func TestParseSuperUsers(t *testing.T) {
	got, err := ParseSuperUsers("User:CN=a,O=b; User:root;")
	if err != nil || len(got) != 2 || got[0].Name != "CN=a,O=b" || got[1].Name != "root" {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := ParseSuperUsers("root"); err == nil {
		t.Error("a name without a type is taken")
	}
}

// The naive reference: Kafka's rules read off one by one over a flat list.
func naive(acls []metadata.ACL, open bool, p Principal, host string, op Operation, res ResourceType, name string) bool {
	about, allowed := false, false
	for _, a := range acls {
		covers := a.ResourceName == name || a.ResourceName == "*"
		if a.Pattern == metadata.ACLPrefixed {
			covers = strings.HasPrefix(name, a.ResourceName)
		}
		if a.ResourceType != res || !covers {
			continue
		}
		about = true
		if (a.Principal != p.String() && a.Principal != p.Type+":*") || (a.Host != host && a.Host != "*") {
			continue
		}
		direct := a.Operation == op || a.Operation == All
		if a.Permission == metadata.ACLDeny {
			if direct {
				return false
			}
			continue
		}
		switch {
		case direct:
			allowed = true
		case op == Describe:
			allowed = allowed || a.Operation == Read || a.Operation == Write || a.Operation == Delete || a.Operation == Alter
		case op == DescribeConfigs:
			allowed = allowed || a.Operation == AlterConfigs
		}
	}
	if !about {
		return open
	}
	return allowed
}

var (
	someNames = rapid.SampledFrom([]string{"a", "ab", "abc", "abcd", "b", "ba", "*"})
	someUsers = rapid.SampledFrom([]string{"User:alice", "User:bob", "User:*", "Other:alice", "User:"})
	someHosts = rapid.SampledFrom([]string{"*", "10.0.0.7", "10.0.0.8", "::1"})
	someOps   = rapid.Custom(func(t *rapid.T) Operation { return Operation(rapid.IntRange(2, 15).Draw(t, "op")) })
	someTypes = rapid.SampledFrom([]ResourceType{Topic, Group, ClusterMirror})
	someACLs  = rapid.Custom(func(t *rapid.T) metadata.ACL {
		return metadata.ACL{
			ResourceType: someTypes.Draw(t, "type"), ResourceName: someNames.Draw(t, "name"),
			Pattern:   rapid.SampledFrom([]metadata.ACLPatternType{metadata.ACLLiteral, metadata.ACLPrefixed}).Draw(t, "pattern"),
			Principal: someUsers.Draw(t, "user"), Host: someHosts.Draw(t, "host"), Operation: someOps.Draw(t, "op"),
			Permission: rapid.SampledFrom([]metadata.ACLPermission{metadata.ACLAllow, metadata.ACLAllow, metadata.ACLDeny}).Draw(t, "permission"),
		}
	})
)

func TestAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		acls := rapid.SliceOfN(someACLs, 0, 12).Draw(t, "acls")
		open := rapid.Bool().Draw(t, "open")
		a, img := New(Options{AllowIfNoACL: open}), imageOf(3, acls...)
		p, _ := ParsePrincipal(someUsers.Draw(t, "who"))
		host, res := someHosts.Draw(t, "from"), someTypes.Draw(t, "res")
		for _, name := range []string{"a", "ab", "abc", "abcd", "abcde", "b", "z", "*"} {
			var ops Operations
			for op := Read; op.Valid(); op++ {
				want := naive(acls, open, p, host, op, res, name)
				if got := a.Allowed(img, p, host, op, res, name); got != want {
					t.Fatalf("%s from %s, %s on %s %s: %v, want %v", p, host, op, res, name, got, want)
				}
				if want && res.Operations().Has(op) {
					ops |= 1 << op
				}
			}
			if got := a.Operations(img, p, host, res, name); got != ops {
				t.Fatalf("operations %b, want %b", got, ops)
			}
		}
	})
}

// TestByTypeAgainstNaive asks the reference about every name there is in a small
// world, and a longer one for each prefix.
func TestByTypeAgainstNaive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		acls := rapid.SliceOfN(someACLs, 0, 12).Draw(t, "acls")
		a, img := New(Options{}), imageOf(3, acls...)
		want := false
		for _, x := range acls {
			for _, name := range []string{x.ResourceName, x.ResourceName + "-and-more"} {
				// The literal * is a pattern, not a name.
				want = want || name != "*" && naive(acls, false, alice, "10.0.0.7", Write, Topic, name)
			}
		}
		want = want || naive(acls, false, alice, "10.0.0.7", Write, Topic, "zz")
		if got := a.AllowedByType(img, alice, "10.0.0.7", Write, Topic); got != want {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}

func BenchmarkAllowed(b *testing.B) {
	for _, n := range []int{0, 10, 10_000} {
		acls := []metadata.ACL{acl(b, "allow User:alice write topic orders"), acl(b, "allow User:alice all topic team-~"), acl(b, "allow User:* describe topic *")}
		for i := range n {
			a := acl(b, fmt.Sprintf("allow User:u%d write topic topic-%d", i%997, i))
			if i%3 == 0 {
				a.Pattern = metadata.ACLPrefixed
			}
			acls = append(acls, a)
			if i%10 == 0 { // many clients of one topic
				acls = append(acls, acl(b, fmt.Sprintf("allow User:u%d write topic orders", i)))
			}
		}
		img := imageOf(7, acls...)
		a := New(Options{SuperUsers: []Principal{{UserType, "root"}}})
		b.Run(fmt.Sprintf("acls=%d", len(acls)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !a.Allowed(img, alice, "10.0.0.7", Write, Topic, "orders") {
					b.Fatal("denied")
				}
			}
		})
	}
}

// TestAllowedAllocatesNothing keeps the hot path of produce and fetch free.
func TestAllowedAllocatesNothing(t *testing.T) {
	a, img := New(Options{}), imageOf(7, acl(t, "allow User:alice write topic ord~"), acl(t, "deny User:bob all topic *"))
	if n := testing.AllocsPerRun(100, func() { a.Allowed(img, alice, "10.0.0.7", Write, Topic, "orders") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkIndex10000(b *testing.B) {
	var acls []metadata.ACL
	for i := range 10_000 {
		acls = append(acls, acl(b, fmt.Sprintf("allow User:u%d write topic topic-%d", i%997, i)))
	}
	img := imageOf(7, acls...)
	for b.Loop() {
		newIndex(img)
	}
}
