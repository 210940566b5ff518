//go:build interop

package source

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/fixtures/apachekafka"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// What kfake does not know: diverging epochs, fenced and unknown leader epochs,
// new leaders in the answer, and a JVM's TLS and SASL.
func TestApacheKafka(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	alice := apachekafka.User{Name: "alice", Password: `a\"b`}
	k, err := apachekafka.Start(ctx, apachekafka.Options{Dir: t.TempDir(), Brokers: 2, Listeners: apachekafka.Secure, Users: []apachekafka.User{alice}})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	c, err := Open(k.ClientProperties("SASL_SSL", "SCRAM-SHA-512", alice), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if id, err := c.ID(ctx); err != nil || id != k.ID() {
		t.Fatalf("id %q, want %q: %v", id, k.ID(), err)
	}

	admin, err := k.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := kadm.NewClient(admin).CreateTopic(ctx, 1, 2, map[string]*string{"retention.ms": kadm.StringPtr("-1")}, "orders"); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := admin.ProduceSync(ctx, &kgo.Record{Topic: "orders", Value: fmt.Append(nil, i)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	m, err := c.Metadata(ctx, []string{"orders"})
	if err != nil {
		t.Fatal(err)
	}
	topic := m.Topics["orders"]
	part := topic.Partitions[0]
	key := sdk.PartitionKey{Topic: "orders", TopicID: topic.ID}
	leader := m.Brokers[part.Leader]
	follower := m.Brokers[3-part.Leader]

	if first, last, err := c.Offsets(ctx, leader, key, part.LeaderEpoch); first != 0 || last != 20 || err != nil {
		t.Errorf("offsets %d to %d: %v", first, last, err)
	}
	if end, err := c.EpochEnd(ctx, leader, key, part.LeaderEpoch, part.LeaderEpoch); end != (sdk.EpochEnd{Epoch: part.LeaderEpoch, End: 20}) || err != nil {
		t.Errorf("end of the epoch: %v, %v", end, err)
	}
	if _, err := c.EpochEnd(ctx, leader, key, part.LeaderEpoch+1, 0); !errors.Is(err, kerr.UnknownLeaderEpoch) {
		t.Errorf("future leader epoch: %v", err)
	}
	if mirrors, supported, err := c.ListMirrors(ctx, nil); supported || err != nil || mirrors != nil {
		t.Errorf("mirrors: %v, %v, %v", mirrors, supported, err)
	}
	configs, err := c.TopicConfigs(ctx, []string{"orders"})
	dynamic := 0
	for _, e := range configs["orders"].Entries {
		if e.Dynamic {
			dynamic++
		}
	}
	if err != nil || dynamic != 1 {
		t.Errorf("%d dynamic configs: %v", dynamic, err)
	}

	fetch := func(broker sdk.BrokerAddr, offset int64, current, last int32) batches {
		t.Helper()
		s, err := c.Transport().Open(ctx, broker)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var got batches
		err = s.Fetch(ctx, &sdk.FetchRequest{MinBytes: 1, MaxBytes: 1 << 20, MaxWait: 200 * time.Millisecond, Partitions: []sdk.FetchPartition{
			{PartitionKey: key, Offset: offset, CurrentLeaderEpoch: current, LastFetchedEpoch: last, LogStart: -1, MaxBytes: 1 << 20},
		}}, &got)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	whole := fetch(leader, 0, part.LeaderEpoch, -1)
	next := int64(0)
	for b := whole.bytes; len(b) > 0; {
		batch, rest, err := record.Next(b)
		if err != nil || batch.VerifyCRC() != nil || batch.BaseOffset() != next || batch.PartitionLeaderEpoch() != part.LeaderEpoch {
			t.Fatalf("at %d: %v", next, err)
		}
		next, b = batch.NextOffset(), rest
	}
	if next != 20 || whole.header.HighWatermark != 20 || whole.header.LogStart != 0 || whole.header.Diverging != sdk.Undefined {
		t.Errorf("up to %d, %+v", next, whole.header)
	}
	// An epoch above all that the leader knows is no divergence to it, but out of
	// range; the epoch's end is then undefined.
	if got := fetch(leader, 15, part.LeaderEpoch, part.LeaderEpoch+3); got.header.ErrorCode != kerr.OffsetOutOfRange.Code {
		t.Errorf("epoch ahead of the source's log: %+v", got.header)
	}
	if end, err := c.EpochEnd(ctx, leader, key, part.LeaderEpoch, part.LeaderEpoch+3); end != sdk.Undefined || err != nil {
		t.Errorf("end of an epoch ahead of the source's log: %v, %v", end, err)
	}
	for _, tc := range []struct {
		name    string
		broker  sdk.BrokerAddr
		offset  int64
		current int32
		code    *kerr.Error
	}{
		{"out of range", leader, 21, part.LeaderEpoch, kerr.OffsetOutOfRange},
		{"leader epoch ahead", leader, 0, part.LeaderEpoch + 1, kerr.UnknownLeaderEpoch},
		{"leader epoch behind", leader, 0, part.LeaderEpoch - 1, kerr.FencedLeaderEpoch},
	} {
		if part.LeaderEpoch == 0 && tc.current < 0 {
			continue // -1 is no epoch
		}
		if got := fetch(tc.broker, tc.offset, tc.current, -1); got.header.ErrorCode != tc.code.Code {
			t.Errorf("%s: %+v", tc.name, got.header)
		}
	}
	// A follower serves consumers too (KIP-392), but knows a leader epoch too
	// many like the leader does; after the leader is gone, the survivor fences.
	if err := k.StopNode(int(part.Leader)); err != nil {
		t.Fatal(err)
	}
	for moved := part; moved.Leader == part.Leader; {
		if m, err := c.Metadata(ctx, []string{"orders"}); err == nil && m.Topics["orders"].Err == nil && m.Topics["orders"].Partitions[0].Leader >= 0 {
			moved = m.Topics["orders"].Partitions[0]
		}
		if ctx.Err() != nil {
			t.Fatal(ctx.Err())
		}
	}
	got := fetch(follower, 0, part.LeaderEpoch, -1)
	if got.header.ErrorCode != kerr.FencedLeaderEpoch.Code || got.header.LeaderID != follower.ID || got.header.LeaderEpoch <= part.LeaderEpoch {
		t.Errorf("after the election: %+v", got.header)
	}
	// The new epoch begins at 20: whoever has more of the old one diverges.
	for i := range 10 {
		if err := admin.ProduceSync(ctx, &kgo.Record{Topic: "orders", Value: fmt.Append(nil, i)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	newEpoch := got.header.LeaderEpoch
	if got := fetch(follower, 25, newEpoch, part.LeaderEpoch); got.header.Diverging != (sdk.EpochEnd{Epoch: part.LeaderEpoch, End: 20}) || len(got.bytes) != 0 {
		t.Errorf("diverging: %+v", got.header)
	}
	if got := fetch(follower, 20, newEpoch, part.LeaderEpoch); got.header.Diverging != sdk.Undefined || len(got.bytes) == 0 {
		t.Errorf("not diverging: %+v", got.header)
	}
	if _, err := c.Transport().Open(ctx, leader); ErrorClass(err) != Unreachable {
		t.Errorf("stopped broker: %v", err)
	}

	for _, listener := range []string{"SSL", "MUTUAL"} {
		props := k.ClientProperties(listener, "", apachekafka.User{})
		props["ssl.truststore.type"], props["ssl.truststore.location"], props["ssl.truststore.password"] = "PKCS12", k.Authority.TrustPKCS12(), apachekafka.StorePassword
		c := open(t, props, k.Addr(int(follower.ID), listener))
		if _, err := c.ID(ctx); err != nil {
			t.Errorf("%s: %v", listener, err)
		}
		delete(props, "ssl.keystore.location")
		delete(props, "ssl.keystore.type")
		_, err := open(t, props, k.Addr(int(follower.ID), listener)).ID(ctx)
		if refused := listener == "MUTUAL"; refused && ErrorClass(err) != TLS || !refused && err != nil {
			t.Errorf("%s without a certificate: %v", listener, err)
		}
		t.Log(err)
	}
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256"} {
		props := k.ClientProperties("SASL", mechanism, apachekafka.User{Name: "alice", Password: "wrong"})
		_, err := open(t, props, k.Addr(int(follower.ID), "SASL")).ID(ctx)
		if ErrorClass(err) != Authentication {
			t.Errorf("%s: %v", mechanism, err)
		}
		t.Log(err)
	}
}
