package perf

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ProduceOptions describe a produce load.
type ProduceOptions struct {
	Client []kgo.Opt // how to reach the cluster
	Topic  string    // must exist

	Rate     float64       // records per second over all clients; 0 is as fast as possible
	Records  int64         // end after so many; 0 is no limit
	Duration time.Duration // end after so long; default 10 s if Records is 0 too
	Warmup   time.Duration // records due earlier are sent but not measured; default 0

	RecordBytes int     // size of each value; at least 12, default 1024
	Random      float64 // share of random bytes in a value, 0 to 1; default 0 means 1, all random
	Clients     int     // connections; default 1
	BatchBytes  int     // producer batch limit; default 1 MB, as franz-go
	Linger      time.Duration
	Compression string // none, gzip, snappy, lz4, zstd; default none
	Acks        string // all, 1, 0; default all, which is idempotent
	// MaxBuffered bounds the records that wait in each client; beyond it the sender
	// blocks, while the schedule goes on. Default 100 000, and at most 256 MiB.
	MaxBuffered int
}

func (o *ProduceOptions) ensureDefaults() {
	if o.RecordBytes == 0 {
		o.RecordBytes = 1024
	}
	if o.Random == 0 {
		o.Random = 1
	}
	if o.Clients == 0 {
		o.Clients = 1
	}
	if o.Records == 0 && o.Duration == 0 {
		o.Duration = 10 * time.Second
	}
	if o.MaxBuffered == 0 {
		o.MaxBuffered = min(100_000, max(16, 256<<20/o.RecordBytes))
	}
	if o.Compression == "" {
		o.Compression = "none"
	}
	if o.Acks == "" {
		o.Acks = "all"
	}
}

// validate names every fault at once.
func (o *ProduceOptions) validate() error {
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(o.Topic == "", "no topic")
	bad(o.RecordBytes < stampBytes || o.RecordBytes > noiseBytes, "record size %d is not between %d and %d", o.RecordBytes, stampBytes, noiseBytes)
	bad(o.Random < 0 || o.Random > 1, "random share %v is not between 0 and 1", o.Random)
	bad(o.Rate < 0, "negative rate %v", o.Rate)
	bad(o.Records < 0 || o.Duration < 0 || o.Warmup < 0, "negative bound")
	bad(o.Duration > 0 && o.Warmup >= o.Duration, "warm-up of %v leaves nothing of %v", o.Warmup, o.Duration)
	bad(o.Clients < 0 || o.Clients > 1024, "%d clients is not between 1 and 1024", o.Clients)
	_, codecErr := codecOf(o.Compression)
	bad(codecErr != nil, "%v", codecErr)
	bad(o.Acks != "all" && o.Acks != "-1" && o.Acks != "1" && o.Acks != "0", "acks %q is not one of all, 1, 0", o.Acks)
	return errors.Join(errs...)
}

func codecOf(name string) (kgo.CompressionCodec, error) {
	switch name {
	case "none":
		return kgo.NoCompression(), nil
	case "gzip":
		return kgo.GzipCompression(), nil
	case "snappy":
		return kgo.SnappyCompression(), nil
	case "lz4":
		return kgo.Lz4Compression(), nil
	case "zstd":
		return kgo.ZstdCompression(), nil
	}
	return kgo.CompressionCodec{}, fmt.Errorf("compression %q is not one of none, gzip, snappy, lz4, zstd", name)
}

func (o *ProduceOptions) clientOpts() []kgo.Opt {
	codec, _ := codecOf(o.Compression) // validate has seen it
	opts := append([]kgo.Opt{
		kgo.ProducerBatchCompression(codec),
		kgo.ProducerLinger(o.Linger),
		kgo.MaxBufferedRecords(o.MaxBuffered),
		kgo.RecordDeliveryTimeout(2 * time.Minute),
	}, o.Client...)
	if o.BatchBytes > 0 {
		opts = append(opts, kgo.ProducerBatchMaxBytes(int32(o.BatchBytes)))
	}
	switch o.Acks {
	case "1":
		opts = append(opts, kgo.RequiredAcks(kgo.LeaderAck()), kgo.DisableIdempotentWrite())
	case "0":
		opts = append(opts, kgo.RequiredAcks(kgo.NoAck()), kgo.DisableIdempotentWrite())
	}
	return opts
}

