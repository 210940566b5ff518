package source

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// fake starts a cluster of one kfake broker and opens it as a source.
func fake(t *testing.T, props map[string]string, opts ...kfake.Opt) (*kfake.Cluster, *Cluster) {
	t.Helper()
	k, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.ClusterID("source-id")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k, open(t, props, k.ListenAddrs()...)
}

func open(t *testing.T, props map[string]string, addrs ...string) *Cluster {
	t.Helper()
	all := map[string]string{"bootstrap.servers": strings.Join(addrs, ","), "request.timeout.ms": "5000"}
	for k, v := range props {
		all[k] = v
	}
	c, err := Open(all, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.pause = time.Millisecond
	return c
}

func keysOf(topic *Topic) (keys []sdk.PartitionKey) {
	for _, p := range topic.Partitions {
		keys = append(keys, sdk.PartitionKey{Topic: topic.Name, TopicID: topic.ID, Partition: p.Index})
	}
	return keys
}

// fill produces n records to partition 0 of topic, one batch each.
func fill(t *testing.T, k *kfake.Cluster, topic string, n int) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for i := range n {
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, "value-%d", i)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestControlPlane(t *testing.T) {
	k, c := fake(t, nil, kfake.SeedTopics(3, "orders"))
	fill(t, k, "orders", 5)
	ctx := t.Context()

	id, err := c.ID(ctx)
	if err != nil || id != "source-id" {
		t.Fatalf("id %q, %v", id, err)
	}
	m, err := c.Metadata(ctx, []string{"orders", "missing"})
	if err != nil || m.ClusterID != "source-id" || len(m.Brokers) != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	orders := m.Topics["orders"]
	if orders.Err != nil || len(orders.Partitions) != 3 || orders.ID == [16]byte{} || orders.Partitions[2].Index != 2 || orders.Partitions[2].LeaderEpoch < 0 {
		t.Errorf("%+v", orders)
	}
	if !errors.Is(m.Topics["missing"].Err, kerr.UnknownTopicOrPartition) {
		t.Errorf("missing topic: %v", m.Topics["missing"].Err)
	}
	if m, err := c.Metadata(ctx, nil); err != nil || len(m.Topics) != 1 {
		t.Errorf("all topics: %+v, %v", m, err)
	}
	if m, err := c.Metadata(ctx, []string{}); err != nil || len(m.Topics) != 0 {
		t.Errorf("no topics: %+v, %v", m, err)
	}

	key := sdk.PartitionKey{Topic: "orders", TopicID: orders.ID}
	leader := m.Brokers[orders.Partitions[0].Leader]
	epoch := orders.Partitions[0].LeaderEpoch
	if earliest, latest, err := c.Offsets(ctx, leader, key, epoch); err != nil || earliest != 0 || latest != 5 {
		t.Errorf("offsets %d to %d, %v", earliest, latest, err)
	}
	if end, err := c.EpochEnd(ctx, leader, key, epoch, epoch); err != nil || end != (sdk.EpochEnd{Epoch: epoch, End: 5}) {
		t.Errorf("epoch end %v, %v", end, err)
	}
	if _, err := c.EpochEnd(ctx, leader, key, epoch+1, epoch); !errors.Is(err, kerr.UnknownLeaderEpoch) {
		t.Errorf("epoch ahead of the source: %v", err)
	}
	if _, _, err := c.Offsets(ctx, leader, sdk.PartitionKey{Topic: "missing"}, -1); !errors.Is(err, kerr.UnknownTopicOrPartition) {
		t.Errorf("offsets of a missing topic: %v", err)
	}

	if mirrors, supported, err := c.ListMirrors(ctx, nil); supported || err != nil || mirrors != nil {
		t.Errorf("mirrors of an ordinary source: %v, %v, %v", mirrors, supported, err)
	}
	if found, supported, err := c.LastMirroredEpochs(ctx, "m", "us", []sdk.PartitionKey{key}); supported || err != nil || found != nil {
		t.Errorf("last mirrored epochs of an ordinary source: %v, %v, %v", found, supported, err)
	}
}

// A topic was created a moment ago; the broker that listed it knows it, and the
// one that is asked for its configs does not yet. A start of such topics once
// failed with "unknown topic".
func TestConfigsOfATopicJustCreated(t *testing.T) {
	k, c := fake(t, nil, kfake.SeedTopics(1, "new", "old"))
	c.pause = time.Millisecond
	asked := 0
	k.ControlKey(int16(kmsg.DescribeConfigs), func(r kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		if asked++; asked > 2 {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, res := range r.(*kmsg.DescribeConfigsRequest).Resources {
			rr := kmsg.NewDescribeConfigsResponseResource()
			rr.ResourceType, rr.ResourceName = res.ResourceType, res.ResourceName
			if res.ResourceName == "new" {
				rr.ErrorCode = kerr.UnknownTopicOrPartition.Code
			}
			resp.Resources = append(resp.Resources, rr)
		}
		return resp, nil, true
	})
	configs, err := c.TopicConfigs(t.Context(), []string{"new", "old"})
	if err != nil || configs["new"].Err != nil || configs["old"].Err != nil || len(configs["new"].Entries) == 0 {
		t.Fatalf("asked %d times: %+v, %v", asked, configs["new"].Err, err)
	}
	if asked != 3 {
		t.Errorf("asked %d times", asked)
	}
}

func TestConfigsAndGroups(t *testing.T) {
	k, c := fake(t, nil, kfake.SeedTopics(1, "plain"))
	ctx := t.Context()
	if err := k.CreateTopic("tuned", 1, map[string]string{"retention.ms": "1234"}); err != nil {
		t.Fatal(err)
	}
	configs, err := c.TopicConfigs(ctx, []string{"plain", "tuned", "missing"})
	if err != nil {
		t.Fatal(err)
	}
	if configs["missing"].Err == nil || configs["plain"].Err != nil {
		t.Errorf("%+v", configs)
	}
	dynamic := map[string]string{}
	for _, e := range configs["tuned"].Entries {
		if e.Dynamic {
			dynamic[e.Name] = *e.Value
		}
	}
	if len(dynamic) != 1 || dynamic["retention.ms"] != "1234" {
		t.Errorf("dynamic configs %v", dynamic)
	}

	cl, err := kgo.NewClient(kgo.SeedBrokers(k.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: "plain", Partition: 0, At: 7, LeaderEpoch: 3, Metadata: "note"})
	offsets.Add(kadm.Offset{Topic: "tuned", Partition: 0, At: 0, LeaderEpoch: -1})
	if err := kadm.NewClient(cl).CommitAllOffsets(ctx, "readers", offsets); err != nil {
		t.Fatal(err)
	}
	groups, err := c.Groups(ctx)
	if err != nil || len(groups) != 1 || groups[0].ID != "readers" {
		t.Fatalf("%+v, %v", groups, err)
	}
	got, err := c.GroupOffsets(ctx, "readers")
	if err != nil || len(got) != 2 || got[0].Topic != "plain" || got[0].Offset != 7 || got[0].LeaderEpoch != 3 || *got[0].Metadata != "note" || got[1].Metadata != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := c.GroupOffsets(ctx, "nobody"); err != nil || len(got) != 0 {
		t.Errorf("unknown group: %+v, %v", got, err)
	}
}

// A leader that is not ready is asked again; one that stays so is an error.
func TestPatience(t *testing.T) {
	k, c := fake(t, nil, kfake.SeedTopics(1, "orders"))
	m, err := c.Metadata(t.Context(), []string{"orders"})
	if err != nil {
		t.Fatal(err)
	}
	topic := m.Topics["orders"]
	leader, key := m.Brokers[topic.Partitions[0].Leader], sdk.PartitionKey{Topic: "orders", TopicID: topic.ID}
	asked, refusals := 0, 3
	k.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		k.KeepControl()
		if asked++; asked > refusals {
			return nil, nil, false
		}
		resp := r.ResponseKind().(*kmsg.ListOffsetsResponse)
		p := kmsg.NewListOffsetsResponseTopicPartition()
		p.ErrorCode = kerr.OffsetNotAvailable.Code
		resp.Topics = append(resp.Topics, kmsg.ListOffsetsResponseTopic{Topic: "orders", Partitions: []kmsg.ListOffsetsResponseTopicPartition{p}})
		return resp, nil, true
	})
	if _, latest, err := c.Offsets(t.Context(), leader, key, -1); err != nil || latest != 0 || asked != refusals+2 {
		t.Errorf("%d, %v after %d questions", latest, err, asked)
	}
	asked, refusals = 0, 1000
	if _, _, err := c.Offsets(t.Context(), leader, key, -1); !errors.Is(err, kerr.OffsetNotAvailable) || asked != patience {
		t.Errorf("%v after %d questions", err, asked)
	}
	c.pause = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := c.Offsets(ctx, leader, key, -1); !errors.Is(err, kerr.OffsetNotAvailable) {
		t.Errorf("out of time: %v", err)
	}
}

