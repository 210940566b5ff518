package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// fakeMirrors is a server that knows the mirror keys and answers what a test
// tells it to: several answers for one key in their order, and the last again and
// again. It remembers what it was asked.
type fakeMirrors struct {
	l       net.Listener
	answers map[int16][]kmsg.Response
	mu      sync.Mutex
	asked   []kmsg.Request
	done    sync.WaitGroup
}

func newFakeMirrors(t *testing.T, answers ...kmsg.Response) *fakeMirrors {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeMirrors{l: l, answers: make(map[int16][]kmsg.Response)}
	for _, a := range answers {
		f.answers[a.Key()] = append(f.answers[a.Key()], a)
	}
	f.done.Add(1)
	go f.serve()
	t.Cleanup(func() { l.Close(); f.done.Wait() })
	return f
}

func (f *fakeMirrors) serve() {
	defer f.done.Done()
	for {
		c, err := f.l.Accept()
		if err != nil {
			return
		}
		f.done.Add(1)
		go func() {
			defer f.done.Done()
			defer c.Close()
			f.answer(c)
		}()
	}
}

func (f *fakeMirrors) answer(c net.Conn) {
	for {
		frame, err := wire.ReadFrame(c, 1<<20, nil)
		if err != nil {
			return
		}
		h, body, err := wire.ParseRequestHeader(frame)
		if err != nil {
			return
		}
		req := wire.NewRequest(h.Key)
		req.SetVersion(h.Version)
		if req.ReadFrom(body) != nil {
			return
		}
		var resp kmsg.Response
		flexible := true
		if h.Key == 18 {
			v := kmsg.NewPtrApiVersionsResponse()
			v.Version = h.Version
			f.mu.Lock()
			for key := range f.answers {
				v.ApiKeys = append(v.ApiKeys, kmsg.ApiVersionsResponseApiKey{ApiKey: key})
			}
			f.mu.Unlock()
			resp, flexible = v, false // KIP-511: its header is never flexible
		} else {
			f.mu.Lock()
			f.asked = append(f.asked, req)
			resp = f.answers[h.Key][0]
			if rest := f.answers[h.Key][1:]; len(rest) > 0 {
				f.answers[h.Key] = rest
			}
			f.mu.Unlock()
			flexible = wire.IsFlexible(h.Key, h.Version)
			resp.SetVersion(h.Version)
		}
		if _, err := c.Write(wire.AppendResponse(nil, h.CorrelationID, resp, flexible)); err != nil {
			return
		}
	}
}

// runMirrors runs one command line and gives what it printed.
func (f *fakeMirrors) run(args ...string) (out, errOut string, code int) {
	root := newRootCommand()
	var o, e bytes.Buffer
	root.SetOut(&o)
	root.SetErr(&e)
	root.SetArgs(append([]string{"mirrors"}, args...))
	if err := root.ExecuteContext(context.Background()); err != nil {
		e.WriteString(err.Error() + "\n")
		code = exitFailed
		var usage usageError
		if errors.As(err, &usage) {
			code = exitUsage
		}
	}
	return o.String(), e.String(), code
}

func (f *fakeMirrors) addr() string {
	_, port, _ := net.SplitHostPort(f.l.Addr().String())
	return ":" + port // as in the examples: an empty host is localhost
}

func results(names ...string) (out []wire.MirrorTopicResult) {
	for _, n := range names {
		r := wire.MirrorTopicResult{Name: n}
		if name, failed := strings.CutSuffix(n, "!"); failed {
			r.Name, r.ErrorCode, r.ErrorMessage = name, 145, kmsg.StringPtr("not now")
		}
		out = append(out, r)
	}
	return out
}

func withResults[R interface {
	kmsg.Response
	SetResults([]wire.MirrorTopicResult)
}](resp R, names ...string) R {
	resp.SetResults(results(names...))
	return resp
}

