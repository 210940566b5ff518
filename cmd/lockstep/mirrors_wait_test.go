package main

import (
	"context"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// rowsOf is an answer to describe: "topic-partition STATE lag heard-ms" a line, with
// what the source is said to have missed in lag.
func rowsOf(mirror string, lines ...string) *wire.DescribeClusterMirrorsResponse {
	m := wire.DescribedMirror{MirrorName: mirror}
	for _, line := range lines {
		f := strings.Fields(line)
		at := strings.LastIndexByte(f[0], '-')
		p := wire.DescribedMirrorPartition{StateValue: f[1], SourceOffset: -1, DestinationOffset: -1, Lag: -1}
		index, _ := strconv.Atoi(f[0][at+1:])
		p.Partition = int32(index)
		if len(f) > 2 {
			p.Lag, _ = strconv.ParseInt(f[2], 10, 64)
			heard, _ := strconv.ParseInt(f[3], 10, 64)
			p.Progress = &wire.MirrorProgress{Contact: "current", SourceSeen: 100, LogEnd: 100 - p.Lag, HeardMillis: heard, LagMillis: 1000 * p.Lag}
		}
		if p.StateValue == "FAILED!" {
			p.StateValue, p.RetryAttempt, p.ErrorMessage = "FAILED", -1, kmsg.StringPtr("the source topic was deleted")
		}
		m.Topics = append(m.Topics, wire.DescribedMirrorTopic{TopicName: f[0][:at], Partitions: []wire.DescribedMirrorPartition{p}})
	}
	return &wire.DescribeClusterMirrorsResponse{Mirrors: []wire.DescribedMirror{m}}
}

// When a wait is over, and when it never will be.
func TestMirrorsGoal(t *testing.T) {
	for _, test := range []struct {
		goal, leadsTo string
		rows          []string
		counted, open int
		err           string
	}{
		{"done", "STOPPED", []string{"a-0 STOPPED", "b-0 STOPPED"}, 2, 0, ""},
		{"done", "STOPPED", []string{"a-0 STOPPED", "b-0 STOPPING"}, 2, 1, ""},
		// A stop gets a partition out of any failure.
		{"done", "STOPPED", []string{"a-0 FAILED!"}, 1, 1, ""},
		{"done", "MIRRORING", []string{"a-0 FAILED"}, 1, 1, ""},
		{"done", "MIRRORING", []string{"a-0 PREPARING", "b-0 FAILED!"}, 2, 1, "b-0 of mirror m is FAILED and is not tried again: the source topic was deleted"},
		{"failed", "MIRRORING", []string{"a-0 FAILED!"}, 1, 0, ""},
		// What was stopped before is not waited for, unless nothing else is there.
		{"lag=0", "MIRRORING", []string{"a-0 MIRRORING 0 5", "b-0 STOPPED"}, 1, 0, ""},
		{"done", "MIRRORING", []string{"b-0 STOPPED"}, 1, 0, "b-0 of mirror m is STOPPED"},
		{"lag=0", "MIRRORING", []string{"a-0 MIRRORING 1 5"}, 1, 1, ""},
		{"lag=1", "MIRRORING", []string{"a-0 MIRRORING 1 5"}, 1, 0, ""},
		{"lag=2s", "MIRRORING", []string{"a-0 MIRRORING 2 5"}, 1, 0, ""},
		{"lag=1.5s", "MIRRORING", []string{"a-0 MIRRORING 2 5"}, 1, 1, ""},
		{"lag=0", "MIRRORING", []string{"a-0 PREPARING"}, 1, 1, ""},
		// A lag that was told before the wait began is of no use: the producers may
		// have written after it.
		{"lag=0", "MIRRORING", []string{"a-0 MIRRORING 0 1000"}, 1, 1, ""},
		{"lag=0", "MIRRORING", []string{"a-0 MIRRORING 0 -1"}, 1, 1, ""},
	} {
		g, err := parseGoal(test.goal, test.leadsTo)
		if err != nil {
			t.Fatal(err)
		}
		var rows []describedPartition
		for _, topic := range rowsOf("m", test.rows...).Mirrors[0].Topics {
			rows = append(rows, describePartition("m", topic.TopicName, topic.Partitions[0]))
		}
		counted, open, err := g.pending(rows, time.Second)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if counted != test.counted || text != test.err || err == nil && len(open) != test.open {
			t.Errorf("%s of %q: %d counted, %d open, %q; want %d, %d, %q", test.goal, test.rows, counted, len(open), text, test.counted, test.open, test.err)
		}
	}
}

func TestMirrorsWait(t *testing.T) {
	f := newFakeMirrors(t, withResults(new(wire.RemoveTopicsFromMirrorResponse), "a"),
		rowsOf("m", "a-0 MIRRORING"), rowsOf("m", "a-0 STOPPING"), rowsOf("m", "a-0 STOPPED"))
	out, errOut, code := f.run("--bootstrap-server", f.addr(), "--stop", "--all", "--mirror", "m", "--wait")
	if code != 0 || errOut != "" || !strings.HasPrefix(out, "Stopped mirroring for topics [a] in mirror m\nSTOPPED: 1 partition(s) after ") {
		t.Errorf("%q, %q, exit %d", out, errOut, code)
	}
	if stop := f.asked[0].(*wire.RemoveTopicsFromMirrorRequest); len(stop.Patterns) != 1 || stop.Patterns[0] != ".*" {
		t.Errorf("--all asked for %v", stop.Patterns)
	}

	// What was started is STOPPED or FAILED for a moment more, as it was before.
	f = newFakeMirrors(t, withResults(new(wire.StartMirrorTopicsResponse), "a"),
		rowsOf("m", "a-0 STOPPED"), rowsOf("m", "a-0 FAILED!"), rowsOf("m", "a-0 PREPARING"), rowsOf("m", "a-0 MIRRORING"))
	out, errOut, code = f.run("--bootstrap-server", f.addr(), "--start", "--all", "--mirror", "m", "--wait")
	if code != 0 || errOut != "" || !strings.Contains(out, "MIRRORING: 1 partition(s) after ") {
		t.Errorf("%q, %q, exit %d", out, errOut, code)
	}

	f = newFakeMirrors(t, rowsOf("m", "a-0 MIRRORING 7 1", "b-0 MIRRORING 0 1"))
	out, errOut, code = f.run("--bootstrap-server", f.addr(), "--describe", "--mirror", "m", "--wait=lag=0", "--timeout", "300ms")
	if code != exitFailed || out != "" || errOut != "after 300ms: 1 of 2 partition(s) are not at lag=0: a-0 MIRRORING (lag 7, source current)\n" {
		t.Errorf("%q, %q, exit %d", out, errOut, code)
	}
	// --topics narrows what is waited for.
	out, errOut, code = f.run("--bootstrap-server", f.addr(), "--describe", "--mirror", "m", "--topics", "b|c", "--wait=lag=0")
	if code != 0 || !strings.HasPrefix(out, "lag=0: 1 partition(s)") {
		t.Errorf("%q, %q, exit %d", out, errOut, code)
	}
	out, errOut, code = f.run("--bootstrap-server", f.addr(), "--describe", "--topics", "nothing", "--wait")
	if code != exitFailed || !strings.Contains(errOut, "no mirror partition found") {
		t.Errorf("%q, %q, exit %d", out, errOut, code)
	}
}

// --all without a mirror: every mirror gets its command, also when one of them
// refuses it, and the failure is told.
func TestMirrorsAll(t *testing.T) {
	f := newFakeMirrors(t, &wire.ListClusterMirrorsResponse{Mirrors: []wire.ListedMirror{{MirrorName: "n"}, {MirrorName: "m"}}},
		withResults(new(wire.RemoveTopicsFromMirrorResponse), "a!"), withResults(new(wire.RemoveTopicsFromMirrorResponse), "b"))
	out, errOut, code := f.run("--bootstrap-server", f.addr(), "--stop", "--all")
	if code != exitFailed || out != "Stopped mirroring for topics [b] in mirror n\n" || !strings.HasSuffix(errOut, "mirror m: 1 of 1 topic(s) failed\n") {
		t.Errorf("%q, %q, exit %d", out, errOut, code)
	}
	var asked []string
	for _, r := range f.asked {
		if stop, ok := r.(*wire.RemoveTopicsFromMirrorRequest); ok {
			asked = append(asked, stop.MirrorName)
		}
	}
	if strings.Join(asked, " ") != "m n" {
		t.Errorf("asked to stop %v", asked)
	}
}

func TestMirrorsWatch(t *testing.T) {
	f := newFakeMirrors(t, rowsOf("m", "a-0 PREPARING"), rowsOf("m", "a-0 MIRRORING 3 1"))
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	root := newRootCommand()
	var out strings.Builder
	root.SetOut(&out)
	root.SetArgs([]string{"mirrors", "--bootstrap-server", f.addr(), "--describe", "--watch=50ms"})
	if err := root.ExecuteContext(ctx); err != nil && ctx.Err() == nil {
		t.Fatal(err)
	}
	if text := out.String(); !strings.Contains(text, "PREPARING") || strings.Count(text, "MIRRORING") < 2 || !strings.Contains(text, "every 50ms, Ctrl-C ends") {
		t.Errorf("%s", text)
	}
}

func TestMirrorsSyncs(t *testing.T) {
	d := rowsOf("m", "a-0 MIRRORING 0 1")
	d.Mirrors[0].Syncs = []wire.MirrorSync{{Task: "configs", AgeMillis: 12345}, {Task: "groups", AgeMillis: -1, Error: kmsg.StringPtr("group g:\nnot authorized")}}
	f := newFakeMirrors(t, d)
	out, _, _ := f.run("--bootstrap-server", f.addr(), "--describe", "--syncs")
	want := "" +
		"MIRROR                         SYNC       LAST-SUCCESS-SECONDS ERROR\n" +
		"m                              configs    12.3                 -\n" +
		"m                              groups     -                    group g: not authorized\n"
	if out != want {
		t.Errorf("%s\nwant:\n%s", out, want)
	}
	out, _, _ = f.run("--bootstrap-server", f.addr(), "--describe", "--syncs", "--json")
	if !strings.Contains(out, `"lastSuccessSeconds": 12.345`) || !strings.Contains(out, `"lastSuccessSeconds": null`) {
		t.Errorf("%s", out)
	}
}

// A plan says what is known to be lost, what is not known, and whom it concerns; and
// asks for nothing to be changed.
func TestMirrorsPlan(t *testing.T) {
	d := rowsOf("m", "orders-0 MIRRORING 0 20", "orders-1 MIRRORING 2 20", "late-0 STOPPED", "silent-0 FAILED 12 95200", "new-0 PREPARING")
	d.Mirrors[0].Topics[1].Partitions[0].Progress.OpenTransactions = 1
	d.Mirrors[0].Topics[3].Partitions[0].Progress.Contact = "stale"
	d.Mirrors[0].Topics[3].Partitions[0].Progress.LagMillis = 97000
	d.Mirrors[0].Topics[1].Partitions[0].Progress.MilliRate = 20_000
	d.Mirrors[0].Topics[3].Partitions[0].Progress.MilliRate = 2_500
	d.Mirrors[0].Syncs = []wire.MirrorSync{{Task: "groups", AgeMillis: 34000}}

	brokers := kmsg.NewPtrMetadataResponse()
	groups := kmsg.NewPtrListGroupsResponse()
	groups.Groups = []kmsg.ListGroupsResponseGroup{{Group: "readers", ProtocolType: "consumer"}}
	coordinator := kmsg.NewPtrFindCoordinatorResponse()
	offsets := kmsg.NewPtrOffsetFetchResponse()
	offsets.Topics = []kmsg.OffsetFetchResponseTopic{
		{Topic: "orders", Partitions: []kmsg.OffsetFetchResponseTopicPartition{{Partition: 0, Offset: 90}, {Partition: 1, Offset: 98}}},
		{Topic: "other", Partitions: []kmsg.OffsetFetchResponseTopicPartition{{Partition: 0, Offset: 1}}},
	}
	f := newFakeMirrors(t, d, brokers, groups, coordinator, offsets)
	_, port, _ := net.SplitHostPort(f.l.Addr().String())
	number, _ := strconv.Atoi(port)
	brokers.Brokers = []kmsg.MetadataResponseBroker{{NodeID: 1, Host: "127.0.0.1", Port: int32(number)}}
	coordinator.NodeID, coordinator.Host, coordinator.Port = 1, "127.0.0.1", int32(number)

	out, errOut, code := f.run("--bootstrap-server", f.addr(), "--stop", "--all", "--mirror", "m", "--plan")
	want := "" +
		"MIRROR                         TOPIC                                    PARTITION  STATE         SOURCE   HEARD-SECONDS LOST-RECORDS SINCE-THEN LOST-SECONDS OPEN-TRANSACTIONS\n" +
		"m                              new                                      0          PREPARING     unknown  -             ?            ?          ?            0\n" +
		"m                              orders                                   0          MIRRORING     current  0.0           0            ~0         0            0\n" +
		"m                              orders                                   1          MIRRORING     current  0.0           2            ~1         <=2.0        1\n" +
		"m                              silent                                   0          FAILED        stale    95.2          >=12         ~238       <=97.0       0\n" +
		"\n" +
		"Lost with --stop: at least 14 record(s) that the source is known to have, in 4 partition(s); unknown for 1 of them, whose source has not answered yet.\n" +
		"It told so 0.0 to 95.2 s ago. What it has acknowledged since is lost too: about 239 record(s) if it went on taking 23 a second; nobody here knows.\n" +
		"The source does not answer now. Whatever is lost was written there in the last LOST-SECONDS.\n" +
		"Aborted: 1 open transaction(s).\n" +
		"\n" +
		"GROUP                                    STATE                PARTITIONS UNREAD\n" +
		"readers                                  -                    2          10\n" +
		"\n" +
		"Their offsets were last synchronised 34 s ago by mirror m: consumers may see again what they read since.\n" +
		"Nothing was changed.\n"
	if out != want || errOut != "" || code != 0 {
		t.Errorf("exit %d, %s\n%s\nwant:\n%s", code, errOut, out, want)
	}
	for _, r := range f.asked {
		if r.Key() == 96 {
			t.Error("a plan stopped something")
		}
	}
	out, _, _ = f.run("--bootstrap-server", f.addr(), "--stop", "--all", "--mirror", "m", "--plan", "--json")
	if !strings.Contains(out, `"lostRecords": 12`) || !strings.Contains(out, `"lostRecords": null`) || !strings.Contains(out, `"group": "readers"`) ||
		!strings.Contains(out, `"sinceRecords": 238`) || !strings.Contains(out, `"sourceEnd": 100`) || !strings.Contains(out, `"unknownPartitions": 1`) {
		t.Errorf("%s", out)
	}
}
