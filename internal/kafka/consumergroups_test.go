package kafka

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// consumerMemberOverWire speaks keys 68 and 69 by hand.
type consumerMemberOverWire struct {
	groupClient
	id    string
	epoch int32
}

func (m *consumerMemberOverWire) beat(change func(*kmsg.ConsumerGroupHeartbeatRequest)) *kmsg.ConsumerGroupHeartbeatResponse {
	m.t.Helper()
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch = m.group, m.id, m.epoch
	if change != nil {
		change(req)
	}
	resp := groupAsk[*kmsg.ConsumerGroupHeartbeatResponse](&m.groupClient, req, 0, 1)
	if resp.ErrorCode == 0 {
		m.epoch = resp.MemberEpoch
		if resp.MemberID != nil {
			m.id = *resp.MemberID
		}
	}
	return resp
}

func (m *consumerMemberOverWire) join(more func(*kmsg.ConsumerGroupHeartbeatRequest)) *kmsg.ConsumerGroupHeartbeatResponse {
	m.t.Helper()
	m.epoch = 0
	return m.beat(func(r *kmsg.ConsumerGroupHeartbeatRequest) {
		r.RebalanceTimeoutMillis, r.SubscribedTopicNames = 10_000, []string{m.topic.Name}
		r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		if more != nil {
			more(r)
		}
	})
}

func owning(topic *metadata.Topic, partitions ...int32) func(*kmsg.ConsumerGroupHeartbeatRequest) {
	return func(r *kmsg.ConsumerGroupHeartbeatRequest) {
		r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{{TopicID: topic.ID, Partitions: partitions}}
		if len(partitions) == 0 {
			r.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
		}
	}
}

func assigned(r *kmsg.ConsumerGroupHeartbeatResponse) string {
	if r.ErrorCode != 0 {
		return kerr.ErrorForCode(r.ErrorCode).Error()
	}
	if r.Assignment == nil {
		return "as before"
	}
	s := ""
	for _, t := range r.Assignment.Topics {
		s += fmt.Sprint(t.Partitions)
	}
	return s
}

