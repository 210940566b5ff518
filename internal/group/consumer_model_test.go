package group

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"
)

// consumerClient is a consumer as clients behave: it reads what it was last told,
// lets go before it says so, and takes on what is new only when it was told.
type consumerClient struct {
	id       string
	instance *string
	classic  bool
	epoch    int32
	reading  share
	names    []string
	regex    string
	joined   bool
	// waits is the question that is not answered yet, and how it was asked;
	// silent counts what it loses.
	waits    ticket
	asked    string
	tellAll  bool // the last answer was lost
	ownsSaid share
	rejoin   bool
}

type consumerModel struct {
	t       *rapid.T
	h       *consumerHarness
	clients map[string]*consumerClient
	made    int
	topicID byte
}

func TestConsumerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &consumerModel{t: t, h: newConsumerHarness(), clients: map[string]*consumerClient{}}
		m.h.o.ConsumerMigration = MigrateUpgrade // classic groups have a model of their own
		every := time.Duration(rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "assignment interval")) * time.Second
		m.h.o.ConsumerSettings = func(string) ConsumerSettings {
			return ConsumerSettings{m.h.o.ConsumerSessionTimeout, m.h.o.ConsumerHeartbeatInterval, every}
		}
		m.h.setTopic("a", 0, 4)
		m.h.setTopic("b", 0, 3)
		for range rapid.IntRange(5, 120).Draw(t, "steps") {
			m.anything()
			m.check()
		}
		m.settle()
	})
}

func (m *consumerModel) anything() {
	t := m.t
	switch rapid.IntRange(0, 15).Draw(t, "what") {
	case 0, 1:
		m.arrive()
	case 2:
		if c := m.some(); c != nil {
			m.leave(c)
		}
	case 3:
		name := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "topic")
		old := m.h.topics.image.Topic(name)
		size := rapid.IntRange(0, 3).Draw(t, "size")
		switch {
		case old == nil: // made anew, it is another topic
			m.topicID++
			m.h.setTopic(name, m.topicID, 1+size)
		case size == 0:
			m.h.setTopic(name, 0, 0)
		default:
			m.h.setTopic(name, old.ID[15], len(old.Partitions)+size)
		}
	case 4:
		m.h.now = m.h.now.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "seconds")) * time.Second)
		m.try(m.h.step(tick{}))
		m.buryZombies()
	case 5:
		// The coordinator moves: what is on its way to the log is lost, or not.
		for range rapid.IntRange(0, len(m.h.inflight)).Draw(t, "stored") {
			m.try(m.h.ack(false))
		}
		m.deliver()
		m.try(m.h.restart())
		for _, c := range m.clients {
			if c.waits != 0 {
				c.lose()
			}
		}
		m.buryZombies()
	case 6:
		if c := m.some(); c != nil && c.waits != 0 { // an answer gets lost
			delete(m.h.answers, c.waits)
			c.lose()
		}
	case 7:
		if c := m.some(); c != nil && !c.classic && rapid.Bool().Draw(t, "by pattern") {
			c.names, c.regex, c.tellAll = nil, rapid.SampledFrom([]string{"a", "b", "a|b", "[ab]"}).Draw(t, "regex"), true
		} else if c != nil && !c.classic {
			c.regex = ""
			c.names = rapid.SampledFrom([][]string{{"a"}, {"b"}, {"a", "b"}, {}}).Draw(t, "names")
			c.tellAll = true
		}
	case 8, 9:
		if len(m.h.inflight) > 0 {
			m.try(m.h.ack(rapid.IntRange(0, 9).Draw(t, "fails") == 0))
		}
	default:
		if c := m.some(); c != nil {
			m.beat(c)
		}
	}
	if rapid.Bool().Draw(t, "soon") {
		for len(m.h.inflight) > 0 {
			m.try(m.h.ack(false))
		}
	}
	m.deliver()
}

