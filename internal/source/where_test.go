package source

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/lockstep-kafka/lockstep/fixtures/process"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

func newGateway(t *testing.T, to string) *process.Gateway {
	t.Helper()
	g, err := process.NewGateway(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// kept is a cluster of three whose brokers are somewhere else each time.
func kept(t *testing.T, dir string) *kfake.Cluster {
	t.Helper()
	k, err := kfake.NewCluster(kfake.NumBrokers(3), kfake.ClusterID("source-id"), kfake.DataDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// MIR-301: all brokers come back at other addresses, behind a bootstrap address that
// stays. The next question for the id finds them, and then everything else is asked there,
// at once: nobody goes through the old ones first.
func TestBrokersMove(t *testing.T) {
	dir := t.TempDir()
	k := kept(t, dir)
	if err := k.CreateTopic("orders", 3, nil); err != nil {
		t.Fatal(err)
	}
	g := newGateway(t, k.ListenAddrs()[0])
	c := open(t, nil, g.Addr())
	ask := func() *Metadata {
		t.Helper()
		if id, err := c.ID(t.Context()); err != nil || id != "source-id" {
			t.Fatalf("id %q, %v", id, err)
		}
		m, err := c.Metadata(t.Context(), nil)
		if err != nil || len(m.Brokers) != 3 || len(m.Topics["orders"].Partitions) != 3 {
			t.Fatalf("%+v, %v", m, err)
		}
		if configs, err := c.TopicConfigs(t.Context(), []string{"orders"}); err != nil || configs["orders"].Err != nil {
			t.Fatalf("configs: %v, %v", configs, err)
		}
		if _, err := c.Groups(t.Context()); err != nil {
			t.Fatalf("groups: %v", err)
		}
		for _, p := range m.Topics["orders"].Partitions {
			key := sdk.PartitionKey{Topic: "orders", TopicID: m.Topics["orders"].ID, Partition: p.Index}
			if _, _, err := c.Offsets(t.Context(), m.Brokers[p.Leader], key, p.LeaderEpoch); err != nil {
				t.Fatalf("offsets: %v", err)
			}
		}
		return m
	}
	ask()
	for range 3 {
		k.Close()
		k = kept(t, dir)
		g.Lead(k.ListenAddrs()[1])
		now := strings.Join(k.ListenAddrs(), ",")
		for _, b := range ask().Brokers {
			if !strings.Contains(now, b.Addr()) {
				t.Errorf("broker %d at %s, they are at %s", b.ID, b.Addr(), now)
			}
		}
	}
}

// MIR-301: nobody is at a bootstrap address any more, but the brokers were heard of
// before. They are asked where they were last.
func TestBootstrapGone(t *testing.T) {
	k := kept(t, t.TempDir())
	g := newGateway(t, k.ListenAddrs()[0])
	c := open(t, nil, g.Addr())
	if _, err := c.ID(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.Close()
	for range 3 {
		if id, err := c.ID(t.Context()); err != nil || id != "source-id" {
			t.Fatalf("id %q, %v", id, err)
		}
		if _, err := c.Metadata(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.ListMirrors(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
}

// What was a broker's address is another cluster's today, which has all that the source
// had. It is asked for its id and for nothing else: neither for the ends of epochs, by
// which logs are cut, nor for records.
func TestAddressOfAnotherCluster(t *testing.T) {
	topic := kfake.SeedTopics(1, "orders")
	k, c := fake(t, nil, topic)
	g := newGateway(t, k.ListenAddrs()[0])
	behind := open(t, nil, g.Addr())
	for _, c := range []*Cluster{c, behind} {
		if _, err := c.ID(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	m, err := c.Metadata(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := m.Topics["orders"].Partitions[0]
	key, leader := sdk.PartitionKey{Topic: "orders"}, m.Brokers[p.Leader]
	if _, err := c.EpochEnd(t.Context(), leader, key, p.LeaderEpoch, p.LeaderEpoch); err != nil {
		t.Fatal(err)
	}
	k.Close()
	foreign, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.ClusterID("another-id"), kfake.Ports(int(leader.Port)), topic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(foreign.Close)

	isRefused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "another-id") || ErrorClass(err) != Other {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = c.EpochEnd(t.Context(), leader, key, p.LeaderEpoch, p.LeaderEpoch)
	isRefused("epoch end", err)
	_, _, err = c.Offsets(t.Context(), leader, key, p.LeaderEpoch)
	isRefused("offsets", err)
	_, _, err = c.LastMirroredEpochs(t.Context(), "m", "us", []sdk.PartitionKey{key})
	isRefused("last mirrored epochs", err)
	_, err = c.Transport().Open(t.Context(), leader)
	isRefused("fetch", err)
	for range 3 { // the control client goes by a broker's address first, then by the bootstrap address
		_, err = c.Metadata(t.Context(), nil)
		isRefused("metadata", err)
	}
	if id, err := c.ID(t.Context()); err != nil || id != "another-id" {
		t.Errorf("id %q, %v", id, err)
	}

	// Behind the gateway nobody answers now. That another cluster is where a broker was
	// is no news of the source.
	g.Close()
	if id, err := behind.ID(t.Context()); err == nil || ErrorClass(err) != Unreachable {
		t.Errorf("id %q, %v", id, err)
	}
}

// At the first address nobody says a word. The second one gets its share of the time.
func TestSilentAddress(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	k, _ := fake(t, nil)
	c := open(t, nil, silent.Addr().String(), k.ListenAddrs()[0])
	ctx, cancel := context.WithTimeout(t.Context(), 4*minDial)
	defer cancel()
	if _, err := c.ID(ctx); err != nil {
		t.Fatal(err)
	}
	again, cancel := context.WithTimeout(t.Context(), minDial) // it is asked where it was found
	defer cancel()
	if _, err := c.ID(again); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	if _, err := c.ID(ended); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