func TestConsumerGroupProtocol(t *testing.T) {
	s, c := groupServer(t)
	addr := addrOf(s)
	topic := newTopic(t, 4)
	member := func(version int16, id string) *consumerMemberOverWire {
		return &consumerMemberOverWire{groupClient: groupClient{t: t, c: dial(t, addr), version: version, topic: topic, group: "modern-" + topic.Name}, id: id}
	}
	is := func(got, want string) {
		t.Helper()
		if got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	}

	a, b := member(0, ""), member(1, "chosen-by-itself")
	a.find()
	is(assigned(a.join(nil)), "[0 1 2 3]")
	if a.id == "" || a.epoch != 1 {
		t.Fatalf("v0 member %q at epoch %d", a.id, a.epoch)
	}
	is(assigned(b.join(nil)), "") // nothing is free yet
	is(assigned(a.beat(owning(topic, 0, 1, 2, 3))), "[0 1]")
	is(assigned(b.beat(nil)), "as before")
	is(assigned(a.beat(owning(topic, 0, 1))), "as before")
	is(assigned(b.beat(nil)), "[2 3]")

	// Commits and fetches say where their member is.
	b.version = 9
	is(fmt.Sprint(b.commit(b.epoch, b.id, 7)), "0")
	is(fmt.Sprint(b.commit(b.epoch-1, b.id, 8)), fmt.Sprint(kerr.StaleMemberEpoch.Code))
	is(fmt.Sprint(b.commit(b.epoch, "nobody", 8)), fmt.Sprint(kerr.UnknownMemberID.Code))
	b.version = 8
	is(fmt.Sprint(b.commit(b.epoch, b.id, 8)), fmt.Sprint(kerr.UnsupportedVersion.Code))
	is(fmt.Sprint(b.commit(-1, "", 8)), fmt.Sprint(kerr.UnknownMemberID.Code))
	fetch := kmsg.NewPtrOffsetFetchRequest()
	rg := kmsg.NewOffsetFetchRequestGroup()
	rg.Group, rg.MemberID, rg.MemberEpoch = b.group, &b.id, b.epoch
	fetch.Groups = []kmsg.OffsetFetchRequestGroup{rg}
	if g := groupAsk[*kmsg.OffsetFetchResponse](&b.groupClient, fetch, 9, 9).Groups[0]; g.ErrorCode != 0 || len(g.Topics) != 1 || g.Topics[0].Partitions[0].Offset != 7 {
		t.Fatalf("fetched %+v", g)
	}
	fetch.Groups[0].MemberEpoch++
	if g := groupAsk[*kmsg.OffsetFetchResponse](&b.groupClient, fetch, 9, 9).Groups[0]; g.ErrorCode != kerr.StaleMemberEpoch.Code {
		t.Fatalf("fetched with another epoch: %+v", g)
	}

	// What tools see.
	describe := kmsg.NewPtrConsumerGroupDescribeRequest()
	describe.Groups, describe.IncludeAuthorizedOperations = []string{a.group, "none"}, true
	b.version = 1
	d := groupAsk[*kmsg.ConsumerGroupDescribeResponse](&b.groupClient, describe, 1, 1)
	if d.Groups[0].ErrorCode != 0 || d.Groups[0].State != "Stable" || d.Groups[0].AssignorName != "uniform" || len(d.Groups[0].Members) != 2 ||
		d.Groups[0].Members[0].MemberType != 1 || d.Groups[0].AuthorizedOperations <= 0 ||
		d.Groups[0].Members[0].Assignment.TopicPartitions[0].Topic != topic.Name {
		t.Fatalf("described %+v", d.Groups[0])
	}
	is(fmt.Sprint(d.Groups[1].ErrorCode), fmt.Sprint(kerr.GroupIDNotFound.Code))
	b.version = 6
	if old := b.describe(b.group); old.ErrorCode != kerr.GroupIDNotFound.Code || old.State != "Dead" {
		t.Fatalf("described as a classic group: %+v", old)
	}
	list := kmsg.NewPtrListGroupsRequest()
	list.TypesFilter = []string{"consumer"}
	found := ""
	for _, g := range groupAsk[*kmsg.ListGroupsResponse](&b.groupClient, list, 5, 5).Groups {
		if g.Group == b.group {
			found = g.GroupType + " " + g.GroupState + " " + g.ProtocolType
		}
	}
	is(found, "Consumer Stable consumer")
	if errs, err := c.CommitFromMirror(context.Background(), b.group, nil); err == nil {
		t.Fatalf("a mirror may commit for an active group: %v", errs)
	}

	// Refusals.
	b.version = 1
	is(assigned(member(1, "").join(nil)), kerr.InvalidRequest.Error())
	is(assigned(member(1, "x").join(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.ServerAssignor = orNil("mine") })), kerr.UnsupportedAssignor.Error())
	is(assigned(member(1, "x").join(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.SubscribedTopicRegex = orNil("(") })), kerr.InvalidRegularExpression.Error())
	is(assigned(b.beat(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch += 5 })), kerr.FencedMemberEpoch.Error())
	is(assigned(b.beat(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberID = "y" })), kerr.UnknownMemberID.Error())
	is(assigned(b.beat(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.Group = "none" })), kerr.GroupIDNotFound.Error())

	// A static member leaves for a while and finds its share; another may not
	// take its place meanwhile.
	static := member(1, "s1")
	as := func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.InstanceID = orNil("instance") }
	static.join(as)
	second := member(1, "s2")
	is(assigned(second.join(as)), kerr.UnreleasedInstanceID.Error())
	left := static.beat(func(r *kmsg.ConsumerGroupHeartbeatRequest) { as(r); r.MemberEpoch = -2 })
	if left.ErrorCode != 0 || left.MemberEpoch != -2 {
		t.Fatalf("left: %+v", left)
	}
	second.join(as)
	is(assigned(static.beat(func(r *kmsg.ConsumerGroupHeartbeatRequest) { as(r); r.MemberEpoch = 1 })), kerr.FencedInstanceID.Error())

	for _, m := range []*consumerMemberOverWire{a, b, second} {
		is(assigned(m.beat(func(r *kmsg.ConsumerGroupHeartbeatRequest) { r.MemberEpoch = -1 })), "as before")
	}
	del := kmsg.NewPtrDeleteGroupsRequest()
	del.Groups = []string{a.group}
	is(fmt.Sprint(groupAsk[*kmsg.DeleteGroupsResponse](&a.groupClient, del, 2, 2).Groups[0].ErrorCode), "0")
}

