package verify

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"hash/crc32"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Options of a run.
type Options struct {
	Source, Mirror Cluster
	// Topics restricts the run to the topics of the source that match; nil is every
	// topic that is not internal.
	Topics *regexp.Regexp
	// FetchBytes bounds one fetch of one worker on one side. Default 4 MiB.
	FetchBytes int32
	// Workers is how many partitions are compared at once. Default 4.
	Workers int
	// Rate bounds the bytes per second that are read from either side. 0: no bound.
	Rate int64
}

func (o *Options) ensureDefaults() {
	if o.FetchBytes <= 0 {
		o.FetchBytes = 4 << 20
	}
	if o.Workers <= 0 {
		o.Workers = 4
	}
}

type partitionKey struct {
	topic     string
	partition int32
}

// Run compares the two clusters once. The error is about the run as a whole; what is
// wrong with a partition is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	r := newRunner(o)
	defer r.close()
	return r.round(ctx)
}

// runner goes over all partitions, once or again and again.
type runner struct {
	o              Options
	source, mirror *side
	workers        []*worker

	// Of a runner that follows; see follow.go.
	turn  int64 // bytes of one partition in one round; 0: all
	known map[partitionKey]progress
}

func newRunner(o Options) *runner {
	o.ensureDefaults()
	o.Source.Name, o.Mirror.Name = "source", "mirror"
	r := &runner{o: o, source: newSide(o.Source), mirror: newSide(o.Mirror), known: make(map[partitionKey]progress)}
	pace := [2]*pace{newPace(o.Rate), newPace(o.Rate)}
	for range o.Workers {
		w := &worker{source: newSide(o.Source), mirror: newSide(o.Mirror), fetchBytes: o.FetchBytes}
		w.source.pace, w.mirror.pace = pace[0], pace[1]
		r.workers = append(r.workers, w)
	}
	return r
}

func (r *runner) close() {
	r.source.close()
	r.mirror.close()
	for _, w := range r.workers {
		w.source.close()
		w.mirror.close()
	}
}

