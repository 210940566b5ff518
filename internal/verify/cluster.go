package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// Cluster is one of the two sides.
type Cluster struct {
	Name      string // "source" or "mirror", for messages
	Bootstrap []string
	Dialer    *wire.Dialer
}

// side is one worker's view of a cluster: its connections and what it knows of
// the leaders. It is not safe for concurrent use.
type side struct {
	cluster Cluster
	conns   map[string]*wire.Client
	leaders map[int32]string // broker id to address
	topics  map[string]topic
	pace    *pace
}

type topic struct {
	id         [16]byte
	internal   bool
	partitions map[int32]int32 // partition to leader id
}

func newSide(c Cluster) *side {
	return &side{cluster: c, conns: map[string]*wire.Client{}}
}

func (s *side) close() {
	for _, c := range s.conns {
		c.Close()
	}
}

// conn returns a connection to addr; a broken one is forgotten by drop.
func (s *side) conn(ctx context.Context, addr string) (*wire.Client, error) {
	if c, ok := s.conns[addr]; ok {
		return c, nil
	}
	c, err := s.cluster.Dialer.Dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.cluster.Name, err)
	}
	s.conns[addr] = c
	return c, nil
}

func (s *side) drop(addr string) {
	if c, ok := s.conns[addr]; ok {
		c.Close()
		delete(s.conns, addr)
	}
}

// request sends to addr. Version 0 means the newest that both sides know.
func (s *side) request(ctx context.Context, addr string, version int16, req kmsg.Request) (kmsg.Response, error) {
	c, err := s.conn(ctx, addr)
	if err != nil {
		return nil, err
	}
	var resp kmsg.Response
	if version > 0 {
		lowest, highest, ok := c.Versions(req.Key())
		if !ok || lowest > version {
			return nil, fmt.Errorf("%s: %s serves no version of %s up to %d", s.cluster.Name, addr, kmsg.NameForKey(req.Key()), version)
		}
		req.SetVersion(min(version, highest))
		resp, err = c.RequestVersion(ctx, req)
	} else {
		resp, err = c.Request(ctx, req)
	}
	if err != nil {
		s.drop(addr)
		return nil, fmt.Errorf("%s: %w", s.cluster.Name, err)
	}
	return resp, nil
}

// loadMetadata asks the known brokers, then the bootstrap addresses, in turn.
func (s *side) loadMetadata(ctx context.Context) error {
	addrs := append(slices.Sorted(maps.Keys(s.conns)), s.cluster.Bootstrap...)
	var errs []error
	for _, addr := range addrs {
		req := kmsg.NewPtrMetadataRequest() // no topics: all of them
		req.Topics = nil
		resp, err := s.request(ctx, addr, 0, req)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		m := resp.(*kmsg.MetadataResponse)
		s.leaders = map[int32]string{}
		for _, b := range m.Brokers {
			s.leaders[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
		}
		s.topics = map[string]topic{}
		for _, t := range m.Topics {
			if t.Topic == nil || kerr.ErrorForCode(t.ErrorCode) != nil {
				continue // shows as missing
			}
			known := topic{id: t.TopicID, internal: t.IsInternal, partitions: map[int32]int32{}}
			for _, p := range t.Partitions {
				known.partitions[p.Partition] = p.Leader
			}
			s.topics[*t.Topic] = known
		}
		return nil
	}
	return errors.Join(errs...)
}

func (s *side) has(topic string, partition int32) bool {
	_, ok := s.topics[topic].partitions[partition]
	return ok
}

// leader is the address of a partition's leader.
func (s *side) leader(topic string, partition int32) (string, error) {
	id, ok := s.topics[topic].partitions[partition]
	if !ok {
		return "", fmt.Errorf("%s: %s-%d does not exist", s.cluster.Name, topic, partition)
	}
	addr, ok := s.leaders[id]
	if !ok {
		return "", fmt.Errorf("%s: %s-%d has no leader", s.cluster.Name, topic, partition)
	}
	return addr, nil
}

// Answers that a fresh look at the metadata, or patience, may cure. A leader
// elected a moment ago answers OFFSET_NOT_AVAILABLE until its followers have
// fetched, which takes seconds when they have just been started: 15 s in all.
const attempts = 60

var retryPause = 250 * time.Millisecond // shorter in tests

// withLeader calls fn with the leader's address, and again after new metadata
// when the leader has moved or its connection broke.
func (s *side) withLeader(ctx context.Context, topic string, partition int32, fn func(addr string) error) error {
	for attempt := 1; ; attempt++ {
		addr, err := s.leader(topic, partition)
		if err == nil {
			err = fn(addr)
		}
		var code *kerr.Error
		if err == nil || attempt == attempts || (errors.As(err, &code) && !code.Retriable) || ctx.Err() != nil {
			return err
		}
		pause := time.NewTimer(retryPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return err
		}
		if err := s.loadMetadata(ctx); err != nil {
			return err
		}
	}
}

// offsets returns the log start and the high watermark.
func (s *side) offsets(ctx context.Context, topic string, partition int32) (Range, error) {
	var r Range
	err := s.withLeader(ctx, topic, partition, func(addr string) error {
		for _, q := range []struct {
			at int64
			to *int64
		}{{-2, &r.Start}, {-1, &r.End}} {
			req := kmsg.NewPtrListOffsetsRequest()
			req.ReplicaID = -1
			t := kmsg.NewListOffsetsRequestTopic()
			t.Topic = topic
			p := kmsg.NewListOffsetsRequestTopicPartition()
			p.Partition, p.Timestamp, p.CurrentLeaderEpoch = partition, q.at, -1
			t.Partitions = append(t.Partitions, p)
			req.Topics = append(req.Topics, t)
			resp, err := s.request(ctx, addr, 0, req)
			if err != nil {
				return err
			}
			topics := resp.(*kmsg.ListOffsetsResponse).Topics
			if len(topics) != 1 || len(topics[0].Partitions) != 1 {
				return fmt.Errorf("%s: %s answered for %d topics when asked for the offsets of one partition", s.cluster.Name, addr, len(topics))
			}
			answer := topics[0].Partitions[0]
			if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
				return fmt.Errorf("%s: offsets of %s-%d at %s: %w", s.cluster.Name, topic, partition, addr, err)
			}
			*q.to = answer.Offset
		}
		return nil
	})
	return r, err
}