// batches collects one partition's bytes.
type batches struct {
	header sdk.PartitionHeader
	bytes  []byte
	calls  int
}

func (b *batches) Partition(h *sdk.PartitionHeader, records io.Reader) error {
	b.header = *h
	b.calls++
	got, err := io.ReadAll(records)
	b.bytes = append(b.bytes, got...)
	return err
}

func TestSessionFetches(t *testing.T) {
	for name, versions := range map[string]*kversion.Versions{"newest": nil, "by name (2.8)": kversion.V2_8_0(), "Kafka 2.1": kversion.V2_1_0()} {
		t.Run(name, func(t *testing.T) {
			opts := []kfake.Opt{kfake.SeedTopics(1, "orders")}
			if versions != nil {
				opts = append(opts, kfake.MaxVersions(versions))
			}
			k, c := fake(t, nil, opts...)
			fill(t, k, "orders", 10)
			m, err := c.Metadata(t.Context(), []string{"orders"})
			if err != nil {
				t.Fatal(err)
			}
			topic := m.Topics["orders"]
			s, err := c.Transport().Open(t.Context(), m.Brokers[topic.Partitions[0].Leader])
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			key := sdk.PartitionKey{Topic: "orders", TopicID: topic.ID}
			req := &sdk.FetchRequest{MinBytes: 1, MaxBytes: 1 << 20, MaxWait: 100 * time.Millisecond, Partitions: []sdk.FetchPartition{
				{PartitionKey: key, Offset: 0, CurrentLeaderEpoch: topic.Partitions[0].LeaderEpoch, LastFetchedEpoch: -1, LogStart: -1, MaxBytes: 1 << 20},
			}}
			var got batches
			for next := int64(0); next < 10; {
				if err := s.Fetch(t.Context(), req, &got); err != nil {
					t.Fatal(err)
				}
				if got.header.ErrorCode != 0 || got.header.HighWatermark != 10 || got.header.Key != key {
					t.Fatalf("%+v", got.header)
				}
				for b := got.bytes; len(b) > 0; {
					batch, rest, err := record.Next(b)
					if err != nil || batch.VerifyCRC() != nil {
						t.Fatal(err)
					}
					next, b = batch.NextOffset(), rest
				}
				req.Partitions[0].Offset = next
			}
			// At the end the long poll answers with nothing.
			got = batches{}
			if err := s.Fetch(t.Context(), req, &got); err != nil || len(got.bytes) != 0 || got.calls > 1 {
				t.Errorf("%+v, %v", got, err)
			}
			req.Partitions[0].Offset = 99
			got = batches{}
			if err := s.Fetch(t.Context(), req, &got); err != nil || got.header.ErrorCode != kerr.OffsetOutOfRange.Code {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestSessionObeysContextAndClose(t *testing.T) {
	_, c := fake(t, nil, kfake.SeedTopics(1, "orders"))
	m, err := c.Metadata(t.Context(), []string{"orders"})
	if err != nil {
		t.Fatal(err)
	}
	topic := m.Topics["orders"]
	broker := m.Brokers[topic.Partitions[0].Leader]
	req := &sdk.FetchRequest{MinBytes: 1, MaxBytes: 1 << 20, MaxWait: time.Minute, Partitions: []sdk.FetchPartition{
		{PartitionKey: sdk.PartitionKey{Topic: "orders", TopicID: topic.ID}, CurrentLeaderEpoch: -1, LastFetchedEpoch: -1, MaxBytes: 1 << 20},
	}}
	for name, end := range map[string]func(sdk.Session, context.CancelFunc){
		"context": func(_ sdk.Session, cancel context.CancelFunc) { cancel() },
		"close":   func(s sdk.Session, _ context.CancelFunc) { s.Close() },
	} {
		s, err := c.Transport().Open(t.Context(), broker)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Fetch(ctx, req, &batches{}) }()
		end(s, cancel)
		if err := <-done; err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		s.Close()
	}
}

const jaas = `org.apache.kafka.common.security.plain.PlainLoginModule required username="%s" password="%s";`

// Each wrong setting gives one line that names the peer, the side and the
// cause, in the class that the retry rules need.
func TestErrorsNamePeerSideAndCause(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	l.Close()
	ca, certificate := authority(t, "broker.example")
	k, _ := fake(t, map[string]string{"security.protocol": "SSL"}, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{certificate}}))
	secure := k.ListenAddrs()[0]
	s, _ := fake(t, nil, kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "right"), kfake.Superuser("SCRAM-SHA-256", "alice", "right"))
	sasl := s.ListenAddrs()[0]

	for name, tc := range map[string]struct {
		c     *Cluster
		peer  string
		class Class
		text  string
	}{
		"nobody listens": {open(t, nil, nobody), nobody, Unreachable, "cannot connect: connection refused"},
		"no such host":   {open(t, nil, "nohost.invalid:9092"), "nohost.invalid:9092", Unreachable, "cannot resolve"},
		"wrong name": {open(t, map[string]string{"security.protocol": "SSL", "ssl.truststore.certificates": ca}, secure),
			secure, TLS, "expected the name 127.0.0.1, found broker.example"},
		"unknown issuer":   {open(t, map[string]string{"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": ""}, secure), secure, TLS, "we refuse its certificate of CN=broker.example, issued by CN=test authority"},
		"plaintext to TLS": {open(t, nil, secure), secure, Unreachable, "security.protocol"},
		"TLS to plaintext": {open(t, map[string]string{"security.protocol": "SSL"}, chatty(t)), "127.0.0.1:", TLS, "does not speak TLS"},
		"wrong password": {open(t, map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": fmt.Sprintf(jaas, "alice", "wr0ng")}, sasl),
			sasl, Authentication, "authentication failed"},
		"wrong SCRAM password": {open(t, map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256",
			"sasl.jaas.config": strings.Replace(fmt.Sprintf(jaas, "alice", "wr0ng"), "plain.Plain", "scram.Scram", 1)}, sasl), sasl, Authentication, "authentication failed"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			calls := map[string]func() error{
				"id":       func() error { _, err := tc.c.ID(ctx); return err },
				"metadata": func() error { _, err := tc.c.Metadata(ctx, nil); return err },
			}
			for call, fn := range calls {
				err := fn()
				if err == nil {
					t.Fatalf("%s: no error", call)
				}
				text := err.Error()
				if ErrorClass(err) != tc.class {
					t.Errorf("%s: class %v, want %v: %v", call, ErrorClass(err), tc.class, err)
				}
				if strings.Contains(text, "\n") || strings.Contains(text, "wr0ng") || !strings.HasPrefix(text, "source ") {
					t.Errorf("%s: %q", call, text)
				}
				if call == "id" && (!strings.Contains(text, tc.peer) || !strings.Contains(text, tc.text)) {
					t.Errorf("%q, want peer %s and …%s…", text, tc.peer, tc.text)
				}
				t.Logf("%s: %v", call, err)
			}
		})
	}
}

