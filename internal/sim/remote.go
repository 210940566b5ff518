package sim

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/partition"
	"github.com/lockstep-kafka/lockstep/internal/source"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

type clockTimer = clock.Timer

func newReader(b []byte) io.Reader { return bytes.NewReader(b) }

// remote is the other cluster as a mirror sees it: brokers that answer over the link
// between the clusters, or do not.
type remote struct {
	b *broker
	w *World // the source
}

var _ mirror.Source = (*remote)(nil)

// patience is how often a leader is asked that is not ready.
const patience = 5

// ask calls one broker of the source and waits for what it says.
func (r *remote) ask(sb *broker, serve func() (any, error)) (any, error) {
	type result struct {
		v   any
		err error
	}
	var got result
	done := new(bool)
	r.b.w.pair.link.call(&r.b.proc, &sb.proc, sourceTimeout, func(reply func(any)) {
		if !sb.serving || sb.img == nil {
			return
		}
		v, err := serve()
		reply(result{v, err})
	}, func(v any, err error) {
		if got, _ = v.(result); err != nil {
			got.err = fmt.Errorf("broker %d: %w: %w", sb.id, err, context.DeadlineExceeded)
		}
		*done = true
	})
	r.b.mirrors.wait(done)
	return got.v, got.err
}

// any calls brokers until one answers, as a client does with its bootstrap list.
func (r *remote) any(serve func(sb *broker) (any, error)) (v any, err error) {
	first := r.b.w.loop.rng.IntN(len(r.w.ids))
	for i := range r.w.ids {
		sb := r.w.brokers[r.w.ids[(first+i)%len(r.w.ids)]]
		if v, err = r.ask(sb, func() (any, error) { return serve(sb) }); err == nil || i == 1 {
			return v, err
		}
	}
	return v, err
}

// leader calls the leader of a partition, again while it is not ready.
func (r *remote) leader(ctx context.Context, at sdk.BrokerAddr, key sdk.PartitionKey, serve func(p *partition.Partition) (any, error)) (any, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	r.b.w.pair.asks(r.b, segment.LogID{Topic: key.TopicID, Partition: key.Partition})
	sb := r.w.brokers[at.ID]
	for try := 1; ; try++ {
		v, err := r.ask(sb, func() (any, error) {
			x := sb.mgr.ByID(key.TopicID, key.Partition)
			if x == nil {
				return nil, kerr.UnknownTopicOrPartition
			}
			v, err := serve(x)
			if err != nil {
				err = kerr.ErrorForCode(code(err))
			}
			return versioned{v, r.w.pair.version(sb, segment.LogID{Topic: key.TopicID, Partition: key.Partition})}, err
		})
		if (err == kerr.OffsetNotAvailable || err == kerr.UnknownLeaderEpoch) && try < patience && ctx.Err() == nil {
			done := new(bool)
			r.b.w.loop.after(300*time.Millisecond, &r.b.proc, func() { *done = true })
			r.b.mirrors.wait(done)
			continue
		}
		if err != nil {
			return nil, err
		}
		r.b.w.pair.heard(r.b.w, r.b.id, segment.LogID{Topic: key.TopicID, Partition: key.Partition}, v.(versioned).version)
		return v.(versioned).v, nil
	}
}

type versioned struct {
	v       any
	version int
}

func (r *remote) ID(context.Context) (string, error) {
	v, err := r.any(func(*broker) (any, error) { return "cluster-" + r.w.name, nil })
	id, _ := v.(string)
	return id, err
}

func (r *remote) Metadata(_ context.Context, topics []string) (*source.Metadata, error) {
	v, err := r.any(func(sb *broker) (any, error) {
		img := sb.img
		m := &source.Metadata{ClusterID: "cluster-" + r.w.name, Brokers: map[int32]sdk.BrokerAddr{}, Topics: map[string]*source.Topic{}}
		for _, x := range img.Brokers() {
			if !x.Fenced {
				m.Brokers[x.ID] = sdk.BrokerAddr{ID: x.ID, Host: "b", Port: x.ID}
			}
		}
		for _, name := range topics {
			if img.Topic(name) == nil {
				m.Topics[name] = &source.Topic{Name: name, Err: kerr.UnknownTopicOrPartition}
			}
		}
		for _, t := range img.Topics() {
			if topics != nil && !slices.Contains(topics, t.Name) {
				continue
			}
			d := &source.Topic{Name: t.Name, ID: t.ID}
			for _, p := range t.Partitions {
				d.Partitions = append(d.Partitions, source.Partition{Index: p.Index, Leader: p.Leader, LeaderEpoch: p.LeaderEpoch})
			}
			m.Topics[t.Name] = d
		}
		return m, nil
	})
	m, _ := v.(*source.Metadata)
	return m, err
}

// ACLs are not simulated: no cluster here has an authorizer.
func (r *remote) ACLs(context.Context) ([]source.ACL, error) { return nil, source.ErrNoAuthorizer }