// The lines of section 11, for both vocabularies.
func TestMirrorsLines(t *testing.T) {
	config := filepath.Join(t.TempDir(), "my.properties")
	if err := os.WriteFile(config, []byte("bootstrap.servers=localhost:9092\n# comment\nfetch.max.bytes = 4096\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken := new(wire.CreateClusterMirrorResponse)
	taken.SetStatus(136, "mirror already exists: m")
	for _, test := range []struct {
		args   string
		answer kmsg.Response
		out    string
		errOut string
		code   int
	}{
		{"--create --mirror m --mirror-config " + config, new(wire.CreateClusterMirrorResponse), "Created mirror m\n", "", 0},
		{"--create --mirror m --mirror-config " + config, taken, "", "mirror already exists: m [CLUSTER_MIRROR_ALREADY_EXISTS 136]\n", 1},
		{"--create --mirror m --mirror-config /nowhere", new(wire.CreateClusterMirrorResponse), "", "/nowhere", 2},
		{"--start --mirror m --topics .*", withResults(new(wire.StartMirrorTopicsResponse), "b", "a"), "Started 2 mirror topic(s) in mirror m: [a, b]\n", "", 0},
		{"--add --mirror m --topic a,b", withResults(new(wire.StartMirrorTopicsResponse), "a"), "Started 1 mirror topic(s) in mirror m: [a]\n", "", 0},
		{"--add --mirror m --topic a", new(wire.StartMirrorTopicsResponse), "No matching topics found yet. Patterns saved to mirror m for auto-discovery.\n", "", 0},
		{"--stop --mirror m --topics .*", withResults(new(wire.RemoveTopicsFromMirrorResponse), "a", "b"), "Stopped mirroring for topics [a, b] in mirror m\n", "", 0},
		{"--remove --mirror m --topic .*", withResults(new(wire.RemoveTopicsFromMirrorResponse), "a"), "Stopped mirroring for topics [a] in mirror m\n", "", 0},
		{"--pause --mirror m --topics a", withResults(new(wire.PauseMirrorTopicsResponse), "a"), "Paused mirroring for 1 topic(s) in mirror m: [a]\n", "", 0},
		{"--resume --mirror m --topics a", withResults(new(wire.ResumeMirrorTopicsResponse), "a"), "Resumed mirroring for 1 topic(s) in mirror m: [a]\n", "", 0},
		{"--resume --mirror m --topics a", withResults(new(wire.ResumeMirrorTopicsResponse), "a", "b!"),
			"Resumed mirroring for 1 topic(s) in mirror m: [a]\n", "b: not now [INVALID_CLUSTER_MIRROR_STATES 145]\n1 of 2 topic(s) failed\n", 1},
		{"--resume --mirror m --topics b", withResults(new(wire.ResumeMirrorTopicsResponse), "b!"), "", "b: not now [INVALID_CLUSTER_MIRROR_STATES 145]\n1 of 1 topic(s) failed\n", 1},
		{"--recover --mirror m --topics a", withResults(new(wire.RecoverMirrorTopicsResponse), "a"), "Recovered 1 topic(s) in mirror m: [a]\n", "", 0},
		{"--delete --mirror m", new(wire.DeleteClusterMirrorResponse), "Deleted mirror m\n", "last mirrored epochs", 0},
		{"--list", new(wire.ListClusterMirrorsResponse), "No mirrors found\n", "", 0},
		{"--list --json", new(wire.ListClusterMirrorsResponse), "[]\n", "", 0},
		{"--describe", new(wire.DescribeClusterMirrorsResponse), "No mirror partitions found\n", "", 0},
		{"--describe --failed", new(wire.DescribeClusterMirrorsResponse), "No failed partitions found\n", "", 0},
		{"--describe --json", new(wire.DescribeClusterMirrorsResponse), "[]\n", "", 0},
		{"--describe --mirror x", &wire.DescribeClusterMirrorsResponse{Mirrors: []wire.DescribedMirror{{ErrorCode: 137, MirrorName: "x"}}},
			"", "mirror x: UNKNOWN_CLUSTER_MIRROR (137)\n", 1},
	} {
		t.Run(test.args, func(t *testing.T) {
			f := newFakeMirrors(t, test.answer)
			out, errOut, code := f.run(append([]string{"--bootstrap-server", f.addr()}, strings.Fields(test.args)...)...)
			wrong := errOut != test.errOut
			if !strings.HasSuffix(test.errOut, "\n") && test.errOut != "" {
				wrong = !strings.Contains(errOut, test.errOut)
			}
			if out != test.out || wrong || code != test.code {
				t.Errorf("printed %q, %q, exit %d; want %q, %q, %d", out, errOut, code, test.out, test.errOut, test.code)
			}
		})
	}
}

// What goes to the server: patterns as they are, the properties as they are.
func TestMirrorsRequests(t *testing.T) {
	f := newFakeMirrors(t, new(wire.StartMirrorTopicsResponse), new(wire.CreateClusterMirrorResponse))
	f.run("--bootstrap-server", f.addr(), "--start", "--mirror", "m", "--topics", "a, b.*", "--exclude", "x,y")
	config := filepath.Join(t.TempDir(), "my.properties")
	if err := os.WriteFile(config, []byte("bootstrap.servers=localhost:9092\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.run("--bootstrap-server", f.addr(), "--create", "--mirror", "m", "--mirror-config", config)
	start := f.asked[0].(*wire.StartMirrorTopicsRequest)
	if !slices.Equal(start.IncludePatterns, []string{"a", "b.*"}) || !slices.Equal(start.ExcludePatterns, []string{"x", "y"}) || len(start.Topics) != 0 || start.StateValidationOffset != -1 {
		t.Errorf("start: %+v", start)
	}
	create := f.asked[1].(*wire.CreateClusterMirrorRequest)
	if len(create.Config) != 1 || create.Config[0].Name != "bootstrap.servers" || *create.Config[0].Value != "localhost:9092" {
		t.Errorf("create: %+v", create)
	}
}

func TestMirrorsUsage(t *testing.T) {
	f := newFakeMirrors(t, new(wire.ListClusterMirrorsResponse))
	for args, want := range map[string]string{
		"":                        "exactly one of",
		"--list --describe":       "exactly one of",
		"--list .bashrc .profile": "quote it",
		"--start --mirror m":      "--topics is needed",
		"--start --topics a":      "--mirror is needed",
		"--create --mirror m":     "--mirror-config is needed",
		"--list --mirror m":       "--mirror does not belong",
		"--stop --mirror m --topics a --exclude b": "--exclude does not belong",
		"--list --failed":                          "--failed does not belong",
		"--start --mirror m --topic a --topics b":  "the same",
		"--describe --wait lag=0":                  "--wait=lag=0",
		"--describe --wait=soon":                   "neither a state",
		"--describe --wait=lag=few":                "lag=0 is no record",
		"--describe --wait --watch":                "--watch does not belong",
		"--describe --plan":                        "--plan does not belong",
		"--start --all":                            "--mirror is needed",
		"--stop --all --topics a":                  "--all is every topic",
		"--stop --all --plan --wait":               "--wait does not belong",
		"--stop --all --json":                      "--json does not belong",
		"--start --mirror m --all --json":          "--json does not belong",
		"--start --mirror m --all --plan --wait":   "--wait does not belong",
		"--start --all --plan":                     "--mirror is needed",
		"--describe --failed --syncs":              "--syncs does not belong",
		"--stop --all --wait --timeout 0s":         "must be positive",
		"--nonsense":                               "nonsense",
	} {
		out, errOut, code := f.run(append([]string{"--bootstrap-server", f.addr()}, strings.Fields(args)...)...)
		if code != exitUsage || !strings.Contains(errOut, want) || out != "" {
			t.Errorf("%q: %q, %q, exit %d", args, out, errOut, code)
		}
	}
	if _, errOut, code := f.run("--list"); code != exitUsage || !strings.Contains(errOut, "--bootstrap-server is needed") {
		t.Errorf("no address: %q, exit %d", errOut, code)
	}
	if _, errOut, code := f.run("--bootstrap-server", "nonsense", "--list"); code != exitUsage || !strings.Contains(errOut, "--bootstrap-server") {
		t.Errorf("bad address: %q, exit %d", errOut, code)
	}
	f.l.Close()
	if _, errOut, code := f.run("--bootstrap-server", f.addr(), "--list"); code != exitFailed || strings.Count(strings.TrimSpace(errOut), "\n") != 0 || !strings.Contains(errOut, "destination cluster") {
		t.Errorf("nobody there: %q, exit %d", errOut, code)
	}
}

// Tables, and the same as JSON (MIR-381); what failed alone (MIR-382).
func TestMirrorsTables(t *testing.T) {
	long := strings.Repeat("x", 40) + "-end"
	describe := &wire.DescribeClusterMirrorsResponse{Mirrors: []wire.DescribedMirror{
		{MirrorName: "n", Topics: []wire.DescribedMirrorTopic{{TopicName: long, Partitions: []wire.DescribedMirrorPartition{
			{Partition: 0, SourceOffset: -1, DestinationOffset: -1, Lag: -1, StateValue: "FAILED", RetryAttempt: -1, ErrorMessage: kmsg.StringPtr(strings.Repeat("e", 100))},
		}}}},
		{MirrorName: "m", Topics: []wire.DescribedMirrorTopic{{TopicName: "orders", Partitions: []wire.DescribedMirrorPartition{
			{Partition: 1, SourceOffset: 12, DestinationOffset: 10, Lag: 2, StateValue: "MIRRORING",
				Progress: &wire.MirrorProgress{Contact: "behind", SourceSeen: 12, LogEnd: 10, HeardMillis: 1500, LagMillis: 2340}},
			{Partition: 2, SourceOffset: 5, DestinationOffset: 5, StateValue: "MIRRORING",
				Progress: &wire.MirrorProgress{Contact: "idle", SourceSeen: 5, LogEnd: 5, HeardMillis: 20}},
			{Partition: 0, SourceOffset: -1, DestinationOffset: -1, Lag: -1, StateValue: "FAILED", RetryAttempt: 3, ErrorMessage: kmsg.StringPtr("why")},
		}}}},
	}}
	list := &wire.ListClusterMirrorsResponse{Mirrors: []wire.ListedMirror{{MirrorName: "m", TopicCount: 3}}}
	brokers := kmsg.NewPtrMetadataResponse()
	brokers.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1}}
	configs := kmsg.NewPtrDescribeConfigsResponse()
	configs.Resources = []kmsg.DescribeConfigsResponseResource{{Configs: []kmsg.DescribeConfigsResponseResourceConfig{
		{Name: "mirror.failed.retry.max.attempts", Value: kmsg.StringPtr("20")}}}}
	f := newFakeMirrors(t, describe, list, brokers, configs)

	out, _, _ := f.run("--bootstrap-server", f.addr(), "--describe")
	want := "" +
		"MIRROR                         TOPIC                                    PARTITION  SOURCE-OFFSET   DESTINATION-OFFSET LAG        STATE        LAG-SECONDS  SOURCE\n" +
		"m                              orders                                   0          -               -                  -          FAILED       -            -\n" +
		"m                              orders                                   1          12              10                 2          MIRRORING    2.3          behind\n" +
		"m                              orders                                   2          5               5                  0          MIRRORING    0.0          idle\n" +
		"n                              ..." + strings.Repeat("x", 33) + "-end 0          -               -                  -          FAILED       -            -\n"
	if out != want {
		t.Errorf("describe:\n%s\nwant:\n%s", out, want)
	}

	out, _, _ = f.run("--bootstrap-server", f.addr(), "--describe", "--failed")
	lines := strings.Split(out, "\n")
	if want := "MIRROR                         TOPIC                                    PARTITION  RETRY   ERROR"; lines[0] != want {
		t.Errorf("failed: %q, want %q", lines[0], want)
	}
	if want := "m                              orders                                   0          3/20    why"; lines[1] != want {
		t.Errorf("failed: %q, want %q", lines[1], want)
	}
	if !strings.HasSuffix(lines[2], "NonRetryable "+strings.Repeat("e", 77)+"...") {
		t.Errorf("failed: %q", lines[2])
	}

	out, _, _ = f.run("--bootstrap-server", f.addr(), "--describe", "--json")
	var rows []map[string]any
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 4 {
		t.Fatalf("json: %v, %s", err, out)
	}
	if got := rows[1]; got["mirror"] != "m" || got["topic"] != "orders" || got["partition"] != 1.0 || got["sourceOffset"] != 12.0 ||
		got["destinationOffset"] != 10.0 || got["lag"] != 2.0 || got["state"] != "MIRRORING" || got["retryAttempt"] != 0.0 || got["errorMessage"] != nil ||
		got["lagSeconds"] != 2.34 || got["source"] != "behind" || got["sourceHeardSeconds"] != 1.5 || len(got) != 12 {
		t.Errorf("json: %v", got)
	}
	if rows[0]["lag"] != -1.0 || rows[0]["errorMessage"] != "why" || rows[0]["lagSeconds"] != nil || rows[0]["source"] != nil {
		t.Errorf("json: %v", rows[0])
	}

	out, _, _ = f.run("--bootstrap-server", f.addr(), "--list")
	if want := "MIRROR                         TOPICS     SOURCE-CLUSTER-ID          SOURCE-BOOTSTRAP-SERVER\n" +
		"m                              3          -                          -\n"; out != want {
		t.Errorf("list:\n%s\nwant:\n%s", out, want)
	}
}
