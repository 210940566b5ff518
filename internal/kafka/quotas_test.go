package kafka

import (
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/quota"
)

// setQuota changes one quota of an entity named kind=name (kind alone: default);
// value 0 removes it.
func setQuota(t *testing.T, key string, value float64, entity ...[2]string) {
	t.Helper()
	e := kadm.AlterClientQuotaEntry{Ops: []kadm.AlterClientQuotaOp{{Key: key, Value: value, Remove: value == 0}}}
	for _, p := range entity {
		c := kadm.ClientQuotaEntityComponent{Type: p[0]}
		if p[1] != "" {
			c.Name = &p[1]
		}
		e.Entity = append(e.Entity, c)
	}
	res, err := newAdmin(t).AlterClientQuotas(t.Context(), []kadm.AlterClientQuotaEntry{e})
	if err != nil || res[0].Err != nil {
		t.Fatal(err, res)
	}
}

// Quotas come back as they were set, by every kind of filter, and bad ones are
// refused.
func TestClientQuotas(t *testing.T) {
	set := func(value float64) {
		setQuota(t, "producer_byte_rate", value, [2]string{"user", "tcq"}, [2]string{"client-id", "app"})
		setQuota(t, "consumer_byte_rate", value, [2]string{"user", "tcq"})
		setQuota(t, "request_percentage", value, [2]string{"client-id", ""}, [2]string{"user", "tcq"})
		setQuota(t, "connection_creation_rate", value, [2]string{"ip", "10.9.9.9"})
	}
	set(1e9)
	defer set(0)
	describe := func(strict bool, parts ...kadm.DescribeClientQuotaComponent) (out []string) {
		t.Helper()
		res, err := newAdmin(t).DescribeClientQuotas(t.Context(), strict, parts)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range res {
			out = append(out, q.Entity.String()+" "+q.Values[0].Key)
		}
		slices.Sort(out)
		return out
	}
	name := func(s string) *string { return &s }
	user := kadm.DescribeClientQuotaComponent{Type: "user", MatchName: name("tcq")}
	if got := describe(false, user); len(got) != 3 {
		t.Errorf("%q", got)
	}
	if got := describe(true, user); len(got) != 1 {
		t.Errorf("%q", got)
	}
	if got := describe(true, user, kadm.DescribeClientQuotaComponent{Type: "client-id", MatchType: kmsg.QuotasMatchTypeDefault}); len(got) != 1 {
		t.Errorf("%q", got)
	}
	if got := describe(true, user, kadm.DescribeClientQuotaComponent{Type: "client-id", MatchType: kmsg.QuotasMatchTypeAny}); len(got) != 2 {
		t.Errorf("%q", got)
	}
	if got := describe(false, kadm.DescribeClientQuotaComponent{Type: "ip", MatchName: name("10.9.9.9")}); len(got) != 1 {
		t.Errorf("%q", got)
	}

	c := dial(t, testBroker(t).addr)
	alter := func(change func(*kmsg.AlterClientQuotasRequestEntry)) int16 {
		t.Helper()
		req := kmsg.NewPtrAlterClientQuotasRequest()
		req.SetVersion(1)
		e := kmsg.NewAlterClientQuotasRequestEntry()
		part := kmsg.NewAlterClientQuotasRequestEntryEntity()
		part.Type, part.Name = "user", name("tcq-bad")
		op := kmsg.NewAlterClientQuotasRequestEntryOp()
		op.Key, op.Value = "producer_byte_rate", 5
		e.Entity, e.Ops = append(e.Entity, part), append(e.Ops, op)
		change(&e)
		req.Entries = append(req.Entries, e)
		req.ValidateOnly = true
		return ask[*kmsg.AlterClientQuotasResponse](t, c, req).Entries[0].ErrorCode
	}
	if code := alter(func(*kmsg.AlterClientQuotasRequestEntry) {}); code != 0 {
		t.Error(code)
	}
	for i, bad := range []func(*kmsg.AlterClientQuotasRequestEntry){
		func(e *kmsg.AlterClientQuotasRequestEntry) { e.Ops[0].Key = "no_such_rate" },
		func(e *kmsg.AlterClientQuotasRequestEntry) { e.Ops[0].Key = "connection_creation_rate" },
		func(e *kmsg.AlterClientQuotasRequestEntry) { e.Ops[0].Value = 0 },
		func(e *kmsg.AlterClientQuotasRequestEntry) { e.Ops[0].Value = -1 },
		func(e *kmsg.AlterClientQuotasRequestEntry) { e.Ops[0].Value = 1.5 },
		func(e *kmsg.AlterClientQuotasRequestEntry) { e.Entity[0].Type = "group" },
		func(e *kmsg.AlterClientQuotasRequestEntry) { e.Entity = append(e.Entity, e.Entity[0]) },
		func(e *kmsg.AlterClientQuotasRequestEntry) { e.Entity = nil },
		func(e *kmsg.AlterClientQuotasRequestEntry) { e.Entity[0].Type = "ip" },
	} {
		if code := alter(bad); code != kerr.InvalidRequest.Code {
			t.Errorf("bad entry %d: code %d", i, code)
		}
	}
	none := kmsg.NewPtrDescribeClientQuotasRequest()
	none.SetVersion(1)
	none.Strict = true // for entities without any part: there are none
	if resp := ask[*kmsg.DescribeClientQuotasResponse](t, c, none); resp.Entries == nil || len(resp.Entries) != 0 {
		t.Errorf("%+v", resp) // null would end the Java client's call
	}
	res, _ := newAdmin(t).DescribeClientQuotas(t.Context(), false, []kadm.DescribeClientQuotaComponent{{Type: "user", MatchName: name("tcq-bad")}})
	if len(res) != 0 {
		t.Error("validated only, and there:", res)
	}
}