func (r *remote) TopicConfigs(_ context.Context, topics []string) (map[string]source.TopicConfigs, error) {
	v, err := r.any(func(sb *broker) (any, error) {
		out := map[string]source.TopicConfigs{}
		for _, name := range topics {
			t := sb.img.Topic(name)
			if t == nil {
				out[name] = source.TopicConfigs{Err: kerr.UnknownTopicOrPartition}
				continue
			}
			var c source.TopicConfigs
			for _, k := range sortedKeys(t.Configs) {
				value := t.Configs[k]
				c.Entries = append(c.Entries, source.ConfigEntry{Name: k, Value: &value, Dynamic: true})
			}
			out[name] = c
		}
		return out, nil
	})
	out, _ := v.(map[string]source.TopicConfigs)
	return out, err
}

func (r *remote) EpochEnd(ctx context.Context, at sdk.BrokerAddr, key sdk.PartitionKey, current, epoch int32) (sdk.EpochEnd, error) {
	if r.b.w.pair.epochAsked != nil {
		r.b.w.pair.epochAsked(r.b)
	}
	v, err := r.leader(ctx, at, key, func(p *partition.Partition) (any, error) { return p.EpochEnd(current, epoch) })
	if err != nil {
		return sdk.Undefined, err
	}
	return v.(sdk.EpochEnd), nil
}

func (r *remote) Offsets(ctx context.Context, at sdk.BrokerAddr, key sdk.PartitionKey, current int32) (earliest, latest int64, err error) {
	v, err := r.leader(ctx, at, key, func(p *partition.Partition) (any, error) {
		var both [2]int64
		var err error
		if both[0], _, _, err = p.ListOffset(partition.Earliest, partition.ReadUncommitted, current); err == nil {
			both[1], _, _, err = p.ListOffset(partition.Latest, partition.ReadUncommitted, current)
		}
		return both, err
	})
	if err != nil {
		return -1, -1, err
	}
	both := v.([2]int64)
	return both[0], both[1], nil
}

func (r *remote) ListMirrors(context.Context, *source.OriginsAsk) ([]source.MirrorListing, bool, error) {
	v, err := r.any(func(sb *broker) (any, error) {
		var out []source.MirrorListing
		for _, m := range sb.mirrors.c.List() {
			out = append(out, source.MirrorListing{Name: m.Name, SourceClusterID: m.SourceClusterID, Topics: m.Topics})
		}
		return out, nil
	})
	out, _ := v.([]source.MirrorListing)
	return out, true, err
}

func (r *remote) LastMirroredEpochs(_ context.Context, name, ours string, keys []sdk.PartitionKey) (map[sdk.PartitionKey]source.LastMirrored, bool, error) {
	type one struct {
		lme source.LastMirrored
		err error
	}
	v, err := r.any(func(sb *broker) (any, error) {
		var out []one
		for _, key := range keys {
			epoch, offset, err := sb.mirrors.c.LastMirroredEpoch(name, &ours, mirror.EpochQuery{Topic: key.Topic, ID: metadata.TopicID(key.TopicID), Partition: key.Partition})
			out = append(out, one{source.LastMirrored{Epoch: epoch, Offset: offset}, err})
		}
		return out, nil
	})
	if err != nil {
		return nil, true, err
	}
	found := map[sdk.PartitionKey]source.LastMirrored{}
	for i, o := range v.([]one) {
		if o.err == nil {
			if r.b.w.pair.telling != nil {
				r.b.w.pair.telling(&o.lme)
			}
			found[keys[i]] = o.lme
			r.b.w.pair.told(r.b.w, r.b.id, segment.LogID{Topic: keys[i].TopicID, Partition: keys[i].Partition}, o.lme)
		} else if err == nil {
			err = o.err
		}
	}
	return found, true, err
}

func (r *remote) Groups(context.Context) ([]source.Group, error) { return nil, nil }

func (r *remote) GroupOffsets(context.Context, string) ([]source.GroupOffset, error) {
	return nil, nil
}

func (r *remote) Range(context.Context, sdk.BrokerAddr, sdk.PartitionKey, int32, int64, int64) ([]byte, int64, error) {
	return nil, 0, source.ErrGone
}

func (r *remote) Transport() sdk.Transport { return transport{r} }
func (r *remote) Close() error             { return nil }

func (t transport) Name() string { return "link" }

// transport connects to a broker of the source: at once, or not at all.
type transport struct{ r *remote }

func (t transport) Open(_ context.Context, at sdk.BrokerAddr) (sdk.Session, error) {
	link, from := t.r.b.w.pair.link, t.r.b.id
	sb := t.r.w.brokers[at.ID]
	if sb == nil || !sb.proc.up || link.cut[[2]int32{from, at.ID}] || link.cut[[2]int32{at.ID, from}] {
		return nil, errRefused
	}
	return session{}, nil
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
