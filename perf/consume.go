package perf

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ConsumeOptions describe a consume load.
type ConsumeOptions struct {
	Client []kgo.Opt
	Topic  string
	Group  string // consumer group; empty reads every partition without one

	FromEarliest  bool // begin at the log start; otherwise at the end
	ReadCommitted bool

	Records  int64         // end after so many; 0 is no limit
	Duration time.Duration // end after so long; default 10 s if Records is 0 too
	// Idle ends the run when nothing has come for so long. Default 5 s.
	Idle     time.Duration
	Clients  int // more than one only with a group; default 1
	MaxBytes int // of one fetch; default 50 MB, as franz-go
}

func (o *ConsumeOptions) ensureDefaults() {
	if o.Records == 0 && o.Duration == 0 {
		o.Duration = 10 * time.Second
	}
	if o.Idle == 0 {
		o.Idle = 5 * time.Second
	}
	if o.Clients == 0 {
		o.Clients = 1
	}
}

func (o *ConsumeOptions) validate() error {
	var errs []error
	if o.Topic == "" {
		errs = append(errs, errors.New("no topic"))
	}
	if o.Records < 0 || o.Duration < 0 || o.Idle < 0 {
		errs = append(errs, errors.New("negative bound"))
	}
	if o.Clients < 0 || o.Clients > 1024 {
		errs = append(errs, fmt.Errorf("%d clients is not between 1 and 1024", o.Clients))
	}
	if o.Clients > 1 && o.Group == "" {
		errs = append(errs, errors.New("several clients without a group would all read everything"))
	}
	return errors.Join(errs...)
}

func (o *ConsumeOptions) clientOpts() []kgo.Opt {
	at := kgo.NewOffset().AtEnd()
	if o.FromEarliest {
		at = kgo.NewOffset().AtStart()
	}
	opts := append([]kgo.Opt{kgo.ConsumeTopics(o.Topic), kgo.ConsumeResetOffset(at)}, o.Client...)
	if o.Group != "" {
		opts = append(opts, kgo.ConsumerGroup(o.Group))
	}
	if o.ReadCommitted {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	if o.MaxBytes > 0 {
		opts = append(opts, kgo.FetchMaxBytes(int32(o.MaxBytes)), kgo.FetchMaxPartitionBytes(int32(o.MaxBytes)))
	}
	return opts
}

// consumed is shared by the clients of a run.
type consumed struct {
	mu          sync.Mutex
	latency     Histogram
	records     int64
	bytes       int64
	errors      int64
	err         error
	first, last time.Time
}

// Consume runs the load. The measured time begins at once when it reads from the
// log start, and otherwise with the first record.
func Consume(ctx context.Context, o ConsumeOptions) (*Report, error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if o.Duration > 0 {
		ctx, cancel = context.WithTimeout(ctx, o.Duration)
		defer cancel()
	}
	clients := make([]*kgo.Client, o.Clients)
	for i := range clients {
		cl, err := kgo.NewClient(o.clientOpts()...)
		if err != nil {
			return nil, err
		}
		defer cl.Close()
		if err := cl.Ping(ctx); err != nil {
			return nil, err
		}
		clients[i] = cl
	}
	c := &consumed{}
	if o.FromEarliest {
		c.first = time.Now()
	}
	cpu := processCPU()
	var wg sync.WaitGroup
	for _, cl := range clients {
		wg.Go(func() { c.poll(ctx, cancel, cl, &o) })
	}
	wg.Wait()

	r := &Report{Kind: "consume", Records: c.records, Bytes: c.bytes, Errors: c.errors, LatencyFrom: fromPlanEnd, Latency: latencyOf(&c.latency)}
	if c.err != nil {
		r.Error = c.err.Error()
	}
	r.finish(max(0, c.last.Sub(c.first)), processCPU()-cpu)
	return r, nil
}

// poll reads until ctx ends; it ends ctx itself when the run is over.
func (c *consumed) poll(ctx context.Context, end context.CancelFunc, cl *kgo.Client, o *ConsumeOptions) {
	for ctx.Err() == nil {
		wait, cancel := context.WithTimeout(ctx, o.Idle)
		fetches := cl.PollFetches(wait)
		idle := wait.Err() != nil && ctx.Err() == nil
		cancel()
		if c.add(fetches, o.Records) || idle {
			end()
		}
	}
}

// add counts one poll and tells whether the run has all its records.
func (c *consumed) add(fetches kgo.Fetches, limit int64) (full bool) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	fetches.EachError(func(topic string, partition int32, err error) {
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return
		}
		c.errors++
		if c.err == nil {
			c.err = fmt.Errorf("%s-%d: %w", topic, partition, err)
		}
	})
	fetches.EachRecord(func(r *kgo.Record) {
		if limit > 0 && c.records >= limit {
			return
		}
		c.records++
		c.bytes += int64(len(r.Key) + len(r.Value))
		if due, ok := stamp(r.Value); ok {
			c.latency.Record(now.Sub(due))
		}
	})
	if !fetches.Empty() {
		if c.first.IsZero() {
			c.first = now
		}
		c.last = now
	}
	return limit > 0 && c.records >= limit
}