// chatty is a server that answers everything with a line of text.
func chatty(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Read(make([]byte, 1000))
			conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			conn.Close()
		}
	}()
	return l.Addr().String()
}

// authority makes a throw-away issuer and a certificate for name.
func authority(t *testing.T, name string) (caPEM string, leaf tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, own.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: caDER})
	return text.String(), tls.Certificate{Certificate: [][]byte{der}, PrivateKey: own}
}

func TestSASLWorks(t *testing.T) {
	for mechanism, module := range map[string]string{"PLAIN": "plain.Plain", "SCRAM-SHA-256": "scram.Scram", "SCRAM-SHA-512": "scram.Scram"} {
		_, c := fake(t, map[string]string{"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism,
			"sasl.jaas.config": strings.Replace(fmt.Sprintf(jaas, "alice", `r\"ght`), "plain.Plain", module, 1)},
			kfake.EnableSASL(), kfake.Superuser(mechanism, "alice", `r"ght`))
		if id, err := c.ID(t.Context()); err != nil || id != "source-id" {
			t.Errorf("%s: %q, %v", mechanism, id, err)
		}
		if _, err := c.Metadata(t.Context(), nil); err != nil {
			t.Errorf("%s: %v", mechanism, err)
		}
	}
}

// A kept connection that the source closed is replaced without an error.
func TestControlConnectionIsRenewed(t *testing.T) {
	_, c := fake(t, nil, kfake.SeedTopics(1, "orders"))
	ctx := t.Context()
	m, err := c.Metadata(ctx, []string{"orders"})
	if err != nil {
		t.Fatal(err)
	}
	topic := m.Topics["orders"]
	leader := m.Brokers[topic.Partitions[0].Leader]
	key := sdk.PartitionKey{Topic: "orders", TopicID: topic.ID}
	for range 2 {
		if _, _, err := c.Offsets(ctx, leader, key, -1); err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		conn := c.mu.conns[leader.Addr()]
		c.mu.Unlock()
		conn.Conn().Close()
	}
	c.Close()
	if _, _, err := c.Offsets(ctx, leader, key, -1); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for name, props := range map[string]map[string]string{
		"bootstrap.servers": {},
		"security.protocol": {"bootstrap.servers": "a:1", "security.protocol": "X"},
	} {
		if _, err := Open(props, Options{}); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(map[string]string{"bootstrap.servers": "a:1", "topics.include": ".*"}, Options{}); err != nil {
		t.Errorf("mirror configs beside the client's: %v", err)
	}
}

func TestClassNames(t *testing.T) {
	var names []string
	for c := Other; c <= Unsupported; c++ {
		names = append(names, c.String())
	}
	if slices.Sort(names); len(slices.Compact(names)) != 6 {
		t.Errorf("%v", names)
	}
}
