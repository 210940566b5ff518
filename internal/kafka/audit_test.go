package kafka

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// auditFile is an audit log in memory.
type auditFile struct {
	mu   sync.Mutex
	b    bytes.Buffer
	fail error
}

func (f *auditFile) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return 0, f.fail
	}
	return f.b.Write(p)
}

// take answers the lines since the last call.
func (f *auditFile) take(t *testing.T) (lines []auditLine) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for l := range strings.Lines(f.b.String()) {
		var line auditLine
		if err := json.Unmarshal([]byte(l), &line); err != nil {
			t.Fatalf("%v: %s", err, l)
		}
		lines = append(lines, line)
	}
	f.b.Reset()
	return lines
}

// TestAudit: every request of a changing key is one line, and of another key
// only one that was refused.
func TestAudit(t *testing.T) {
	var file auditFile
	w := newSecured(t, func(o *Options) { o.Audit = &file })
	w.commitSome()
	file.take(t)
	seen := map[int16]bool{}
	for _, r := range w.requests() {
		req := r.request()
		if !strings.HasPrefix(w.outcome(hostAll, r.request()), "ok") {
			file.take(t)
			continue // refused with every right, so not for want of one
		}
		file.take(t)
		for _, host := range []string{hostNone, hostAll} {
			out := w.outcome(host, r.request())
			denied := !strings.HasPrefix(out, "ok")
			lines := file.take(t)
			want := 0
			if changing[req.Key()] || denied {
				want = 1
			}
			if len(lines) != want {
				t.Errorf("%s from %s (%s): %d lines, want %d", r.name, host, out, len(lines), want)
				continue
			}
			if want == 0 {
				continue
			}
			seen[req.Key()] = true
			l := lines[0]
			if l.Request != keyName(req.Key()) || l.Address != host || l.Principal != "User:ANONYMOUS" || (l.Outcome == "denied") != denied || l.Time.IsZero() {
				t.Errorf("%s from %s: %+v", r.name, host, l)
			}
			if len(l.Rights) == 0 {
				t.Errorf("%s from %s names no resource: %+v", r.name, host, l)
			}
		}
	}
	for _, a := range w.server.apis {
		if a != nil && changing[a.key] && !seen[a.key] {
			t.Errorf("key %d (%s) was not tried", a.key, keyName(a.key))
		}
	}
}

// TestAuditKeepsSecrets: what a request carries beside names is not written down.
func TestAuditKeepsSecrets(t *testing.T) {
	const canary = "canary-7f3a"
	var file auditFile
	w := newSecured(t, func(o *Options) { o.Audit = &file })
	secret := canary
	jaas := `org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="` + canary + `";`
	c := w.from(hostAll)
	ask[kmsg.Response](t, c, &wire.CreateClusterMirrorRequest{MirrorName: w.prefix + "-secret", Config: []wire.MirrorConfig{{Name: "sasl.jaas.config", Value: &jaas}}})
	alter := &kmsg.IncrementalAlterConfigsRequest{Version: 1, Resources: []kmsg.IncrementalAlterConfigsRequestResource{{ResourceType: 64, ResourceName: w.prefix,
		Configs: []kmsg.IncrementalAlterConfigsRequestResourceConfig{{Name: "ssl.key.password", Value: &secret}}}}}
	ask[kmsg.Response](t, c, alter)
	ask[kmsg.Response](t, c, &kmsg.AlterUserSCRAMCredentialsRequest{Upsertions: []kmsg.AlterUserSCRAMCredentialsRequestUpsertion{{Name: "u", Mechanism: 1, Iterations: 4096,
		Salt: []byte(canary), SaltedPassword: []byte(canary)}}})
	if text := file.b.String(); strings.Contains(text, canary) || strings.Count(text, "\n") != 3 {
		t.Errorf("%s", text)
	}
}

// TestAuditIsBounded: a line has a size, whatever is asked; a lost one is told.
func TestAuditIsBounded(t *testing.T) {
	var file auditFile
	lost := make(chan error, 1)
	w := newSecured(t, func(o *Options) {
		o.Audit = &file
		o.AuditLost = func(err error) { lost <- err }
	})
	req := &kmsg.DeleteTopicsRequest{Version: 4}
	for range 1000 {
		req.TopicNames = append(req.TopicNames, strings.Repeat("\"", 500))
	}
	req.TopicNames[999] = w.topic.Name
	ask[kmsg.Response](t, w.from(hostNone), req)
	if n := file.b.Len(); n > 32<<10 {
		t.Errorf("a line of %d bytes", n)
	}
	l := file.take(t)[0]
	if len(l.Rights)+l.More != 1000 || len(l.Rights) != maxAuditRights || l.Outcome != "denied" {
		t.Errorf("%d rights and %d more, %s", len(l.Rights), l.More, l.Outcome)
	}
	if l.Rights[0].Operation != authz.Delete.String() || l.Rights[0].Type != authz.Topic.String() || l.Rights[0].Allowed {
		t.Errorf("%+v", l.Rights[0])
	}
	file.fail = errors.New("the disk is gone")
	ask[kmsg.Response](t, w.from(hostNone), req)
	if err := <-lost; !errors.Is(err, file.fail) {
		t.Error(err)
	}
}