// awaitTimer returns when somebody waits for the clock. The server may need a while
// to get there; the test's own deadline ends the wait.
func awaitTimer(c *clock.Manual) {
	for c.Timers() == 0 {
		<-time.After(time.Millisecond)
	}
}

// throttledWorld is a server whose clock the test moves.
func throttledWorld(t *testing.T) (*Server, *clock.Manual) {
	c := clock.NewManual(time.Now())
	return anotherServer(t, func(o *Options) { o.Clock = c }), c
}

// A producer beyond its rate is answered at once, told how long to wait, and not
// read from for so long; another one on its own connection is.
func TestProduceThrottle(t *testing.T) {
	setQuota(t, "producer_byte_rate", 100, [2]string{"client-id", "tpt"})
	defer setQuota(t, "producer_byte_rate", 0, [2]string{"client-id", "tpt"})
	s, clk := throttledWorld(t)
	topic := newTopic(t, 1, "durability", "replicated")
	c, other := dialRaw(t, addrOf(s)), dialRaw(t, addrOf(s))
	c.clientID = "tpt"
	req := produceTo(topic, 0, 1, batchOf(string(make([]byte, 1500))))
	req.SetVersion(9)
	c.send(1, req)
	_, resp := c.receive(req)
	wait := resp.(*kmsg.ProduceResponse).ThrottleMillis
	if produced(t, resp).ErrorCode != 0 || wait < 5000 || wait > 7000 {
		t.Fatalf("%+v", resp)
	}
	c.send(2, req)
	other.send(3, req)
	if _, resp := other.receive(req); resp.(*kmsg.ProduceResponse).ThrottleMillis != 0 {
		t.Fatalf("%+v", resp)
	}
	awaitTimer(clk)
	clk.Advance(time.Duration(wait) * time.Millisecond)
	if corr, resp := c.receive(req); corr != 2 || produced(t, resp).ErrorCode != 0 {
		t.Fatalf("%+v", resp)
	}
}

// An answer beyond the rate is not sent: an empty one is, and the records come when
// the client has waited.
func TestFetchThrottle(t *testing.T) {
	setQuota(t, "consumer_byte_rate", 100, [2]string{"client-id", "tft"})
	defer setQuota(t, "consumer_byte_rate", 0, [2]string{"client-id", "tft"})
	s, clk := throttledWorld(t)
	topic := newTopic(t, 1, "durability", "replicated")
	c := dialRaw(t, addrOf(s))
	c.clientID = "tft"
	put := produceTo(topic, 0, 1, batchOf(string(make([]byte, 900))))
	put.SetVersion(9)
	for range 2 {
		c.send(1, put)
		c.receive(put)
	}
	get := func() *kmsg.FetchResponse {
		req := fetchFrom(topic, 0, 0)
		req.SetVersion(12)
		c.send(2, req)
		_, resp := c.receive(req)
		return resp.(*kmsg.FetchResponse)
	}
	// Ten seconds' worth is one batch: the second does not fit into any answer.
	first := get()
	if first.ThrottleMillis != 0 || len(fetched(t, first).RecordBatches) < 900 || len(fetched(t, first).RecordBatches) > 1000 {
		t.Fatalf("%+v", first)
	}
	second := get()
	if second.ThrottleMillis < 8000 || len(second.Topics) != 0 {
		t.Fatalf("%+v", second)
	}
	done := make(chan *kmsg.FetchResponse)
	go func() { done <- get() }()
	awaitTimer(clk)
	// To the millisecond: the clock moved on beyond it hid that the answer did not fit yet
	// when the client came back as it was told, and was held up once more.
	clk.Advance(time.Duration(second.ThrottleMillis) * time.Millisecond)
	if third := <-done; third.ThrottleMillis != 0 || len(fetched(t, third).RecordBatches) < 900 {
		t.Fatalf("%+v", third)
	}
}