// epochEnd is where the log has its last batch of an epoch or an older one: its end,
// and -1 where it has none so old.
func (s *side) epochEnd(ctx context.Context, topic string, partition, epoch int32) (end int64, err error) {
	err = s.withLeader(ctx, topic, partition, func(addr string) error {
		req := kmsg.NewPtrOffsetForLeaderEpochRequest()
		t := kmsg.NewOffsetForLeaderEpochRequestTopic()
		t.Topic = topic
		p := kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
		p.Partition, p.CurrentLeaderEpoch, p.LeaderEpoch = partition, -1, epoch
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
		resp, err := s.request(ctx, addr, 0, req)
		if err != nil {
			return err
		}
		topics := resp.(*kmsg.OffsetForLeaderEpochResponse).Topics
		if len(topics) != 1 || len(topics[0].Partitions) != 1 {
			return fmt.Errorf("%s: %s answered for %d topics when asked for the end of an epoch of one partition", s.cluster.Name, addr, len(topics))
		}
		answer := topics[0].Partitions[0]
		if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
			return fmt.Errorf("%s: end of epoch %d of %s-%d at %s: %w", s.cluster.Name, epoch, topic, partition, addr, err)
		}
		end = answer.EndOffset
		return nil
	})
	return end, err
}

// fetchVersion is the last in which topics go by name: then one form serves
// sources with and without topic ids.
const fetchVersion = 12

// fetch reads whole batches from offset on; the last one that came may be cut and
// is left out.
func (s *side) fetch(ctx context.Context, topic string, partition int32, offset int64, maxBytes int32) ([]byte, error) {
	var records []byte
	err := s.withLeader(ctx, topic, partition, func(addr string) error {
		req := kmsg.NewPtrFetchRequest()
		req.ReplicaID, req.MaxWaitMillis, req.MinBytes, req.MaxBytes = -1, 500, 1, maxBytes
		req.SessionID, req.SessionEpoch = 0, -1
		t := kmsg.NewFetchRequestTopic()
		t.Topic = topic
		p := kmsg.NewFetchRequestTopicPartition()
		p.Partition, p.FetchOffset, p.PartitionMaxBytes = partition, offset, maxBytes
		p.CurrentLeaderEpoch, p.LastFetchedEpoch, p.LogStartOffset = -1, -1, -1
		t.Partitions = append(t.Partitions, p)
		req.Topics = append(req.Topics, t)
		resp, err := s.request(ctx, addr, fetchVersion, req)
		if err != nil {
			return err
		}
		f := resp.(*kmsg.FetchResponse)
		if err := kerr.ErrorForCode(f.ErrorCode); err != nil {
			return fmt.Errorf("%s: fetch from %s: %w", s.cluster.Name, addr, err)
		}
		if len(f.Topics) != 1 || len(f.Topics[0].Partitions) != 1 {
			return fmt.Errorf("%s: %s answered for %d topics when asked to fetch one partition", s.cluster.Name, addr, len(f.Topics))
		}
		answer := f.Topics[0].Partitions[0]
		if err := kerr.ErrorForCode(answer.ErrorCode); err != nil {
			return fmt.Errorf("%s: fetch of %s-%d at offset %d from %s: %w", s.cluster.Name, topic, partition, offset, addr, err)
		}
		records = answer.RecordBatches
		return nil
	})
	return records, err
}

// reader yields the batches of one partition in order.
type reader struct {
	side      *side
	topic     string
	partition int32
	next      int64 // offset to fetch from
	maxBytes  int32
	buf       []byte // what was fetched and not yet returned
}

// empty tells whether the next batch has to be fetched.
func (r *reader) empty() bool {
	_, _, err := record.Next(r.buf)
	return errors.Is(err, record.ErrShort)
}

// fill fetches if that is needed. buf then begins with a whole batch, unless the
// partition has nothing at next.
func (r *reader) fill(ctx context.Context) error {
	if !r.empty() {
		return nil
	}
	var err error
	if r.buf, err = r.side.fetch(ctx, r.topic, r.partition, r.next, r.maxBytes); err != nil {
		return err
	}
	return r.side.pace.took(ctx, len(r.buf))
}

// take removes the first batch of buf. It answers nil if there is none, which
// after fill means that the log holds no batch there.
func (r *reader) take() (record.Batch, error) {
	b, rest, err := record.Next(r.buf)
	if errors.Is(err, record.ErrShort) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s-%d behind offset %d: %w", r.side.cluster.Name, r.topic, r.partition, r.next, err)
	}
	if b.NextOffset() <= r.next {
		return nil, fmt.Errorf("%s: %s-%d: asked for offset %d, got a batch that ends at %d",
			r.side.cluster.Name, r.topic, r.partition, r.next, b.NextOffset())
	}
	r.buf, r.next = rest, b.NextOffset()
	return b, nil
}
