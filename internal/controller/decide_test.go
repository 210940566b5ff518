package controller

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// TestDecide runs the scripts of testdata: commands above, what they change or why
// they are refused below. Every command that changes something is one revision.
//
//	broker id=1 [incarnation=1]
//	create orders [partitions=3] [rf=1] [id=5] [internal] [assign=1:2/2:1] [k=v]…     create a topic
//	delete orders                                        delete a topic
//	grow orders total=5 [from-mirror]
//	alter topic|broker|mirror name set=k:v delete=k append=k:v subtract=k:v
//	pids n=1000
//	create-mirror m [k=v]…        delete-mirror m [at=5]
//	start m [topics=orders:3,other:0] [ids=5,0] [include=p] [exclude=p] [at=5] [config=k:v]
//	stop|pause|resume m topics=orders,other [patterns=p] [at=5]
//	recover m [topics=orders]
//	state m orders 0 [PREPARING] [leader=4] [epoch=7] [lme=3] [lmo=100] [attempt=2] [error=text] [fatal] [clear] [forget]
//	bump orders 0 min=10
//	scram alice [put=SCRAM-SHA-256:4096,…] [salt=text] [delete=SCRAM-SHA-512,…]
//	show                          the whole image
//
// and those of parseCluster.
//
// Ids are numbers here. A topic created without one gets 100, 101, ….
//
// Of testdata/decide/mirrors: MIR-026, a topic is in one mirror, and in another one only
// when it is STOPPED; MIR-027, starting again changes nothing; MIR-028, a start does not
// undo a pause or a stop. Of testdata/decide/states: MIR-342, MIR-343. Of
// testdata/decide/delete_mirror: MIR-012.
func TestDecide(t *testing.T) {
	datadriven.Walk(t, "testdata/decide", func(t *testing.T, path string) {
		s := newScript()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.run(t, d)
		})
	})
}

// script is the world that one test file talks to: an image, and the builder that
// changes it, which is the one that runs in production.
type script struct {
	b      *builder
	rev    int64
	nextID byte
}

func newScript() *script {
	e := metadata.NewImage().Edit()
	e.SetClusterID("this-cluster")
	return &script{b: newBuilder(e.Image(0)), nextID: 100}
}

func testID(n byte) metadata.TopicID {
	if n == 0 {
		return metadata.TopicID{}
	}
	return metadata.TopicID{0: 0xff, 15: n}
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd == "show" {
		return show(s.b.view())
	}
	var out strings.Builder
	for i, cmd := range s.parse(t, d) {
		if l, ok := cmd.(later); ok {
			cmd = l.make(s.b.view())
		}
		changes, err := Decide(s.b.view(), cmd)
		if err != nil {
			fmt.Fprintf(&out, "error: %v\n", err)
			if _, head := cmd.(interface{ head() }); head && i == 0 {
				break
			}
			continue
		}
		if len(changes) == 0 {
			continue
		}
		s.rev++
		if err := s.b.apply(changes, s.rev); err != nil {
			t.Fatal(err)
		}
		s.b.seal(s.rev)
		for _, c := range changes {
			fmt.Fprintln(&out, describe(s.b.view(), c))
		}
	}
	if out.Len() == 0 {
		return "no change\n"
	}
	return out.String()
}

// later is a command that depends on what the ones before it did.
type later struct {
	make func(*metadata.Image) Command
}

func (later) command() {}

func epochOf(img *metadata.Image, broker int32) BrokerEpoch {
	if b := img.Broker(broker); b != nil {
		return BrokerEpoch{broker, b.Epoch}
	}
	return BrokerEpoch{broker, -1}
}

func (startHead) head()   {}
func (setHead) head()     {}
func (recoverHead) head() {}

