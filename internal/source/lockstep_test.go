//go:build interop

package source

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/lockstep-kafka/lockstep/fixtures/lockstep"
)

// A Lockstep server as the source: fetch sessions, and the mirror requests,
// which only such a source serves.
func TestLockstep(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	server, err := lockstep.Start(ctx, lockstep.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Kill()
	client, err := kgo.NewClient(kgo.SeedBrokers(server.Bootstrap()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(ctx, 4, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	c := open(t, nil, server.Bootstrap())
	id, err := c.ID(ctx)
	if err != nil || id == "" {
		t.Fatalf("id %q: %v", id, err)
	}
	exchange(t, c, server.Bootstrap())

	m, err := c.Metadata(ctx, []string{"orders"})
	if err != nil {
		t.Fatal(err)
	}
	keys := keysOf(m.Topics["orders"])
	if mirrors, supported, err := c.ListMirrors(ctx, nil); !supported || err != nil || len(mirrors) != 0 {
		t.Errorf("mirrors: %v, %v, %v", mirrors, supported, err)
	}
	found, supported, err := c.LastMirroredEpochs(ctx, "m", "nobody", keys)
	t.Logf("last mirrored epochs: %v, %v, %v", found, supported, err)
	if !supported {
		t.Error("the server does not tell last mirrored epochs")
	}
	for key, got := range found {
		if got != (LastMirrored{Epoch: -1, Offset: -1}) {
			t.Errorf("%s: %+v, but nobody mirrors there", key, got)
		}
	}
	for _, key := range keys {
		p := m.Topics["orders"].Partitions[key.Partition]
		first, last, err := c.Offsets(ctx, m.Brokers[p.Leader], key, p.LeaderEpoch)
		if first != 0 || last < 1 || err != nil {
			t.Errorf("%s: offsets %d to %d: %v", key, first, last, err)
		}
		if end, err := c.EpochEnd(ctx, m.Brokers[p.Leader], key, p.LeaderEpoch, p.LeaderEpoch); err != nil || end.End != last {
			t.Errorf("%s: end of the epoch %v: %v", key, end, err)
		}
	}
}
