package kafka

import (
	"errors"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// The life of a topic through an admin client.
func TestTopicLife(t *testing.T) {
	adm := newAdmin(t)
	ctx := t.Context()
	name := uniqueName(t)
	resp, err := adm.CreateTopic(ctx, 2, 1, map[string]*string{"retention.ms": kadm.StringPtr("1000")}, name)
	if err != nil || resp.NumPartitions != 2 || resp.ReplicationFactor != 1 || resp.ID == (kadm.TopicID{}) {
		t.Fatalf("%+v %v", resp, err)
	}
	if v := resp.Configs["retention.ms"]; v.MaybeValue() != "1000" || v.Source != kmsg.ConfigSourceDynamicTopicConfig {
		t.Fatalf("%+v", v)
	}
	if _, err = adm.CreateTopic(ctx, 2, 1, nil, name); !errors.Is(err, kerr.TopicAlreadyExists) {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name       string
		partitions int32
		replicas   int16
		configs    map[string]*string
		want       error
	}{
		{"bad/name", 1, 1, nil, kerr.InvalidTopicException},
		{"..", 1, 1, nil, kerr.InvalidTopicException},
		{"zero-partitions", 0, 1, nil, kerr.InvalidPartitions},
		{"two-replicas", 1, 2, nil, kerr.InvalidReplicationFactor},
		{"bad-config", 1, 1, map[string]*string{"no.such": kadm.StringPtr("1")}, kerr.InvalidConfig},
		{"bad-value", 1, 1, map[string]*string{"retention.ms": kadm.StringPtr("soon")}, kerr.InvalidConfig},
	} {
		if _, err := adm.CreateTopic(ctx, tc.partitions, tc.replicas, tc.configs, tc.name); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	if res, err := adm.ValidateCreateTopics(ctx, 1, 1, nil, name+"-not"); err != nil || res[name+"-not"].Err != nil {
		t.Fatal(res, err)
	}
	grown, err := adm.UpdatePartitions(ctx, 4, name)
	if err != nil || grown[name].Err != nil {
		t.Fatal(grown, err)
	}
	shrunk, err := adm.UpdatePartitions(ctx, 3, name)
	if err != nil || !errors.Is(shrunk[name].Err, kerr.InvalidPartitions) {
		t.Fatal(shrunk, err)
	}
	md, err := adm.Metadata(ctx, name, name+"-not")
	if err != nil || len(md.Topics[name].Partitions) != 4 || md.Topics[name].ID != resp.ID || !errors.Is(md.Topics[name+"-not"].Err, kerr.UnknownTopicOrPartition) {
		t.Fatal(md, err)
	}
	for _, p := range md.Topics[name].Partitions {
		if p.Leader != 1 || len(p.Replicas) != 1 || len(p.ISR) != 1 || len(p.OfflineReplicas) != 0 {
			t.Fatalf("%+v", p)
		}
	}
	if d, err := adm.DeleteTopic(ctx, name); err != nil || d.Err != nil {
		t.Fatal(d, err)
	}
	if _, err := adm.DeleteTopic(ctx, name); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Fatal(err)
	}
}

func TestTopicConfigs(t *testing.T) {
	adm := newAdmin(t)
	topic := newTopic(t, 1, "cleanup.policy", "compact")
	ctx := t.Context()
	get := func(name string) *kadm.Config {
		t.Helper()
		rc, err := adm.DescribeTopicConfigs(ctx, topic.Name)
		if err != nil || len(rc) != 1 || rc[0].Err != nil {
			t.Fatal(rc, err)
		}
		i := slices.IndexFunc(rc[0].Configs, func(c kadm.Config) bool { return c.Key == name })
		if i < 0 {
			return new(kadm.Config)
		}
		return &rc[0].Configs[i]
	}
	alter := func(op kadm.IncrementalOp, name, value string) error {
		t.Helper()
		res, err := adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: op, Name: name, Value: &value}}, topic.Name)
		if err != nil {
			t.Fatal(err)
		}
		return res[0].Err
	}
	if c := get("cleanup.policy"); c.MaybeValue() != "compact" || c.Source != kmsg.ConfigSourceDynamicTopicConfig || len(c.Synonyms) != 2 {
		t.Fatalf("%+v", c)
	}
	if c := get("retention.ms"); c.MaybeValue() != "604800000" || c.Source != kmsg.ConfigSourceDefaultConfig {
		t.Fatalf("%+v", c)
	}
	if c := get(metadata.MirrorNameConfig); c.Key != "" {
		t.Fatalf("the internal config is shown: %+v", c)
	}
	if err := alter(kadm.AppendConfig, "cleanup.policy", "delete"); err != nil || get("cleanup.policy").MaybeValue() != "compact,delete" {
		t.Fatal(err, get("cleanup.policy"))
	}
	if err := alter(kadm.SetConfig, "retention.ms", "-5"); !errors.Is(err, kerr.InvalidConfig) {
		t.Fatal(err)
	}
	if err := alter(kadm.SetConfig, metadata.MirrorNameConfig, "m"); err == nil {
		t.Fatal("a user set mirror.name")
	}
	if err := alter(kadm.DeleteConfig, "cleanup.policy", ""); err != nil || get("cleanup.policy").MaybeValue() != "delete" {
		t.Fatal(err, get("cleanup.policy"))
	}
	// The old request replaces everything.
	if err := alter(kadm.SetConfig, "segment.ms", "5000"); err != nil {
		t.Fatal(err)
	}
	value := "1234"
	res, err := adm.AlterTopicConfigsState(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &value}}, topic.Name)
	if err != nil || res[0].Err != nil || get("retention.ms").MaybeValue() != value || get("segment.ms").Source != kmsg.ConfigSourceDefaultConfig {
		t.Fatal(res, err, get("segment.ms"))
	}
	unknown, err := adm.DescribeTopicConfigs(ctx, topic.Name+"-not")
	if err != nil || !errors.Is(unknown[0].Err, kerr.UnknownTopicOrPartition) {
		t.Fatal(unknown, err)
	}
}

