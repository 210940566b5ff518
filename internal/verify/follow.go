package verify

import (
	"context"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/lockstep-kafka/lockstep/internal/epoch"
)

// followTurn is how much of one partition a round compares, so that one with a long
// log does not keep the others waiting.
const followTurn = 64 << 20

// Follow compares the two clusters on and on, each partition from where the last round
// left it, until ctx ends. Between rounds it waits for interval, unless something that
// both sides have is still to be compared. each is called after every round with its
// report, or with why there is none; then the next round tries again.
//
// What is compared lies below both high watermarks. If it is cut off later, by an
// unclean election or a failback, what has taken its place is compared again. A
// partition that differs is looked at again at that place in each round.
func Follow(ctx context.Context, o Options, interval time.Duration, each func(*Report, error)) {
	r := newRunner(o)
	defer r.close()
	r.turn = followTurn
	for ctx.Err() == nil {
		report, err := r.round(ctx)
		if ctx.Err() != nil {
			return
		}
		each(report, err)
		if err == nil && slices.ContainsFunc(report.Partitions, func(p PartitionReport) bool { return p.Result == Equal && p.Unverified() > 0 }) {
			continue
		}
		wait := time.NewTimer(interval)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
		}
	}
}

// progress is what is remembered of a partition between rounds.
type progress struct {
	begun                   bool
	ids                     [2][16]byte // of the topic at either side
	start, verified         int64       // equal from start to verified
	epoch                   int32       // leader epoch of the last batch below verified; -1 unknown
	batches, bytes, skipped int64
}

// resume is the progress with which a comparison goes on: less than before, where one
// side has cut or deleted what had been compared. epochEnds are the ends that both logs
// now give for the epoch of the last compared batch, -1 where they have none so old;
// without them (sources older than Kafka 0.11 have no epochs) a cut shows by the ends
// of the logs, unless more has been written since.
func resume(before progress, ids [2][16]byte, source, mirror Range, epochEnds []int64) progress {
	first := max(source.Start, mirror.Start)
	if !before.begun || before.ids != ids {
		return progress{begun: true, ids: ids, start: first, verified: first, epoch: epoch.Undefined}
	}
	p := before
	cut := min(p.verified, source.End, mirror.End)
	for _, end := range epochEnds {
		cut = min(cut, max(end, first))
	}
	if cut < p.verified {
		p.verified, p.start, p.epoch = cut, min(p.start, cut), epoch.Undefined
	}
	if p.verified < first {
		p.skipped += first - p.verified
		p.verified, p.epoch = first, epoch.Undefined
	}
	p.start = max(p.start, first)
	return p
}

// epochEnds asks both sides for what resume wants to know.
func (w *worker) epochEnds(ctx context.Context, r *PartitionReport, before progress) (ends []int64, err error) {
	if !before.begun || before.epoch < 0 {
		return nil, nil
	}
	for _, s := range []*side{w.source, w.mirror} {
		end, err := s.epochEnd(ctx, r.Topic, r.Partition, before.epoch)
		if err != nil {
			return nil, err
		}
		ends = append(ends, end)
	}
	return ends, nil
}

func (p progress) into(r *PartitionReport) {
	r.Verified, r.Batches, r.Bytes, r.Skipped = p.verified, p.batches, p.bytes, p.skipped
}

// pace bounds how fast one side is read. A nil one does not.
type pace struct{ limit *rate.Limiter }

func newPace(bytesPerSecond int64) *pace {
	if bytesPerSecond <= 0 {
		return nil
	}
	return &pace{rate.NewLimiter(rate.Limit(bytesPerSecond), int(min(bytesPerSecond, 1<<30)))}
}

// took waits until n more bytes were due.
func (p *pace) took(ctx context.Context, n int) error {
	if p == nil {
		return nil
	}
	for n > 0 {
		piece := min(n, p.limit.Burst())
		if err := p.limit.WaitN(ctx, piece); err != nil {
			return err
		}
		n -= piece
	}
	return nil
}