// TestConsumerGroupPattern: what a pattern finds, also when it comes later.
func TestConsumerGroupPattern(t *testing.T) {
	s, _ := groupServer(t)
	first := newTopic(t, 1)
	m := &consumerMemberOverWire{groupClient: groupClient{t: t, c: dial(t, addrOf(s)), version: 1, topic: first, group: "pattern-" + first.Name}, id: "p"}
	m.find()
	r := m.join(func(r *kmsg.ConsumerGroupHeartbeatRequest) {
		r.SubscribedTopicNames, r.SubscribedTopicRegex = nil, orNil(first.Name+"(-more)?")
	})
	if len(r.Assignment.Topics) != 1 {
		t.Fatalf("found %+v", r)
	}
	b := testBroker(t)
	for _, name := range []string{first.Name + "-more", first.Name + "-most"} {
		res := b.controller.CreateTopics(t.Context(), []controller.CreateTopic{{Name: name, Partitions: 2, ReplicationFactor: 1}}, false)
		if res[0].Err != nil {
			t.Fatal(res[0].Err)
		}
	}
	if err := b.controller.WaitWatchers(t.Context()); err != nil {
		t.Fatal(err)
	}
	r = m.beat(owning(first, 0))
	if r.Assignment == nil || len(r.Assignment.Topics) != 2 {
		t.Fatalf("a topic that matches the pattern is not found: %+v %s", r, assigned(r))
	}
}

// TestConsumerGroupClients: franz-go's members of the new protocol share a topic,
// lose one of them, and miss nothing.
func TestConsumerGroupClients(t *testing.T) {
	s, _ := groupServer(t)
	topic := newTopic(t, 6)
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), "opt_in_kafka_next_gen_balancer_beta", true), 60*time.Second)
	defer cancel()
	var mu sync.Mutex
	seen := map[string]int{}
	arrived := make(chan struct{}, 1000)
	// Metadata names the server that all tests share, which has no groups.
	here := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addrOf(s))
	}
	consume := func() (*kgo.Client, chan struct{}) {
		cl, err := kgo.NewClient(kgo.WithContext(ctx), kgo.SeedBrokers(addrOf(s)), kgo.Dialer(here), kgo.ConsumerGroup("franz-"+topic.Name),
			kgo.ConsumeTopics(topic.Name), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				f := cl.PollFetches(ctx)
				if f.IsClientClosed() || ctx.Err() != nil {
					return
				}
				f.EachRecord(func(r *kgo.Record) {
					mu.Lock()
					seen[string(r.Value)]++
					mu.Unlock()
					arrived <- struct{}{}
				})
			}
		}()
		return cl, done
	}
	one, oneDone := consume()
	two, twoDone := consume()
	produce := newClient(t, kgo.DefaultProduceTopic(topic.Name), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	sent := 0
	send := func() {
		for p := range 6 {
			sent++
			if err := produce.ProduceSync(ctx, &kgo.Record{Value: fmt.Append(nil, sent), Partition: int32(p)}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		for range 6 {
			select {
			case <-arrived:
			case <-ctx.Done():
				t.Fatalf("%d of %d records were read", len(seen), sent)
			}
		}
	}
	send()
	one.Close()
	<-oneDone
	send()
	two.Close()
	<-twoDone
	for v, n := range seen {
		if n != 1 {
			t.Errorf("record %s was read %d times", v, n)
		}
	}
}
