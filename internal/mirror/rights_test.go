package mirror

import (
	"context"
	"errors"
	"regexp"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// rightsOf are what the README says that a mirror's principal needs of its source.
func rightsOf(topic, group string) map[string]*kadm.ACLBuilder {
	user := func() *kadm.ACLBuilder {
		return kadm.NewACLs().ResourcePatternType(kadm.ACLPatternLiteral).Allow("User:mirror").AllowHosts("*")
	}
	return map[string]*kadm.ACLBuilder{
		"topic READ":             user().Topics(topic).Operations(kadm.OpRead),
		"topic DESCRIBE_CONFIGS": user().Topics(topic).Operations(kadm.OpDescribeConfigs),
		"group DESCRIBE":         user().Groups(group).Operations(kadm.OpDescribe),
		"cluster DESCRIBE":       user().Clusters().Operations(kadm.OpDescribe),
	}
}

// told is all that an operator reads of a mirror that lacks something.
func (w *world) told(err error) string {
	text := w.dump()
	if err != nil {
		text += err.Error() + "\n"
	}
	for _, d := range w.c.Describe(w.ctx, []string{"m"}) {
		for _, s := range d.Syncs {
			if s.Error != nil {
				text += s.Task + ": " + *s.Error + "\n"
			}
		}
	}
	return text
}

// MIR-365: with what the README says the mirror's principal needs, records, configs, a
// group's offsets and ACLs come. Without any one of these rights the start, the partition or
// a synchronisation says which source refuses what about which resource.
func TestLeastRights(t *testing.T) {
	says := map[string]string{ // what names the right that is missing
		"none":                   "",
		"topic READ":             "orders.*READ",
		"topic DESCRIBE_CONFIGS": "configs of topic orders.*TOPIC_AUTHORIZATION_FAILED",
		"group DESCRIBE":         "group readers.*GROUP_AUTHORIZATION_FAILED",
		"cluster DESCRIBE":       "acls: .*CLUSTER_AUTHORIZATION_FAILED",
	}
	for missing, want := range says {
		t.Run(missing, func(t *testing.T) {
			src, _, admin := guarded(t, "orders")
			must(t, alter(admin, "orders", "retention.ms", "3600000"))
			commit(t, admin, "readers", "orders", 0, 1)
			for name, right := range rightsOf("orders", "readers") {
				if name != missing {
					_, err := admin.CreateACLs(t.Context(), right)
					must(t, err)
				}
			}
			copied := &aclTaker{}
			w := newWorld(t, func(o *Options) {
				o.Authorizer = true
				copied.Controller = o.Controller
				o.Controller = copied
			})
			w.createAs("m", "mirror", src)
			w.alterMirror(metadata.MirrorGroupsInclude, "readers")
			w.alterMirror(metadata.MirrorACLsInclude, "*")
			out, err := w.c.Start(w.ctx, StartRequest{Mirror: "m", Include: []string{"orders"}})
			for _, o := range out {
				err = errors.Join(err, o.Err)
			}
			if want != "" {
				w.until("it says what is missing: "+want, func() bool { return regexp.MustCompile("(?s)" + want).MatchString(w.told(err)) })
				return
			}
			must(t, err)
			w.caughtUp("orders", 0, 1)
			w.until("the rest", func() bool {
				return w.committed("readers", "orders", 0) == 1 && w.ctrl.Image().Topic("orders").Configs["retention.ms"] == "3600000" && copied.n.Load() > 0
			})
			for _, s := range w.c.Describe(w.ctx, []string{"m"})[0].Syncs {
				if s.Error != nil {
					t.Errorf("%s: %s", s.Task, *s.Error)
				}
			}
		})
	}
}

// aclTaker counts the ACLs that are to be copied.
type aclTaker struct {
	Controller
	n atomic.Int64
}

func (a *aclTaker) CopyACLs(ctx context.Context, acls []controller.CopyACL) []error {
	a.n.Add(int64(len(acls)))
	return a.Controller.CopyACLs(ctx, acls)
}