func (s *script) parse(t *testing.T, d *datadriven.TestData) []Command {
	var words []string
	vals := make(map[string][]string)
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 {
			words = append(words, a.Key)
			vals[a.Key] = nil
		} else {
			vals[a.Key] = a.Vals
		}
	}
	flag := func(k string) bool { _, ok := vals[k]; return ok }
	num := func(k string, def int64) int64 {
		if len(vals[k]) == 0 {
			return def
		}
		n, err := strconv.ParseInt(vals[k][0], 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		return n
	}
	word := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	rest := func(known ...string) map[string]string {
		m := make(map[string]string)
		for k, v := range vals {
			if len(v) > 0 && !slices.Contains(known, k) {
				m[k] = strings.Join(v, ",")
			}
		}
		return m
	}
	def := defaults{Partitions: 1, ReplicationFactor: 1, MaxPartitions: 1000, MinISR: 1}
	newID := func() metadata.TopicID { s.nextID++; return testID(s.nextID - 1) }
	switch d.Cmd {
	case "broker":
		id := int32(num("id", 0))
		return []Command{
			registerBroker{RegisterBroker: RegisterBroker{ID: id, Incarnation: [16]byte{byte(num("incarnation", 1))}}, Ended: true},
			later{func(img *metadata.Image) Command { return unfenceBroker{BrokerEpoch: epochOf(img, id)} }},
		}
	case "create":
		c := CreateTopic{Name: word(0), ID: testID(byte(num("id", 0))), Partitions: int32(num("partitions", -1)),
			ReplicationFactor: int16(num("rf", -1)), Internal: flag("internal")}
		c.Configs = rest("id", "partitions", "rf", "assign")
		if a := vals["assign"]; a != nil {
			c.Assignment = make(map[int32][]int32)
			for i, r := range strings.Split(a[0], "/") {
				for _, b := range strings.Split(r, ":") {
					n, _ := strconv.Atoi(b)
					c.Assignment[int32(i)] = append(c.Assignment[int32(i)], int32(n))
				}
			}
		}
		return []Command{createTopic{c, newID(), def}}
	case "delete":
		id := testID(99)
		if topic := s.b.view().Topic(word(0)); topic != nil {
			id = topic.ID
		}
		return []Command{deleteTopicByID{id}}
	case "grow":
		return []Command{growTopic{CreatePartitions{Topic: word(0), Total: int32(num("total", 0)), FromMirror: flag("from-mirror")}, def}}
	case "alter":
		types := map[string]ConfigResource{"topic": ResourceTopic, "broker": ResourceBroker, "group": ResourceGroup, "mirror": ResourceMirror}
		a := AlterConfigs{Type: types[word(0)], Name: word(1)}
		for _, v := range vals["static"] {
			k, value, _ := strings.Cut(v, ":")
			if a.Static == nil {
				a.Static = map[string]string{}
			}
			a.Static[k] = value
		}
		for op, name := range []string{"set", "delete", "append", "subtract"} {
			for _, v := range vals[name] {
				k, value, ok := strings.Cut(v, ":")
				o := ConfigOp{Name: k, Op: ConfigOpType(op)}
				if ok {
					o.Value = &value
				}
				a.Ops = append(a.Ops, o)
			}
		}
		return []Command{alterConfigs{a, def}}
	case "pids":
		return []Command{allocateProducerIDs{int32(num("n", 0))}}
	case "create-mirror":
		return []Command{createMirror{word(0), rest()}}
	case "delete-mirror":
		return []Command{removeMirror{word(0), num("at", -1)}}
	case "start":
		r := StartMirrorTopics{Mirror: word(0), Include: vals["include"], Exclude: vals["exclude"], Validation: num("at", -1)}
		var cmds []Command
		for i, v := range vals["topics"] {
			name, n, _ := strings.Cut(v, ":")
			partitions, _ := strconv.Atoi(n)
			mt := MirrorTopic{Name: name, Partitions: int32(partitions), Configs: make(map[string]string)}
			if i < len(vals["ids"]) {
				id, _ := strconv.Atoi(vals["ids"][i])
				mt.ID = testID(byte(id))
			}
			for _, kv := range vals["config"] {
				k, value, _ := strings.Cut(kv, ":")
				mt.Configs[k] = value
			}
			r.Topics = append(r.Topics, mt)
			cmds = append(cmds, startTopic{r.Mirror, mt, newID(), def})
		}
		return append([]Command{startHead{r}}, cmds...)
	case "stop", "pause", "resume":
		desired := map[string]metadata.Desired{"stop": metadata.DesiredStopped, "pause": metadata.DesiredPaused, "resume": metadata.DesiredMirroring}[d.Cmd]
		r := SetMirrorTopics{Mirror: word(0), Topics: vals["topics"], Patterns: vals["patterns"], Desired: desired, Validation: num("at", -1)}
		cmds := []Command{setHead{r}}
		for _, name := range r.Topics {
			cmds = append(cmds, setTopic{r.Mirror, name, desired})
		}
		return cmds
	case "recover":
		cmds := []Command{recoverHead{word(0)}}
		for _, name := range vals["topics"] {
			cmds = append(cmds, recoverTopic{word(0), name, false})
		}
		if vals["topics"] == nil {
			for _, topic := range s.b.view().MirrorTopics(word(0)) {
				cmds = append(cmds, recoverTopic{word(0), topic.Name, true})
			}
		}
		return cmds
	case "state":
		w := MirrorStateWrite{Topic: testID(99), State: metadata.StateUnknown, LeaderEpoch: int32(num("leader", -1)), StateEpoch: int32(num("epoch", -1)),
			SetLME: flag("lme"), LME: int32(num("lme", -1)), LMO: num("lmo", -1), DeleteLME: flag("forget"),
			RetryAttempt: int32(num("attempt", 0)), NonRetryable: flag("fatal"), ClearFailure: flag("clear"),
			ErrorMessage: strings.Join(vals["error"], ",")}
		if topic := s.b.view().Topic(word(1)); topic != nil {
			w.Topic = topic.ID
		}
		n, _ := strconv.Atoi(word(2))
		w.Partition = int32(n)
		for _, st := range metadata.MirrorStates() {
			if flag(st.String()) {
				w.State = st
			}
		}
		return []Command{writeState{word(0), w}}
	case "scram":
		a := AlterScram{User: word(0)}
		for _, v := range vals["delete"] {
			a.Deletes = append(a.Deletes, metadata.ParseScramMechanism(v))
		}
		salt := strings.Join(vals["salt"], ",")
		if !flag("salt") {
			salt = "salt"
		}
		for _, v := range vals["put"] {
			name, n, _ := strings.Cut(v, ":")
			iterations, _ := strconv.Atoi(n)
			m := metadata.ParseScramMechanism(name)
			a.Puts = append(a.Puts, metadata.NewScramCredential(word(0), m, int32(iterations), []byte(salt), []byte("salted password")))
		}
		return []Command{alterScram{a}}
	case "bump":
		id := testID(99)
		if topic := s.b.view().Topic(word(0)); topic != nil {
			id = topic.ID
		}
		n, _ := strconv.Atoi(word(1))
		return []Command{bumpEpoch{Bump{id, int32(n), int32(num("min", 0))}}}
	}
	return s.parseCluster(t, d, word, vals, def)
}

