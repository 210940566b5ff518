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

// Run compares the two clusters. The error is about the run as a whole; what is
// wrong with a partition is in the report.
func Run(ctx context.Context, o Options) (*Report, error) {
	o.ensureDefaults()
	o.Source.Name, o.Mirror.Name = "source", "mirror"
	source, mirror := newSide(o.Source), newSide(o.Mirror)
	defer source.close()
	defer mirror.close()
	if err := source.loadMetadata(ctx); err != nil {
		return nil, err
	}
	if err := mirror.loadMetadata(ctx); err != nil {
		return nil, err
	}
	keys := partitionsOf(source, mirror, o.Topics)
	report := &Report{Partitions: make([]PartitionReport, len(keys))}

	work := make(chan int)
	g, ctx := errgroup.WithContext(ctx)
	for range min(o.Workers, len(keys)) {
		g.Go(func() error {
			w := &worker{source: newSide(o.Source), mirror: newSide(o.Mirror), fetchBytes: o.FetchBytes}
			defer w.source.close()
			defer w.mirror.close()
			w.source.leaders, w.source.topics = source.leaders, source.topics
			w.mirror.leaders, w.mirror.topics = mirror.leaders, mirror.topics
			for i := range work {
				report.Partitions[i] = w.partition(ctx, keys[i])
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

func (w *worker) partition(ctx context.Context, key partitionKey) PartitionReport {
	r := PartitionReport{Topic: key.topic, Partition: key.partition, Offset: -1, CRC32C: "-"}
	for _, s := range []*side{w.source, w.mirror} {
		if !s.has(key.topic, key.partition) {
			r.Result, r.Detail = Missing, "missing on the "+s.cluster.Name
			return r
		}
	}
	if err := w.compare(ctx, &r); err != nil {
		r.Result, r.Detail = Failed, err.Error()
	}
	return r
}

// compare walks both logs side by side and fills the report.
func (w *worker) compare(ctx context.Context, r *PartitionReport) error {
	if a, b := w.source.topics[r.Topic].id, w.mirror.topics[r.Topic].id; a != b && a != [16]byte{} && b != [16]byte{} {
		r.Detail = "the topic ids differ: the topic was made anew on one side"
	}
	var err error
	if r.Source, err = w.source.offsets(ctx, r.Topic, r.Partition); err != nil {
		return err
	}
	if r.Mirror, err = w.mirror.offsets(ctx, r.Topic, r.Partition); err != nil {
		return err
	}
	r.Compared = Range{Start: max(r.Source.Start, r.Mirror.Start), End: min(r.Source.End, r.Mirror.End)}
	r.Compared.End = max(r.Compared.Start, r.Compared.End)

	source := &reader{side: w.source, topic: r.Topic, partition: r.Partition, next: r.Compared.Start, maxBytes: w.fetchBytes}
	mirror := &reader{side: w.mirror, topic: r.Topic, partition: r.Partition, next: r.Compared.Start, maxBytes: w.fetchBytes}
	sum := uint32(0)
	r.Result = Equal
	for source.next < r.Compared.End || mirror.next < r.Compared.End {
		if source.empty() || mirror.empty() {
			g, gctx := errgroup.WithContext(ctx)
			g.Go(func() error { return source.fill(gctx) })
			g.Go(func() error { return mirror.fill(gctx) })
			if err := g.Wait(); err != nil {
				return err
			}
		}
		at := min(source.next, mirror.next)
		a, err := source.take()
		if err != nil {
			return err
		}
		b, err := mirror.take()
		if err != nil {
			return err
		}
		if !bytes.Equal(a, b) || a == nil {
			r.Result, r.Offset = Differs, at
			r.SourceBatch, r.MirrorBatch = describe(a), describe(b)
			if a == nil && b == nil {
				r.Detail = fmt.Sprintf("neither side has a batch between offset %d and the high watermark %d", at, r.Compared.End)
			}
			break
		}
		sum = crc32.Update(sum, castagnoli, a)
		r.Batches++
		r.Bytes += int64(len(a))
	}
	r.CRC32C = fmt.Sprintf("%08x", sum)
	return nil
}