// lose is what a client does that gets no answer: it says all again. A classic one
// that was not told its share joins again.
func (c *consumerClient) lose() {
	c.waits, c.tellAll = 0, true
	c.rejoin = c.rejoin || c.classic && c.joined && c.asked == "sync"
}

func (m *consumerModel) try(err error) {
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *consumerModel) ids() []string {
	var ids []string
	for id := range m.clients {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (m *consumerModel) some() *consumerClient {
	if len(m.clients) == 0 {
		return nil
	}
	return m.clients[rapid.SampledFrom(m.ids()).Draw(m.t, "client")]
}

func (m *consumerModel) arrive() {
	if len(m.clients) >= 5 {
		return
	}
	m.made++
	c := &consumerClient{id: fmt.Sprintf("m%d", m.made), reading: share{}, names: []string{"a", "b"}, tellAll: true}
	c.classic = m.made > 1 && rapid.IntRange(0, 3).Draw(m.t, "classic") == 0
	if rapid.IntRange(0, 2).Draw(m.t, "static") == 0 {
		instance := fmt.Sprintf("i%d", m.made)
		c.instance = &instance
	}
	m.clients[c.id] = c
	m.beat(c)
}

func (m *consumerModel) leave(c *consumerClient) {
	c.reading = share{}
	delete(m.clients, c.id)
	if c.classic {
		m.try(m.h.step(leaveInput{0, &LeaveRequest{Group: "g", Members: []LeaveMember{{MemberID: c.id}}}}))
		return
	}
	r := &ConsumerHeartbeatRequest{Group: "g", MemberID: c.id, Epoch: EpochLeave, InstanceID: c.instance, RebalanceTimeout: -1}
	if c.instance != nil && rapid.Bool().Draw(m.t, "comes back") {
		r.Epoch = EpochLeaveStatic
		m.made++
		again := &consumerClient{id: fmt.Sprintf("m%d", m.made), instance: c.instance, reading: share{}, names: c.names, regex: c.regex, tellAll: true}
		m.clients[again.id] = again
	}
	m.try(m.h.step(consumerHeartbeatInput{to: 0, req: r}))
}

// beat asks what the client would ask now.
func (m *consumerModel) beat(c *consumerClient) {
	if c.waits != 0 {
		return
	}
	c.waits = m.h.ticket()
	if c.classic {
		m.beatClassic(c)
		return
	}
	c.asked = "heartbeat"
	r := &ConsumerHeartbeatRequest{Group: "g", MemberID: c.id, InstanceID: c.instance, RebalanceTimeout: -1}
	if !c.joined {
		c.epoch = 0
		c.reading = share{}
	}
	r.Epoch = c.epoch
	if c.tellAll || !c.joined {
		r.RebalanceTimeout, r.Names = 20*time.Second, append([]string{}, c.names...)
		r.Owned, r.Regex = c.reading.public(), &c.regex
		r.pattern, _ = compilePattern(c.regex)
	} else if !c.reading.equal(c.ownsSaid) {
		r.Owned = c.reading.public()
	}
	c.ownsSaid, c.tellAll = c.reading, false
	m.try(m.h.step(consumerHeartbeatInput{to: c.waits, req: r}))
}

func (m *consumerModel) beatClassic(c *consumerClient) {
	instance := ""
	if c.instance != nil {
		instance = *c.instance
	}
	switch {
	case !c.joined || c.rejoin:
		c.asked = "join"
		if !c.joined {
			c.reading = share{}
		}
		s := kmsg.NewConsumerMemberMetadata()
		s.Version, s.Topics = 1, c.names
		for _, t := range printable(m.h, c.reading) {
			s.OwnedPartitions = append(s.OwnedPartitions, kmsg.ConsumerMemberMetadataOwnedPartition{Topic: t.Topic, Partitions: t.Partitions})
		}
		r := &JoinRequest{Group: "g", MemberID: c.id, InstanceID: instance, SessionTimeout: 45 * time.Second, RebalanceTimeout: 20 * time.Second,
			ProtocolType: "consumer", Protocols: []Protocol{{"cooperative-sticky", s.AppendTo(nil)}}}
		if instance != "" && !c.joined {
			r.MemberID = ""
		}
		m.try(m.h.step(joinInput{c.waits, r, c.id}))
	case c.asked == "join":
		c.asked = "sync"
		m.try(m.h.step(syncInput{c.waits, &SyncRequest{Group: "g", MemberID: c.id, InstanceID: instance, Generation: c.epoch}}))
	default:
		c.asked = "beat"
		m.try(m.h.step(heartbeatInput{c.waits, &HeartbeatRequest{Group: "g", MemberID: c.id, InstanceID: instance, Generation: c.epoch}}))
	}
}

// printable are the topics of a share that still exist.
func printable(h *consumerHarness, s share) []TopicPartitions {
	h.m.topics = h.topics
	return h.m.named(s)
}

// deliver hands out the answers there are.
func (m *consumerModel) deliver() {
	for _, id := range m.ids() {
		c := m.clients[id]
		res, ok := m.h.answers[c.waits]
		if c.waits == 0 || !ok {
			continue
		}
		delete(m.h.answers, c.waits)
		c.waits = 0
		m.hear(c, res)
	}
}

func (m *consumerModel) hear(c *consumerClient, res any) {
	startAnew := func(err error) {
		switch {
		case errors.Is(err, errDisk), errors.Is(err, ErrNotAvailable), errors.Is(err, ErrRebalancing):
			c.tellAll, c.rejoin = true, c.classic && c.joined
		case errors.Is(err, ErrUnreleasedInstance): // its predecessor's leave was not stored
			delete(m.clients, c.id)
		case errors.Is(err, ErrFencedMemberEpoch), errors.Is(err, ErrUnknownMember), errors.Is(err, ErrNotFound),
			errors.Is(err, ErrIllegalGeneration), errors.Is(err, ErrFencedInstance):
			c.joined, c.rejoin, c.reading, c.epoch = false, false, share{}, 0
		default:
			m.t.Fatalf("%s hears %v", c.id, err)
		}
	}
	switch res := res.(type) {
	case ConsumerHeartbeatResult:
		if res.Err != nil {
			startAnew(res.Err)
			return
		}
		c.joined, c.epoch = true, res.Epoch
		if res.HasAssignment {
			c.reading = newShare(res.Assignment)
		}
	case JoinResult:
		if res.Err != nil {
			startAnew(res.Err)
			return
		}
		c.joined, c.rejoin, c.epoch = true, false, res.Generation
	case SyncResult:
		if errors.Is(res.Err, ErrRebalancing) {
			c.rejoin = true
			return
		}
		if res.Err != nil {
			startAnew(res.Err)
			return
		}
		m.h.m.topics = m.h.topics
		now := m.h.m.ofClassic(res.Assignment)
		c.rejoin = len(c.reading.minus(now)) > 0 // it says that it has revoked by joining again
		c.reading = now
	case error:
		if errors.Is(res, ErrRebalancing) {
			c.rejoin = true
			return
		}
		startAnew(res)
	case nil:
	}
}

// buryZombies takes out the clients that the coordinator has given up: what they
// still read until they hear of it is theirs to answer for.
func (m *consumerModel) buryZombies() {
	for _, id := range m.ids() {
		c := m.clients[id]
		if m.h.m.consumer == nil || c.joined && m.h.m.consumer.members[id] == nil {
			c.reading, c.joined, c.epoch, c.rejoin = share{}, false, 0, false
		}
	}
}

// check: no two clients read one partition, and the books are right.
func (m *consumerModel) check() {
	reads := map[partitionID]string{}
	for _, id := range m.ids() {
		for p := range m.clients[id].reading.all() {
			if t := m.h.topics.image.TopicByID(p.topic); t == nil {
				continue // gone; nothing can be read there
			}
			if other, twice := reads[p]; twice {
				m.t.Fatalf("%v is read by %s and %s\n%s", p, other, id, m.h.describe())
			}
			reads[p] = id
		}
	}
	g := m.h.m.consumer
	if g == nil {
		return
	}
	held := map[partitionID]string{}
	names, classics := map[string]int{}, 0
	for _, id := range g.memberIDs() { // sorted: one fault must read the same each time
		mem := g.members[id]
		for _, s := range []share{mem.assigned, mem.revoking} {
			for p := range s.all() {
				if other, twice := held[p]; twice {
					m.t.Fatalf("%v is held by %s and %s\n%s", p, other, id, m.h.describe())
				}
				held[p] = id
				if g.owner[p].member != id {
					m.t.Fatalf("%v is held by %s, booked for %s", p, id, g.owner[p].member)
				}
			}
		}
		for _, n := range mem.names {
			names[n]++
		}
		if mem.classic != nil {
			classics++
		}
	}
	patterns := map[string]int{}
	for _, mem := range g.members {
		if mem.regex != "" {
			patterns[mem.regex]++
			if g.patterns[mem.regex] == nil || g.patterns[mem.regex].re == nil {
				m.t.Fatalf("pattern %q is not known", mem.regex)
			}
		}
	}
	bytes := 0
	for _, mem := range g.members {
		bytes += mem.size()
	}
	if bytes != m.h.m.bytes || len(held) != len(g.owner) || len(patterns) != len(g.patterns) || len(names) != len(g.names) || classics != g.classics {
		m.t.Fatalf("books: %d held %d booked, names %v %v, classics %d %d", len(held), len(g.owner), names, g.names, classics, g.classics)
	}
}

// settle lets all clients go on in peace: in the end every partition that
// somebody wants is read, and by the shares of the target.
func (m *consumerModel) settle() {
	for range 60 {
		m.h.now = m.h.now.Add(m.h.o.ConsumerSettings("").AssignmentInterval / 10)
		for _, id := range m.ids() {
			if c := m.clients[id]; c != nil {
				m.beat(c)
				m.try(m.h.ackAll())
				m.deliver()
				m.check()
			}
		}
	}
	g := m.h.m.consumer
	if g == nil || len(m.clients) == 0 {
		return
	}
	// Members that nobody is behind any more time out.
	if len(g.members) != len(m.clients) {
		m.h.now = m.h.now.Add(40 * time.Second)
		for _, id := range m.ids() {
			m.beat(m.clients[id])
			m.try(m.h.ackAll())
			m.deliver()
		}
		m.h.now = m.h.now.Add(10 * time.Second)
		m.try(m.h.step(tick{}))
		m.try(m.h.ackAll())
		m.settle()
		return
	}
	if got := g.shown(); got != Stable {
		m.t.Fatalf("after all have come to rest the group is %s\n%s", got, m.h.describe())
	}
	want := map[partitionID]bool{}
	for _, c := range m.clients {
		names := c.names
		if c.regex != "" {
			for _, n := range []string{"a", "b"} {
				if regexp.MustCompile("^(" + c.regex + ")$").MatchString(n) {
					names = append(names, n)
				}
			}
		}
		for _, n := range names {
			if t := m.h.topics.image.Topic(n); t != nil {
				for i := range t.Partitions {
					want[partitionID{t.ID, int32(i)}] = true
				}
			}
		}
	}
	for _, id := range m.ids() {
		for p := range m.clients[id].reading.all() {
			delete(want, p)
		}
	}
	if len(want) > 0 {
		m.t.Fatalf("nobody reads %v\n%s", want, m.h.describe())
	}
	// What the log has is what is in memory.
	before := m.h.describe()
	m.try(m.h.restart())
	if after := m.h.describe(); after != before {
		m.t.Fatalf("before a restart:\n%s\nafter:\n%s", before, after)
	}
}