// describe prints a change as it came out.
func describe(img *metadata.Image, c Change) string {
	name := func(id metadata.TopicID) string {
		if t := img.TopicByID(id); t != nil {
			return t.Name
		}
		return fmt.Sprintf("topic#%d", id[15])
	}
	switch c := c.(type) {
	case putTopic:
		return fmt.Sprintf("topic %s id=%d partitions=%d %s", c.Name, c.ID[15], c.Partitions, showConfigs(c.Configs))
	case deleteTopic:
		return "delete " + name(c.ID)
	case setAttachment:
		return fmt.Sprintf("attach %s %q", name(c.ID), c.Value)
	case deleteAttachment:
		return "delete attachment of " + name(c.ID)
	case setLives:
		return fmt.Sprintf("lives begin at leader epoch %d, barrier %d", c.LeaderEpoch, c.Barrier)
	case putPartition:
		return fmt.Sprintf("partition %s-%d %s", name(c.ID), c.Partition.Index, showPartition(c.Partition))
	case deletePartition:
		return fmt.Sprintf("delete partition %s-%d", name(c.ID), c.Index)
	case putState:
		return fmt.Sprintf("state %s-%d %s", name(c.ID), c.Index, showState(c.State))
	case deleteState:
		return fmt.Sprintf("delete state %s-%d", name(c.ID), c.Index)
	case putMirror:
		return fmt.Sprintf("mirror %s %s", c.Mirror.Name, showConfigs(c.Mirror.Redacted()))
	case deleteMirror:
		return "delete mirror " + c.Name
	case putBroker:
		return fmt.Sprintf("broker %d incarnation=%d epoch=%d%s", c.Broker.ID, c.Broker.Incarnation[0], c.Broker.Epoch, showBroker(c.Broker))
	case putScram:
		return fmt.Sprintf("scram %q %v iterations=%d salt=%q keys=%d+%d", c.Credential.User, c.Credential.Mechanism, c.Credential.Iterations,
			c.Credential.Salt, len(c.Credential.StoredKey), len(c.Credential.ServerKey))
	case deleteScram:
		return fmt.Sprintf("delete scram %q %v", c.User, c.Mechanism)
	case setBrokerConfigs:
		return fmt.Sprintf("broker configs %d %s", c.ID, showConfigs(c.Configs))
	case setGroupConfigs:
		return fmt.Sprintf("group configs %q %s", c.Group, showConfigs(c.Configs))
	}
	return fmt.Sprintf("%T %+v", c, c)
}