func TestBrokerConfigsHideSecrets(t *testing.T) {
	s := anotherServer(t, func(o *Options) {
		for _, c := range [][2]string{{"num.partitions", "3"}, {"ssl.keystore.password", "hunter2"}, {"listener.name.x.plain.sasl.jaas.config", "hunter2"}} {
			o.BrokerConfigs = append(o.BrokerConfigs, metadata.BrokerConfig{ConfigDef: metadata.ConfigDef{Name: c[0], NoDefault: true}, Value: c[1], Set: true})
		}
	})
	req := kmsg.NewPtrDescribeConfigsRequest()
	req.SetVersion(4)
	req.IncludeSynonyms = true
	r := kmsg.NewDescribeConfigsRequestResource()
	r.ResourceType, r.ResourceName = kmsg.ConfigResourceTypeBroker, "1"
	other := r
	other.ResourceName = "2"
	logger := r
	logger.ResourceType = kmsg.ConfigResourceTypeBrokerLogger
	req.Resources = append(req.Resources, r, other, logger)
	resp := ask[*kmsg.DescribeConfigsResponse](t, dial(t, addrOf(s)), req)
	if resp.Resources[1].ErrorCode != kerr.InvalidRequest.Code || resp.Resources[2].ErrorCode != kerr.InvalidRequest.Code {
		t.Fatalf("%+v", resp.Resources)
	}
	secrets := 0
	for _, c := range resp.Resources[0].Configs {
		if c.Name == "num.partitions" && (str(c.Value) != "3" || c.Source != kmsg.ConfigSourceStaticBrokerConfig || !c.ReadOnly) {
			t.Errorf("%+v", c)
		}
		if c.IsSensitive {
			secrets++
			if c.Value != nil || len(c.ConfigSynonyms) != 1 || c.ConfigSynonyms[0].Value != nil {
				t.Errorf("%+v", c)
			}
		}
	}
	if secrets != 2 {
		t.Errorf("%d secrets hidden", secrets)
	}
}

