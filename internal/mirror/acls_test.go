package mirror

import (
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
)

// aclOf reads "topic.orders alice" and the like: a resource, a dot, its name, with a *
// behind a prefix, and who may read it; - before the name of who may not.
func aclOf(text string) metadata.ACL {
	resource, who, _ := strings.Cut(text, " ")
	kind, name, _ := strings.Cut(resource, ".")
	a := metadata.ACL{ResourceName: name, Pattern: metadata.ACLLiteral, Host: "*", Operation: metadata.ACLRead, Permission: metadata.ACLAllow, Principal: "User:" + strings.TrimPrefix(who, "-")}
	a.ResourceType = map[string]metadata.ACLResourceType{"topic": metadata.ACLTopic, "group": metadata.ACLGroup, "mirror": metadata.ACLClusterMirror}[kind]
	if strings.HasPrefix(who, "-") {
		a.Permission = metadata.ACLDeny
	}
	if n, ok := strings.CutSuffix(name, "*"); ok {
		a.ResourceName, a.Pattern = n, metadata.ACLPrefixed
	}
	return a
}

func textOf(a metadata.ACL) string {
	kind := map[metadata.ACLResourceType]string{metadata.ACLTopic: "topic.", metadata.ACLGroup: "group.", metadata.ACLClusterMirror: "mirror."}[a.ResourceType]
	end, sign := "", ""
	if a.Pattern == metadata.ACLPrefixed {
		end = "*"
	}
	if a.Permission == metadata.ACLDeny {
		sign = "-"
	}
	return kind + a.ResourceName + end + " " + sign + strings.TrimPrefix(a.Principal, "User:")
}

// TestACLCopies: what a mirror m of cluster S does to the ACLs of cluster D. MIR-370,
// MIR-371.
func TestACLCopies(t *testing.T) {
	for _, tc := range []struct {
		name  string
		rules string
		// here and there are ACLs; behind an @ of one here the mirror, and behind a slash
		// the clusters, of which it is copied, of one there the clusters.
		here, there []string
		want        []string // + added, - removed, in order
	}{
		{"missing ones are added", "*", nil, []string{"topic.a alice", "group.g alice"}, []string{"+topic.a alice @S", "+group.g alice @S"}},
		{"by the rules", "TOPIC;my-topic-.*,GROUP;my-group", nil,
			[]string{"topic.my-topic-1 a", "topic.my-topic-* a", "topic.other a", "group.my-group a", "group.my-group-2 a"},
			[]string{"+topic.my-topic-1 a @S", "+topic.my-topic-* a @S", "+group.my-group a @S"}},
		{"no rules, nothing", "", []string{"topic.a x @m/S"}, []string{"topic.b x"}, nil},
		{"what is so stays", "*", []string{"topic.a alice @m/S"}, []string{"topic.a alice"}, nil},
		{"gone there, gone here", "*", []string{"topic.a alice @m/S"}, nil, []string{"-topic.a alice"}},
		{"gone there, of another mirror", "*", []string{"topic.a alice @n/T"}, nil, nil},
		{"our own stays", "*", []string{"topic.a alice", "group.g bob"}, nil, nil},
		{"our own is not taken over", "*", []string{"topic.a alice"}, []string{"topic.a alice"}, nil},
		{"another mirror's is shared", "*", []string{"topic.a alice @n/T"}, []string{"topic.a alice"}, []string{"+topic.a alice @S"}},
		{"those of mirrors never", "*", []string{"mirror.m carol"}, []string{"mirror.x dave"}, nil},
		{"no longer selected, left alone", "GROUP", []string{"topic.a alice @m/S"}, nil, nil},
		{"a paused topic's are held", "*", []string{"topic.paused alice @m/S"}, []string{"topic.paused bob"}, nil},
		{"a stopped topic's are held", "*", []string{"topic.stopped alice @m/S"}, []string{"topic.stopped bob"}, nil},
		{"a local topic's are held", "*", nil, []string{"topic.local bob"}, nil},
		{"a prefix is no topic", "*", []string{"topic.loc* alice @m/S"}, []string{"topic.pau* bob"}, []string{"-topic.loc* alice", "+topic.pau* bob @S"}},
		{"what the source has from us is not given back", "*", nil, []string{"topic.a alice @D"}, nil},
		{"nor kept, if both have it from each other", "*", []string{"topic.a alice @m/S"}, []string{"topic.a alice @D"}, []string{"-topic.a alice"}},
		{"what it has from a third is", "*", nil, []string{"topic.a alice @R"}, []string{"+topic.a alice @R,S"}},
		{"where it comes from is kept up", "*", []string{"topic.a alice @m/S,R"}, []string{"topic.a alice"}, []string{"+topic.a alice @S"}},
		{"said twice", "*", nil, []string{"topic.a alice", "topic.a alice"}, []string{"+topic.a alice @S"}},
		{"what closes comes before what opens", "*", []string{"topic.a x @m/S", "topic.a -y @m/S"}, []string{"topic.a z", "topic.a -z"},
			[]string{"+topic.a -z @S", "-topic.a x", "+topic.a z @S", "-topic.a -y"}},
	} {
		e := metadata.NewImage().Edit()
		e.PutMirror(&metadata.Mirror{Name: "m"})
		for i, at := range []struct {
			topic string
			to    metadata.Attachment
		}{
			{"a", metadata.Attachment{Mirror: "m", Desired: metadata.DesiredMirroring}}, {"paused", metadata.Attachment{Mirror: "m", Desired: metadata.DesiredPaused}},
			{"stopped", metadata.Attachment{Mirror: "m", Desired: metadata.DesiredStopped}}, {"local", metadata.Attachment{}},
		} {
			e.PutTopic(&metadata.Topic{ID: metadata.TopicID{byte(i + 1)}, Name: at.topic, MirrorName: at.to.Value()})
		}
		for _, text := range tc.here {
			acl, from, copied := strings.Cut(text, " @")
			var sources []metadata.ACLSource
			if mirror, clusters, _ := strings.Cut(from, "/"); copied {
				sources = []metadata.ACLSource{{Mirror: mirror, Clusters: slices.Sorted(slices.Values(strings.Split(clusters, ",")))}}
			}
			e.PutACL(aclOf(acl), sources)
		}
		var theirs []source.ACL
		for _, text := range tc.there {
			text, from, _ := strings.Cut(text, " @")
			a := aclOf(text)
			s := source.ACL{ResourceType: kmsg.ACLResourceType(a.ResourceType), ResourceName: a.ResourceName, Pattern: kmsg.ACLResourcePatternType(a.Pattern),
				Principal: a.Principal, Host: a.Host, Operation: kmsg.ACLOperation(a.Operation), Permission: kmsg.ACLPermissionType(a.Permission)}
			if from != "" {
				s.Clusters = strings.Split(from, ",")
			}
			theirs = append(theirs, s)
		}
		rules, err := metadata.CompileACLRules(tc.rules)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, c := range (aclCopies{rules: rules, mirror: "m", source: "S", here: "D"}).of(e.Image(1), theirs) {
			if c.Mirror != "m" {
				t.Errorf("%s: for mirror %s", tc.name, c.Mirror)
			}
			if c.Gone {
				got = append(got, "-"+textOf(c.ACL))
			} else {
				got = append(got, "+"+textOf(c.ACL)+" @"+strings.Join(c.Clusters, ","))
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want)
		}
	}
}