func showConfigs(m map[string]string) string {
	var s []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s = append(s, k+"="+m[k])
	}
	return "{" + strings.Join(s, " ") + "}"
}

func showBroker(b *metadata.Broker) string {
	s := ""
	if b.Fenced {
		s += " fenced"
	}
	if b.ControlledShutdown {
		s += " stopping"
	}
	return s
}

func showPartition(p *metadata.Partition) string {
	s := fmt.Sprintf("replicas=%v isr=%v leader=%d@%d partition-epoch=%d", p.Replicas, p.ISR, p.Leader, p.LeaderEpoch, p.PartitionEpoch)
	for _, l := range []struct {
		name string
		ids  []int32
	}{{"adding", p.AddingReplicas}, {"removing", p.RemovingReplicas}, {"elr", p.ELR}, {"last-elr", p.LastKnownELR}} {
		if len(l.ids) > 0 {
			s += fmt.Sprintf(" %s=%v", l.name, l.ids)
		}
	}
	if p.Barrier > 0 {
		s += fmt.Sprintf(" barrier=%d stale=%v", p.Barrier, p.Stale)
	}
	return s
}

func showState(m *metadata.MirrorPartition) string {
	s := fmt.Sprintf("%s/%s state-epoch=%d leader-epoch=%d", m.Mirror, m.State, m.StateEpoch, m.LeaderEpoch)
	if m.HasLME {
		s += fmt.Sprintf(" lme=%d lmo=%d", m.LME, m.LMO)
	}
	if m.RetryAttempt != 0 {
		s += fmt.Sprintf(" attempt=%d previous=%s error=%q", m.RetryAttempt, m.PreviousState, m.ErrorMessage)
	}
	return s
}

func show(img *metadata.Image) string {
	var out strings.Builder
	fmt.Fprintf(&out, "revision %d\n", img.Revision)
	for _, b := range img.Brokers() {
		fmt.Fprintf(&out, "broker %d incarnation=%d %s\n", b.ID, b.Incarnation[0], showConfigs(img.BrokerConfigs(b.ID)))
	}
	for _, g := range img.ConfiguredGroups() {
		fmt.Fprintf(&out, "group %q %s\n", g, showConfigs(img.GroupConfigs(g)))
	}
	for _, m := range img.Mirrors() {
		fmt.Fprintf(&out, "mirror %s %s\n", m.Name, showConfigs(m.Redacted()))
	}
	for _, c := range img.ScramCredentials() {
		fmt.Fprintf(&out, "scram %q %v iterations=%d\n", c.User, c.Mechanism, c.Iterations)
	}
	for _, t := range img.Topics() {
		fmt.Fprintf(&out, "topic %s id=%d mirror.name=%q@%d %s\n", t.Name, t.ID[15], t.MirrorName, t.MirrorRevision, showConfigs(t.Configs))
		for _, p := range t.Partitions {
			fmt.Fprintf(&out, "  %d %s", p.Index, showPartition(p))
			if p.Mirror != nil {
				fmt.Fprintf(&out, " %s", showState(p.Mirror))
			}
			if t.ReadOnly(p) {
				fmt.Fprint(&out, " read-only")
			}
			fmt.Fprintln(&out)
		}
	}
	return out.String()
}