// A mirrored topic refuses writes with 134, growth and deletion with 145 (spec
// 10.5), and the mirror's own secrets stay inside (C6).
func TestMirroredTopic(t *testing.T) {
	b := testBroker(t)
	topic := newTopic(t, 1)
	ctx := t.Context()
	mirror := uniqueName(t)
	if err := b.controller.CreateMirror(ctx, mirror, map[string]string{
		"bootstrap.servers": "127.0.0.1:1", "mirror.source.cluster.id": "source", "sasl.jaas.config": "hunter2",
	}); err != nil {
		t.Fatal(err)
	}
	res, err := b.controller.StartMirrorTopics(ctx, controller.StartMirrorTopics{
		Mirror: mirror, Topics: []controller.MirrorTopic{{Name: topic.Name, ID: topic.ID, Partitions: 1}}, Validation: -1,
	})
	if err != nil || res[0].Err != nil {
		t.Fatal(res, err)
	}
	if err := b.controller.WaitWatchers(ctx); err != nil {
		t.Fatal(err)
	}
	c := dial(t, b.addr)
	for _, v := range []int16{3, 8, 9, 13} {
		req := produceTo(topic, 0, -1, batchOf("a"))
		req.SetVersion(v)
		if p := produced(t, ask[*kmsg.ProduceResponse](t, c, req)); p.ErrorCode != codeReadOnlyTopic {
			t.Fatalf("version %d: %+v", v, p)
		}
	}
	raw := dialRaw(t, b.addr)
	raw.send(1, produceTo(topic, 0, 0, batchOf("a")))
	raw.closedByPeer()
	// A client library fails fast instead of trying until its timeout.
	cl := newClient(t, kgo.DefaultProduceTopic(topic.Name))
	if err := cl.ProduceSync(ctx, kgo.StringRecord("a")).FirstErr(); err == nil {
		t.Fatal("accepted")
	}
	if p := fetched(t, ask[*kmsg.FetchResponse](t, c, fetchFrom(topic, 0, 0))); p.ErrorCode != 0 {
		t.Fatalf("a read: %+v", p)
	}
	grow := kmsg.NewPtrCreatePartitionsRequest()
	grow.SetVersion(3)
	gt := kmsg.NewCreatePartitionsRequestTopic()
	gt.Topic, gt.Count = topic.Name, 3
	grow.Topics = append(grow.Topics, gt)
	if r := ask[*kmsg.CreatePartitionsResponse](t, c, grow); r.Topics[0].ErrorCode != codeInvalidMirrorStates {
		t.Fatalf("%+v", r)
	}
	del := kmsg.NewPtrDeleteTopicsRequest()
	del.SetVersion(6)
	dt := kmsg.NewDeleteTopicsRequestTopic()
	dt.TopicID = topic.ID
	del.Topics = append(del.Topics, dt)
	if r := ask[*kmsg.DeleteTopicsResponse](t, c, del); r.Topics[0].ErrorCode != codeInvalidMirrorStates {
		t.Fatalf("%+v", r)
	}
	dc := kmsg.NewPtrDescribeConfigsRequest()
	dc.SetVersion(4)
	dc.IncludeSynonyms = true
	rs := kmsg.NewDescribeConfigsRequestResource()
	rs.ResourceType, rs.ResourceName = 64, mirror
	dc.Resources = append(dc.Resources, rs)
	r := ask[*kmsg.DescribeConfigsResponse](t, c, dc).Resources[0]
	i := slices.IndexFunc(r.Configs, func(c kmsg.DescribeConfigsResponseResourceConfig) bool { return c.Name == "sasl.jaas.config" })
	if r.ErrorCode != 0 || i < 0 || r.Configs[i].Value != nil || !r.Configs[i].IsSensitive {
		t.Fatalf("%+v", r)
	}
	for _, s := range r.Configs[i].ConfigSynonyms {
		if s.Value != nil {
			t.Fatal("the secret is in a synonym")
		}
	}
}

func TestAutoCreate(t *testing.T) {
	ctx := t.Context()
	cl := newClient(t, kgo.AllowAutoTopicCreation())
	name := uniqueName(t)
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: name, Value: []byte("a")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	// Not on a server that forbids it, not for a client that does not ask, and
	// never an internal topic or an impossible name.
	req := kmsg.NewPtrMetadataRequest()
	req.SetVersion(12)
	for _, n := range []string{"auto-no", "__internal", "not/a/topic"} {
		mt := kmsg.NewMetadataRequestTopic()
		mt.Topic = kmsg.StringPtr(n)
		req.Topics = append(req.Topics, mt)
	}
	off := anotherServer(t, func(o *Options) { o.AutoCreateTopics = false })
	req.AllowAutoTopicCreation = true
	forbidden := ask[*kmsg.MetadataResponse](t, dial(t, addrOf(off)), req)
	req.AllowAutoTopicCreation = false
	notAsked := ask[*kmsg.MetadataResponse](t, dial(t, testBroker(t).addr), req)
	req.AllowAutoTopicCreation = true
	req.Topics = req.Topics[1:]
	refused := ask[*kmsg.MetadataResponse](t, dial(t, testBroker(t).addr), req)
	for _, r := range []*kmsg.MetadataResponse{forbidden, notAsked, refused} {
		for _, mt := range r.Topics {
			want := kerr.UnknownTopicOrPartition.Code
			if *mt.Topic == "not/a/topic" {
				want = kerr.InvalidTopicException.Code
			}
			if mt.ErrorCode != want {
				t.Errorf("%s: code %d", *mt.Topic, mt.ErrorCode)
			}
		}
	}
}

func TestDescribeCluster(t *testing.T) {
	b := testBroker(t)
	md, err := newAdmin(t).BrokerMetadata(t.Context())
	if err != nil || md.Cluster != b.controller.Image().ClusterID || md.Controller != 1 || len(md.Brokers) != 1 {
		t.Fatalf("%+v %v", md, err)
	}
	req := kmsg.NewPtrDescribeClusterRequest()
	req.SetVersion(2)
	req.EndpointType = 1
	c := dial(t, b.addr)
	r := ask[*kmsg.DescribeClusterResponse](t, c, req)
	if r.ErrorCode != 0 || r.ClusterID != md.Cluster || len(r.Brokers) != 1 || r.Brokers[0].Port == 0 {
		t.Fatalf("%+v", r)
	}
	req.EndpointType = 2
	if r := ask[*kmsg.DescribeClusterResponse](t, c, req); r.ErrorCode != kerr.MismatchedEndpointType.Code {
		t.Fatalf("%+v", r)
	}
}
