package plugintest

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

func TestPolicyHold(t *testing.T) {
	o := Options{
		Path: Build(t, "../examples/policy-hold"), Args: []string{"-topics", "^orders"},
		Kinds: []sdk.Kind{sdk.KindTruncation},
	}
	Run(t, o)

	policy, err := Host(t, o).TruncationPolicy("tested", fallback{t})
	if err != nil {
		t.Fatal(err)
	}
	questions := truncationQuestions()
	for name, want := range map[string]sdk.TruncationAction{
		"failback": sdk.TruncateHold, "source loss": sdk.TruncateHold, "retention": sdk.TruncateHold,
		"nothing to cut": sdk.TruncateCut, "other topic": sdk.TruncateCut,
	} {
		d, err := policy.DecideTruncation(context.Background(), questions[name])
		if err != nil || d.Action != want {
			t.Errorf("%s: %+v, %v, want action %d", name, d, err, want)
		}
	}
	if d, _ := policy.DecideTruncation(context.Background(), questions["failback"]); !strings.Contains(d.Text, "2 records from offset 8") {
		t.Errorf("text is %q", d.Text)
	}
}

func TestTransportRelay(t *testing.T) {
	o := Options{Path: Build(t, "../examples/transport-relay"), Kinds: []sdk.Kind{sdk.KindTransport}}
	Run(t, o)
	t.Run("kafka", func(t *testing.T) { runKafka(t, o) })
}

// The two clients with which a mirror reads its source run over a transport
// unchanged, also where only the plugin knows the way.
func runKafka(t *testing.T, o Options) {
	source, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	const behind = "kafka.behind.invalid:9092"
	o.Args = []string{"-map", behind + "=" + source.ListenAddrs()[0]}
	dial, err := Host(t, o).Dialer("tested")
	if err != nil {
		t.Fatal(err)
	}

	client, err := (&wire.Dialer{DialContext: dial}).Dial(t.Context(), behind)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	resp, err := client.Request(t.Context(), kmsg.NewPtrMetadataRequest())
	if err != nil {
		t.Fatal(err)
	}
	if topics := resp.(*kmsg.MetadataResponse).Topics; len(topics) != 1 || *topics[0].Topic != "orders" {
		t.Errorf("topics are %+v", topics)
	}

	kgoClient, err := kgo.NewClient(kgo.SeedBrokers(behind), kgo.Dialer(dial), kgo.ConsumeTopics("orders"))
	if err != nil {
		t.Fatal(err)
	}
	defer kgoClient.Close()
	value := bytes.Repeat([]byte("x"), 500_000)
	if err := kgoClient.ProduceSync(t.Context(), &kgo.Record{Topic: "orders", Value: value}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	got := kgoClient.PollFetches(t.Context()).Records()
	if len(got) != 1 || !bytes.Equal(got[0].Value, value) {
		t.Errorf("read %d records", len(got))
	}
}