// results gathers what the clients' callbacks report.
type results struct {
	mu      sync.Mutex
	latency Histogram
	records int64
	bytes   int64
	errors  int64
	err     error
	last    time.Time // of the last acknowledgement
}

func (r *results) record(measured bool, bytes int, from time.Time, err error) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.errors++
		if r.err == nil {
			r.err = err
		}
		return
	}
	if measured {
		r.latency.Record(now.Sub(from))
		r.records++
		r.bytes += int64(bytes)
		r.last = now
	}
}

// Produce runs the load and waits until every record is answered. It ends early
// when ctx does, with the report of what was measured until then.
func Produce(ctx context.Context, o ProduceOptions) (*Report, error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	clients := make([]*kgo.Client, o.Clients)
	for i := range clients {
		cl, err := kgo.NewClient(o.clientOpts()...)
		if err != nil {
			return nil, err
		}
		defer cl.Close()
		if err := cl.Ping(ctx); err != nil { // so that connecting is not measured
			return nil, err
		}
		clients[i] = cl
	}

	res := &results{}
	start := time.Now()
	measureFrom := start.Add(o.Warmup)
	cpu := processCPU()
	var wg sync.WaitGroup
	for i, cl := range clients {
		wg.Go(func() {
			s := &sender{
				o: &o, client: cl, res: res, measureFrom: measureFrom,
				payload:  newPayload(o.RecordBytes, o.Random, uint64(i)),
				schedule: schedule{start: start, rate: o.Rate / float64(o.Clients)},
				limit:    share(o.Records, i, o.Clients),
			}
			if o.Duration > 0 {
				s.end = start.Add(o.Duration)
			}
			s.run(ctx)
			// Even when ctx has ended, what is in the buffer gets its answer or its error.
			if err := cl.Flush(ctx); err != nil {
				cl.AbortBufferedRecords(context.WithoutCancel(ctx))
			}
		})
	}
	wg.Wait()

	r := &Report{Kind: "produce", Records: res.records, Bytes: res.bytes, Errors: res.errors,
		PlannedRate: o.Rate, LatencyFrom: fromPlan, Latency: latencyOf(&res.latency)}
	if o.Rate == 0 {
		r.LatencyFrom = fromSend
	}
	if res.err != nil {
		r.Error = res.err.Error()
	}
	// CPU includes the warm-up: the account cannot be split at a record's time.
	r.finish(max(0, res.last.Sub(measureFrom)), processCPU()-cpu)
	return r, nil
}

// share is client i's part of n records.
func share(n int64, i, clients int) int64 {
	part := n / int64(clients)
	if int64(i) < n%int64(clients) {
		part++
	}
	if n > 0 && part == 0 {
		return -1 // more clients than records: this one sends nothing
	}
	return part
}

// sender feeds one client.
type sender struct {
	o           *ProduceOptions
	client      *kgo.Client
	res         *results
	payload     *payload
	schedule    schedule
	measureFrom time.Time
	limit       int64     // records to send; 0 is no limit
	end         time.Time // zero is no end
}

// tick is the pacer's grain: timers finer than this cost more than they give, and
// the latency counts from the planned time all the same.
const tick = time.Millisecond

func (s *sender) run(ctx context.Context) {
	if s.limit < 0 {
		return
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := int64(0); ctx.Err() == nil; {
		now := time.Now()
		ready := n + 1
		if s.schedule.rate > 0 {
			ready = s.schedule.ready(now)
		}
		for ; n < ready; n++ {
			due := now
			if s.schedule.rate > 0 {
				due = s.schedule.due(n)
			}
			if s.limit > 0 && n >= s.limit || !s.end.IsZero() && !due.Before(s.end) || ctx.Err() != nil {
				return
			}
			s.send(ctx, due)
		}
		if s.schedule.rate > 0 {
			timer.Reset(max(tick, time.Until(s.schedule.due(n))))
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
	}
}

func (s *sender) send(ctx context.Context, due time.Time) {
	v := s.payload.value(due)
	measured := !due.Before(s.measureFrom)
	s.client.Produce(ctx, &kgo.Record{Topic: s.o.Topic, Value: v}, func(_ *kgo.Record, err error) {
		s.res.record(measured, len(v), due, err)
	})
}