// Beyond controller_mutation_rate new versions are refused and old ones wait.
func TestMutationThrottle(t *testing.T) {
	setQuota(t, "controller_mutation_rate", 1, [2]string{"client-id", "tmt"})
	defer setQuota(t, "controller_mutation_rate", 0, [2]string{"client-id", "tmt"})
	s, _ := throttledWorld(t)
	if !s.quotas.Limits(quota.Mutation) {
		t.Fatal("a server that has just started serves without quotas")
	}
	adm, err := kgo.NewClient(kgo.SeedBrokers(addrOf(s)), kgo.ClientID("tmt"))
	if err != nil {
		t.Fatal(err)
	}
	defer adm.Close()
	create := func(version int16, partitions int32) *kmsg.CreateTopicsResponse {
		t.Helper()
		req := kmsg.NewPtrCreateTopicsRequest()
		req.SetVersion(version)
		rt := kmsg.NewCreateTopicsRequestTopic()
		rt.Topic, rt.NumPartitions, rt.ReplicationFactor = uniqueName(t), partitions, 1
		req.Topics = append(req.Topics, rt)
		c := dialRaw(t, addrOf(s))
		c.clientID = "tmt"
		c.send(1, req)
		_, resp := c.receive(req)
		return resp.(*kmsg.CreateTopicsResponse)
	}
	if resp := create(7, 12); resp.Topics[0].ErrorCode != 0 || resp.ThrottleMillis != 1000 {
		t.Fatalf("%+v", resp)
	}
	if resp := create(7, 1); resp.Topics[0].ErrorCode != kerr.ThrottlingQuotaExceeded.Code || resp.ThrottleMillis != 1000 {
		t.Fatalf("%+v", resp)
	}
	if resp := create(5, 1); resp.Topics[0].ErrorCode != 0 || resp.ThrottleMillis != 2000 {
		t.Fatalf("%+v", resp)
	}
}

// Connections beyond the rate of a listener, or of all, wait for each other and are
// served then; a stop does not wait for that.
func TestConnectionCreationRate(t *testing.T) {
	for name, set := range map[string]func(*Options){
		"listener": func(o *Options) { o.Listeners[0].MaxConnectionRate = 1 },
		"broker":   func(o *Options) { o.MaxConnectionRate = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			clk := clock.NewManual(time.UnixMilli(1_700_000_000_000))
			s := anotherServer(t, func(o *Options) {
				o.Clock = clk
				set(o)
			})
			served := func() {
				t.Helper()
				c := dialRaw(t, addrOf(s))
				req := kmsg.NewPtrApiVersionsRequest()
				c.send(1, req)
				c.receive(req)
			}
			for range 10 { // a whole window's worth
				served()
			}
			paced := s.metrics.paced.Get()
			late := dialRaw(t, addrOf(s))
			awaitTimer(clk)
			if got := s.metrics.paced.Get() - paced; got != 1 || s.connections() != 10 {
				t.Fatalf("%d were held up, %d are in", got, s.connections())
			}
			clk.Advance(time.Second)
			req := kmsg.NewPtrApiVersionsRequest()
			late.send(1, req)
			late.receive(req)
			dialRaw(t, addrOf(s)) // held up when the server stops
			awaitTimer(clk)
		})
	}
}

// Connections that come too fast are not served and closed after a while, and a stop
// of the server does not wait for that.
func TestConnectionRate(t *testing.T) {
	adm := newAdmin(t)
	ip := kadm.ClientQuotaEntity{{Type: "ip", Name: kadm.StringPtr("127.0.0.1")}}
	alter := func(op kadm.AlterClientQuotaOp) {
		t.Helper()
		op.Key = "connection_creation_rate"
		res, err := adm.AlterClientQuotas(t.Context(), []kadm.AlterClientQuotaEntry{{Entity: ip, Ops: []kadm.AlterClientQuotaOp{op}}})
		if err != nil || res[0].Err != nil {
			t.Fatal(err, res)
		}
	}
	s, clk := throttledWorld(t)
	alter(kadm.AlterClientQuotaOp{Value: 1})
	defer alter(kadm.AlterClientQuotaOp{Remove: true}) // over a connection that is open
	for i := range 12 {
		c := dialRaw(t, addrOf(s))
		if i < 10 {
			req := kmsg.NewPtrApiVersionsRequest()
			c.send(1, req)
			c.receive(req)
			continue
		}
		awaitTimer(clk)
		if i == 10 {
			clk.Advance(time.Second)
			c.closedByPeer()
		}
	}
}