// round compares what is known now, each partition from where it was left.
func (r *runner) round(ctx context.Context) (*Report, error) {
	if err := r.source.loadMetadata(ctx); err != nil {
		return nil, err
	}
	if err := r.mirror.loadMetadata(ctx); err != nil {
		return nil, err
	}
	keys := partitionsOf(r.source, r.mirror, r.o.Topics)
	report := &Report{Partitions: make([]PartitionReport, len(keys))}
	after := make([]progress, len(keys))

	work := make(chan int)
	g, ctx := errgroup.WithContext(ctx)
	for _, w := range r.workers[:min(len(r.workers), len(keys))] {
		g.Go(func() error {
			w.source.leaders, w.source.topics = r.source.leaders, r.source.topics
			w.mirror.leaders, w.mirror.topics = r.mirror.leaders, r.mirror.topics
			for i := range work {
				report.Partitions[i], after[i] = w.partition(ctx, keys[i], r.known[keys[i]], r.turn)
			}
			return ctx.Err()
		})
	}
	g.Go(func() error {
		defer close(work)
		for i := range keys {
			select {
			case work <- i:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	clear(r.known)
	for i, key := range keys {
		r.known[key] = after[i]
	}
	return report, nil
}

// partitionsOf lists what is to be compared: every partition that either side
// has of the source's topics. A mirror must have no partition that its source
// lacks, but may have topics of its own.
func partitionsOf(source, mirror *side, topics *regexp.Regexp) []partitionKey {
	var keys []partitionKey
	for name, t := range source.topics {
		if topics == nil && (t.internal || strings.HasPrefix(name, "__")) || topics != nil && !topics.MatchString(name) {
			continue
		}
		for p := range t.partitions {
			keys = append(keys, partitionKey{name, p})
		}
		for p := range mirror.topics[name].partitions {
			if !source.has(name, p) {
				keys = append(keys, partitionKey{name, p})
			}
		}
	}
	slices.SortFunc(keys, func(a, b partitionKey) int {
		return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition))
	})
	return keys
}

// worker compares one partition after the other.
type worker struct {
	source, mirror *side
	fetchBytes     int32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// partition compares one partition, from where before left it, for at most turn bytes
// if that is not 0.
func (w *worker) partition(ctx context.Context, key partitionKey, before progress, turn int64) (PartitionReport, progress) {
	r := PartitionReport{Topic: key.topic, Partition: key.partition, Offset: -1, Verified: -1, CRC32C: "-"}
	if before.begun {
		r.Verified, r.Batches, r.Bytes, r.Skipped, r.Compared = before.verified, before.batches, before.bytes, before.skipped, Range{before.start, before.verified}
	}
	for _, s := range []*side{w.source, w.mirror} {
		if !s.has(key.topic, key.partition) {
			r.Result, r.Detail = Missing, "missing on the "+s.cluster.Name
			return r, before
		}
	}
	after, err := w.compare(ctx, &r, before, turn)
	if err != nil {
		r.Result, r.Detail = Failed, err.Error()
	}
	return r, after
}

// compare walks both logs side by side and fills the report.
func (w *worker) compare(ctx context.Context, r *PartitionReport, before progress, turn int64) (progress, error) {
	ids := [2][16]byte{w.source.topics[r.Topic].id, w.mirror.topics[r.Topic].id}
	if a, b := ids[0], ids[1]; a != b && a != [16]byte{} && b != [16]byte{} {
		r.Detail = "the topic ids differ: the topic was made anew on one side"
	}
	var err error
	if r.Source, err = w.source.offsets(ctx, r.Topic, r.Partition); err != nil {
		return before, err
	}
	if r.Mirror, err = w.mirror.offsets(ctx, r.Topic, r.Partition); err != nil {
		return before, err
	}
	ends, err := w.epochEnds(ctx, r, before)
	if err != nil {
		return before, err
	}
	p := resume(before, ids, r.Source, r.Mirror, ends)
	r.Compared = Range{Start: p.start, End: max(p.verified, min(r.Source.End, r.Mirror.End))}
	source := &reader{side: w.source, topic: r.Topic, partition: r.Partition, next: p.verified, maxBytes: w.fetchBytes}
	mirror := &reader{side: w.mirror, topic: r.Topic, partition: r.Partition, next: p.verified, maxBytes: w.fetchBytes}
	whole := p.verified == p.start && p.bytes == 0
	sum, most := uint32(0), p.bytes+turn
	r.Result = Equal
	for (source.next < r.Compared.End || mirror.next < r.Compared.End) && (turn == 0 || p.bytes < most) {
		if source.empty() || mirror.empty() {
			g, gctx := errgroup.WithContext(ctx)
			g.Go(func() error { return source.fill(gctx) })
			g.Go(func() error { return mirror.fill(gctx) })
			if err := g.Wait(); err != nil {
				p.into(r)
				return p, err
			}
		}
		at := min(source.next, mirror.next)
		a, err := source.take()
		if err == nil {
			var b record.Batch
			if b, err = mirror.take(); err == nil && (!bytes.Equal(a, b) || a == nil) {
				r.Result, r.Offset = Differs, at
				r.SourceBatch, r.MirrorBatch = describe(a), describe(b)
				if a == nil && b == nil {
					r.Detail = fmt.Sprintf("neither side has a batch between offset %d and the high watermark %d", at, r.Compared.End)
				}
				break
			}
		}
		if err != nil {
			p.into(r)
			return p, err
		}
		sum = crc32.Update(sum, castagnoli, a)
		p.batches++
		p.bytes += int64(len(a))
		p.verified, p.epoch = source.next, a.PartitionLeaderEpoch()
	}
	p.into(r)
	if whole {
		r.CRC32C = fmt.Sprintf("%08x", sum)
	}
	return p, nil
}
