package group

import (
	"errors"
	"fmt"
	"maps"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Scripts in testdata drive one group's machine. Time begins at 0s and moves by
// `advance` only. Every request has a name, its ticket; the answer is printed
// with it. Writes are acknowledged at once, unless `hold` was said.
//
//	new [delay=3s] [max-size=N] [hold]      a new group
//	join NAME [id=] [instance=] [client=] [protocols=(range:t1+t2,rr:t1)] [type=consumer]
//	     [session=10s] [rebalance=60s] [old] [skip]     old: without KIP-394
//	sync NAME id= gen= [instance=] [protocol=] [assign=(member:bytes,…)]
//	heartbeat NAME id= gen= [instance=]
//	leave NAME id=(a,b) [instance=(x)]
//	commit NAME [id=] [gen=] [instance=] [retention=1h] [mirror] offsets=(t-0:5@epoch/metadata,…)
//	txn-commit NAME pid=7 [id=] [gen=] [instance=] offsets=(t-0:5,…)
//	end-txn commit|abort pid=7      the log has the marker
//	delete NAME | delete-offsets NAME partitions=(t-0,…) | sweep | topics-gone topics=(t)
//	hold | stored [error]       acknowledge the oldest write that is held
//	advance 5s                  with the ticks that come due
//	restart                     forget all, and replay what was acknowledged
//	state | offsets             with those that open transactions hold back
func TestMachine(t *testing.T) {
	datadriven.Walk(t, "testdata/machine", func(t *testing.T, path string) {
		h := &scripted{t: t}
		datadriven.RunTest(t, path, h.run)
	})
}

type scripted struct {
	t       *testing.T
	o       Options
	m       *machine
	now     time.Time
	names   map[ticket]string
	tickets ticket
	ids     int
	hold    bool
	held    []write
	log     []logged
	out     strings.Builder
}

// logged is one record of the log, or a marker.
type logged struct {
	entry
	producerID int64 // -1: not in a transaction
	marker     *endTxnInput
}

var epoch0 = time.UnixMilli(1_700_000_000_000)

func (h *scripted) run(t *testing.T, d *datadriven.TestData) string {
	h.t = t
	h.out.Reset()
	name := ""
	if len(d.CmdArgs) > 0 && len(d.CmdArgs[0].Vals) == 0 {
		name = d.CmdArgs[0].Key
	}
	switch d.Cmd {
	case "new":
		h.o = Options{}
		if d.HasArg("delay") {
			h.o.InitialRebalanceDelay = h.duration(d, "delay", 0)
		} else {
			h.o.InitialRebalanceDelay = -1
		}
		if s := arg(d, "max-size", ""); s != "" {
			h.o.MaxGroupSize, _ = strconv.Atoi(s)
		}
		h.o.EnsureDefaults()
		h.now, h.names, h.tickets, h.ids, h.held, h.log = epoch0, map[ticket]string{}, 0, 0, nil, nil
		h.hold = d.HasArg("hold")
		h.m = newMachine("g", &h.o, h.now)
	case "hold":
		h.hold = true
	case "join":
		h.ids++
		r := &JoinRequest{
			Group: "g", MemberID: arg(d, "id", ""), InstanceID: arg(d, "instance", ""), ClientID: arg(d, "client", name),
			SessionTimeout: h.duration(d, "session", 10*time.Second), RebalanceTimeout: h.duration(d, "rebalance", time.Minute),
			ProtocolType: arg(d, "type", "consumer"), RequireKnownID: !d.HasArg("old"), CanSkipAssignment: d.HasArg("skip"),
		}
		for _, p := range list(d, "protocols", "range:t") {
			kind, topics, _ := strings.Cut(p, ":")
			r.Protocols = append(r.Protocols, Protocol{kind, subscription(topics)})
		}
		h.step(joinInput{h.ticket(name), r, fmt.Sprintf("%s-%d", arg(d, "client", name), h.ids)})
	case "sync":
		r := &SyncRequest{
			Group: "g", MemberID: arg(d, "id", ""), InstanceID: arg(d, "instance", ""), Generation: gen(d),
			ProtocolType: arg(d, "type", ""), Protocol: arg(d, "protocol", ""),
		}
		for _, a := range list(d, "assign", "") {
			id, data, _ := strings.Cut(a, ":")
			r.Assignments = append(r.Assignments, Assignment{id, []byte(data)})
		}
		h.step(syncInput{h.ticket(name), r})
	case "heartbeat":
		h.step(heartbeatInput{h.ticket(name), &HeartbeatRequest{
			Group: "g", MemberID: arg(d, "id", ""), InstanceID: arg(d, "instance", ""), Generation: gen(d),
		}})
	case "leave":
		r := &LeaveRequest{Group: "g"}
		for _, id := range list(d, "id", "") {
			r.Members = append(r.Members, LeaveMember{MemberID: id})
		}
		for _, id := range list(d, "instance", "") {
			r.Members = append(r.Members, LeaveMember{InstanceID: id})
		}
		h.step(leaveInput{h.ticket(name), r})
	case "commit":
		r := &CommitRequest{
			Group: "g", MemberID: arg(d, "id", ""), InstanceID: arg(d, "instance", ""), Generation: gen(d),
			Retention: h.duration(d, "retention", -1),
		}
		for _, s := range list(d, "offsets", "") {
			r.Offsets = append(r.Offsets, parseOffset(s))
		}
		h.step(commitInput{h.ticket(name), r, d.HasArg("mirror")})
	case "txn-commit":
		r := &TxnCommitRequest{
			Group: "g", MemberID: arg(d, "id", ""), InstanceID: arg(d, "instance", ""), Generation: gen(d), ProducerID: pid(d),
		}
		for _, s := range list(d, "offsets", "") {
			r.Offsets = append(r.Offsets, parseOffset(s))
		}
		h.step(txnCommitInput{h.ticket(name), r})
	case "end-txn":
		in := endTxnInput{producerID: pid(d), commit: d.HasArg("commit")}
		h.log = append(h.log, logged{producerID: in.producerID, marker: &in})
		h.step(in)
	case "delete":
		h.step(deleteInput{h.ticket(name)})
	case "delete-offsets":
		var keys []TopicPartition
		for _, s := range list(d, "partitions", "") {
			o := parseOffset(s + ":0")
			keys = append(keys, TopicPartition{o.Topic, o.Partition})
		}
		h.step(deleteOffsetsInput{h.ticket(name), keys})
	case "sweep":
		h.step(sweep{})
	case "topics-gone":
		gone := map[string]struct{}{}
		for _, s := range list(d, "topics", "") {
			gone[s] = struct{}{}
		}
		h.step(topicsGone{gone})
	case "stored":
		if len(h.held) == 0 {
			d.Fatalf(t, "no write is held")
		}
		w := h.held[0]
		h.held = h.held[1:]
		var err error
		if name != "" {
			err = errors.New(name)
		}
		h.store(w, err)
	case "advance":
		by, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		end := h.now.Add(by)
		for !h.m.wake.IsZero() && !h.m.wake.After(end) {
			if h.m.wake.After(h.now) {
				h.now = h.m.wake
			}
			h.step(tick{})
		}
		h.now = end
	case "restart":
		image := newReplay()
		for i, e := range h.log {
			if e.marker != nil {
				image.endTxn(e.producerID, e.marker.commit)
				continue
			}
			x, err := decode(e.key, e.value)
			if err != nil {
				t.Fatal(err)
			}
			image.apply(&x, e.producerID, int64(i))
		}
		h.m = newMachine("g", &h.o, h.now)
		h.held = nil
		if g := image.groups["g"]; g != nil {
			h.m.adopt(h.now, g)
		}
		h.checkAll()
		h.state()
	case "state":
		h.state()
	case "offsets":
		for _, o := range h.m.sortedOffsets() {
			fmt.Fprintf(&h.out, "%s-%d:%d@%d/%s\n", o.Topic, o.Partition, o.Offset, o.LeaderEpoch, o.Metadata)
		}
		for _, tp := range h.m.pendingKeys() {
			fmt.Fprintf(&h.out, "%s-%d unstable\n", tp.Topic, tp.Partition)
		}
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	h.checkPending()
	if h.out.Len() == 0 {
		return "ok\n"
	}
	return h.out.String()
}

func (h *scripted) ticket(name string) ticket {
	h.tickets++
	h.names[h.tickets] = name
	return h.tickets
}

func (h *scripted) step(in any) {
	var fx effects
	if err := h.m.step(h.now, in, &fx); err != nil {
		h.t.Fatal(err)
	}
	h.checkAll()
	for _, r := range fx.replies {
		name, ok := h.names[r.to]
		if !ok {
			h.t.Fatalf("answered twice, or never asked: %v", r)
		}
		delete(h.names, r.to)
		fmt.Fprintf(&h.out, "%s%s: %s\n", h.at(), name, h.print(r.result))
	}
	for _, w := range fx.writes {
		fmt.Fprintf(&h.out, "%swrite %s\n", h.at(), h.printWrite(w))
		if h.hold {
			h.held = append(h.held, w)
		} else {
			h.store(w, nil)
		}
	}
}

func (h *scripted) store(w write, err error) {
	if err == nil {
		id := int64(-1)
		if w.txn != nil {
			id = w.txn.producerID
		}
		for _, e := range w.records {
			h.log = append(h.log, logged{entry: e, producerID: id})
		}
	}
	h.step(stored{w.done, err})
}

// checkAll is check without regard for cost.
func (h *scripted) checkAll() {
	m := h.m
	joining, knows := 0, map[string]int{}
	for id, mem := range m.members {
		if mem.id != id {
			h.t.Fatalf("member %q is filed as %q", mem.id, id)
		}
		if mem.join != 0 {
			joining++
		}
		if mem.timed() && (m.wake.IsZero() || m.wake.After(mem.deadline)) {
			h.t.Fatalf("nobody wakes for the session of %q", id)
		}
		if mem.instanceID != "" && m.static[mem.instanceID] != id {
			h.t.Fatalf("static member %q is not known as %q", id, mem.instanceID)
		}
		for _, p := range mem.protocols {
			knows[p.Name]++
		}
	}
	if joining != m.joining {
		h.t.Fatalf("%d members wait for a join, counted %d", joining, m.joining)
	}
	for name, n := range m.knows {
		if knows[name] != n {
			h.t.Fatalf("protocol %q is known by %d, counted %d", name, knows[name], n)
		}
	}
	if len(m.members) > 0 && m.members[m.leader] == nil {
		h.t.Fatalf("leader %q is no member", m.leader)
	}
}

// checkPending counts what open transactions hold back.
func (h *scripted) checkPending() {
	pending := map[TopicPartition]int{}
	for _, txn := range h.m.txns {
		if len(txn) == 0 {
			h.t.Fatal("a transaction without offsets is kept")
		}
		for tp := range txn {
			pending[tp]++
		}
	}
	for _, w := range h.held {
		if of, ok := w.done.(pendingTxnCommit); ok {
			for _, tp := range of.keys {
				pending[tp]++
			}
		}
	}
	if !maps.Equal(pending, h.m.undecided) {
		h.t.Fatalf("undecided %v, counted %v", pending, h.m.undecided)
	}
}

func (h *scripted) at() string {
	return fmt.Sprintf("[%s] ", h.now.Sub(epoch0))
}

func (h *scripted) print(result any) string {
	switch r := result.(type) {
	case nil:
		return "ok"
	case error:
		return "error: " + r.Error()
	case JoinResult:
		if r.Err != nil {
			return fmt.Sprintf("error: %v; member=%s", r.Err, r.MemberID)
		}
		s := fmt.Sprintf("joined member=%s gen=%d protocol=%s/%s leader=%s", r.MemberID, r.Generation, r.ProtocolType, r.Protocol, r.Leader)
		if r.SkipAssignment {
			s += " skip-assignment"
		}
		for _, m := range r.Members {
			s += fmt.Sprintf(" %s", m.MemberID)
			if m.InstanceID != "" {
				s += "(" + m.InstanceID + ")"
			}
		}
		return s
	case SyncResult:
		if r.Err != nil {
			return "error: " + r.Err.Error()
		}
		return fmt.Sprintf("assigned %q", r.Assignment)
	case LeaveResult:
		return fmt.Sprintf("left %v %v", r.Err, r.Members)
	case commitResult:
		if r.err != nil {
			return "error: " + r.err.Error()
		}
		return fmt.Sprintf("committed %v", r.errs)
	case DeleteOffsetsResult:
		return fmt.Sprintf("deleted %v %v", r.Err, r.Partitions)
	}
	return fmt.Sprint(result)
}

func (h *scripted) printWrite(w write) string {
	var out []string
	for _, e := range w.records {
		d, err := decode(e.key, e.value)
		switch {
		case err != nil:
			h.t.Fatal(err)
		case d.isGroup && d.members == nil:
			out = append(out, "group=null")
		case d.isGroup:
			var members []string
			for _, m := range d.members.Members {
				members = append(members, fmt.Sprintf("%s:%s", m.MemberID, m.Assignment))
			}
			out = append(out, fmt.Sprintf("group gen=%d [%s]", d.members.Generation, strings.Join(members, " ")))
		case d.offset == nil:
			out = append(out, fmt.Sprintf("%s-%d=null", d.tp.Topic, d.tp.Partition))
		default:
			out = append(out, fmt.Sprintf("%s-%d=%d", d.tp.Topic, d.tp.Partition, d.offset.offset))
		}
	}
	return strings.Join(out, ", ")
}

func (h *scripted) state() {
	m := h.m
	fmt.Fprintf(&h.out, "%s%s gen=%d protocol=%s/%s leader=%s", h.at(), m.state, m.generation, m.protocolType, m.protocol, m.leader)
	for _, id := range m.memberIDs() {
		mem := m.members[id]
		fmt.Fprintf(&h.out, " %s:%s", id, mem.assignment)
		if mem.join != 0 {
			h.out.WriteString("(joining)")
		}
		if mem.sync != 0 {
			h.out.WriteString("(syncing)")
		}
	}
	var pending []string
	for id := range m.pending {
		pending = append(pending, id)
	}
	sort.Strings(pending)
	if len(pending) > 0 {
		fmt.Fprintf(&h.out, " pending=%v", pending)
	}
	if m.forgettable() {
		h.out.WriteString(" forgettable")
	}
	h.out.WriteString("\n")
}

func (h *scripted) duration(d *datadriven.TestData, key string, otherwise time.Duration) time.Duration {
	s := arg(d, key, "")
	if s == "" {
		return otherwise
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		h.t.Fatal(err)
	}
	return v
}

func arg(d *datadriven.TestData, key, otherwise string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key && len(a.Vals) > 0 {
			return a.Vals[0]
		}
	}
	return otherwise
}

func list(d *datadriven.TestData, key, otherwise string) []string {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			return a.Vals
		}
	}
	if otherwise == "" {
		return nil
	}
	return strings.Split(otherwise, ",")
}

func pid(d *datadriven.TestData) int64 {
	n, _ := strconv.ParseInt(arg(d, "pid", "7"), 10, 64)
	return n
}

func gen(d *datadriven.TestData) int32 {
	n, _ := strconv.Atoi(arg(d, "gen", "-1"))
	return int32(n)
}

// parseOffset reads topic-partition:offset[@epoch][/metadata].
func parseOffset(s string) Offset {
	tp, rest, _ := strings.Cut(s, ":")
	i := strings.LastIndex(tp, "-")
	o := Offset{Topic: tp[:i], LeaderEpoch: -1}
	p, _ := strconv.Atoi(tp[i+1:])
	o.Partition = int32(p)
	rest, o.Metadata, _ = strings.Cut(rest, "/")
	off, ep, has := strings.Cut(rest, "@")
	o.Offset, _ = strconv.ParseInt(off, 10, 64)
	if has {
		e, _ := strconv.Atoi(ep)
		o.LeaderEpoch = int32(e)
	}
	return o
}

func subscription(topics string) []byte {
	s := kmsg.NewConsumerMemberMetadata()
	s.Topics = strings.Split(topics, "+")
	return s.AppendTo(nil)
}
