package mirror

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func jaasOf(user, password string) string {
	return fmt.Sprintf(`org.apache.kafka.common.security.plain.PlainLoginModule required username="%s" password="%s";`, user, password)
}

// ownTopics is a user who may read the topics that begin with a prefix, and nothing else.
func ownTopics(user, prefix string) kfake.Opt {
	var acls []kfake.ACL
	for _, op := range []kmsg.ACLOperation{kmsg.ACLOperationRead, kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs} {
		acls = append(acls, kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: prefix, Pattern: kmsg.ACLResourcePatternTypePrefixed, Operation: op, Allow: true})
	}
	return kfake.User("PLAIN", user, "pw-"+user, acls...)
}

// Two mirrors of one source, each with a user of its own, three topics of two partitions.
//
// MIR-061: all is equal, and a mirror whose password is refused slows the other one down
// by nothing. MIR-360: it is FAILED with the source's refusal, and tried at a bounded rate.
// MIR-362: with another user's password it goes on where it was, under the other name.
// MIR-364: each topic is fetched by its own mirror's user: the source lets nobody else.
func TestTwoIdentities(t *testing.T) {
	topics := []string{"one-a", "one-b", "two-a"}
	src := newSource(t, kfake.SeedTopics(2, topics...), kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "admin", "pw-admin"),
		ownTopics("one", "one-"), ownTopics("two", "two-"), ownTopics("three", "one-"))
	cl, err := kgo.NewClient(kgo.SeedBrokers(src.ListenAddrs()...), kgo.SASL(plain.Auth{User: "admin", Pass: "pw-admin"}.AsMechanism()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	write := func(n int, names ...string) {
		t.Helper()
		for _, name := range names {
			for p := range int32(2) {
				for range n {
					if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: name, Partition: p, Value: []byte(name)}).FirstErr(); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	write(5, topics...)
	w := newWorld(t, func(o *Options) {
		o.RefreshInterval, o.RetryInitial, o.RetryMax = 250*time.Millisecond, 50*time.Millisecond, 400*time.Millisecond
	})
	for _, name := range []string{"one", "two"} {
		must(t, w.c.Create(w.ctx, name, map[string]string{
			"bootstrap.servers": strings.Join(src.ListenAddrs(), ","), "fetch.wait.max.ms": "50", "fetch.backoff.ms": "20",
			"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaasOf(name, "pw-"+name),
		}))
		w.start(name, name+"-.*")
	}
	caughtUp := func(end int64, names ...string) {
		t.Helper()
		for _, name := range names {
			for p := range int32(2) {
				w.caughtUp(name, p, end)
			}
		}
	}
	caughtUp(5, topics...)

	must(t, w.ctrl.AlterConfigs(w.ctx, mirrorConfig("one", "sasl.jaas.config", jaasOf("one", "hunter2")), false)[0])
	d := w.failed("one-a", 0, "")
	w.until("refused for its password", func() bool {
		d = w.partition("one-a", 0)
		return d.State == metadata.StateFailed && strings.Contains(strings.ToLower(d.ErrorMessage), "authentication")
	})
	if strings.Contains(d.ErrorMessage, "hunter2") || strings.Contains(d.ErrorMessage, "pw-one") {
		t.Errorf("the password is told: %q", d.ErrorMessage)
	}
	var logins atomic.Int64
	src.ControlKey(36, func(kmsg.Request) (kmsg.Response, error, bool) {
		src.KeepControl()
		logins.Add(1)
		return nil, nil, false
	})
	began := time.Now()
	write(20, "two-a")
	caughtUp(25, "two-a")
	if s := w.partition("two-a", 0); s.RetryAttempt != 0 {
		t.Errorf("the other mirror failed: %+v", s)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the other mirror took %v", took)
	}
	// Of mirror one: 4 refreshes a second, and each partition waits at least half of 50, 100,
	// 200 and then 400 ms, so that four partitions try 20 times a second.
	w.until("tried again", func() bool { return w.partition("one-a", 0).RetryAttempt >= 5 })
	if took := time.Since(began); float64(logins.Load()) > 16+(4+20)*took.Seconds() {
		t.Errorf("%d logins in %v", logins.Load(), took)
	}

	write(1, "one-a", "one-b")
	must(t, w.ctrl.AlterConfigs(w.ctx, mirrorConfig("one", "sasl.jaas.config", jaasOf("three", "pw-three")), false)[0])
	caughtUp(6, "one-a", "one-b")
	if w.cut() != 0 {
		t.Error("something was cut")
	}
}
