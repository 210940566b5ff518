package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"go.uber.org/goleak"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
	"github.com/lockstep-kafka/lockstep/segment"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script runs one worker against a source that the test plays by hand. Every
// line of the trace comes from the worker's goroutine, in its order.
type script struct {
	t       *testing.T
	w       *Worker
	clock   *clock.Manual
	parts   map[string]*scripted
	adverse error // what the next Open answers; nil: a session

	requests chan request  // the session shows each request…
	answers  chan answer   // …and waits for its answer
	handled  chan struct{} // the answer was handed over

	answered time.Time     // of the last answer
	waited   time.Duration // the last request for it, since the answer before

	mu       sync.Mutex
	trace    []string
	sessions int
}

type request struct {
	*sdk.FetchRequest
	session int // 1 is the first connection
}

type scripted struct {
	p      *Pipeline
	target *memTarget
	ended  chan struct{}
	said   string // last progress
}

type answer struct {
	lines []string
	err   error
}

func (s *script) log(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace = append(s.trace, fmt.Sprintf(format, args...))
}

func (s *script) drain() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := strings.Join(s.trace, "\n")
	s.trace = nil
	if out == "" {
		return ""
	}
	return out + "\n"
}

// memTarget is a log in memory.
type memTarget struct {
	name     string
	s        *script
	log      []byte
	start    int64
	end, hw  int64
	epoch    int32
	refuse   int // appends to refuse
	noRoom   atomic.Bool
	restarts bool
}

func (m *memTarget) LogEnd() (int64, int32) { return m.end, m.epoch }
func (m *memTarget) HighWatermark() int64   { return m.hw }

func (m *memTarget) Full() bool { return m.noRoom.Load() }

func (m *memTarget) MirrorAppend(leaderEpoch int32, b []byte) (int64, error) {
	if m.noRoom.Load() {
		m.s.log("%s has no room for %s", m.name, describe(b))
		return 0, fmt.Errorf("append: %w", segment.ErrFull)
	}
	if m.refuse > 0 {
		m.refuse--
		m.s.log("%s refuses append in epoch %d", m.name, leaderEpoch)
		return 0, errors.New("wrong leader epoch")
	}
	m.s.log("%s append %s in epoch %d", m.name, describe(b), leaderEpoch)
	m.log = append(m.log, b...)
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		if err != nil || batch.VerifyCRC() != nil {
			return 0, fmt.Errorf("unverified bytes: %w", err)
		}
		m.end, m.epoch, b = batch.NextOffset(), batch.PartitionLeaderEpoch(), rest
	}
	m.hw = m.end
	return m.end, nil
}

func (m *memTarget) AdvanceLogStart(leaderEpoch int32, start int64) error {
	m.s.log("%s log start %d in epoch %d", m.name, start, leaderEpoch)
	m.start = max(m.start, start)
	return nil
}

type restartingTarget struct{ *memTarget }

func (m restartingTarget) RestartEmpty(leaderEpoch int32, start int64) error {
	m.s.log("%s begins at %d in epoch %d", m.name, start, leaderEpoch)
	m.start, m.end, m.hw, m.epoch = start, start, start, -1
	return nil
}

func describe(b []byte) string {
	var out []string
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		if err != nil {
			return fmt.Sprintf("%v in %d bytes", err, len(b))
		}
		out = append(out, fmt.Sprintf("%d-%d@%d", batch.BaseOffset(), batch.LastOffset(), batch.PartitionLeaderEpoch()))
		b = rest
	}
	return strings.Join(out, ",")
}

// part is for the worker's goroutine; the test's own is the one that adds.
func (s *script) part(p *Pipeline) *scripted {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parts[fmt.Sprint(p.Key().Partition)]
}

// The observer.

func (s *script) name(p *Pipeline) string { return "p" + strconv.Itoa(int(p.Key().Partition)) }

func (s *script) Progress(p *Pipeline, pos Position) {
	if pos != p.Position() || pos.FetchedAt.Before(epoch0) {
		s.log("%s has position %+v", s.name(p), p.Position())
	}
	// Repetitions are left out: the ones for partitions that a response does not
	// mention come after the answer was handled, at no fixed place.
	said := fmt.Sprintf("%s progress end=%d source hw=%d start=%d", s.name(p), pos.End, pos.SourceHighWatermark, pos.SourceLogStart)
	if part := s.part(p); part.said != said {
		part.said = said
		s.log("%s", said)
	}
}

func (s *script) NearEpoch(p *Pipeline, epoch int32) { s.log("%s near epoch %d", s.name(p), epoch) }

func (s *script) Ended(p *Pipeline, e End) {
	s.log("%s ended %v: %v [epoch=%d div=%v leader=%d@%d code=%d]", s.name(p), e.Reason, e.Err, e.Epoch, e.Diverging, e.NewLeader, e.NewLeaderEpoch, e.Code)
	close(s.part(p).ended)
}

// The session.

type scriptedSession struct {
	s      *script
	number int
	closed chan struct{}
	once   sync.Once
}

func (c *scriptedSession) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

func (c *scriptedSession) Fetch(ctx context.Context, req *sdk.FetchRequest, h sdk.FetchHandler) error {
	select {
	case c.s.requests <- request{req, c.number}:
	case <-c.closed:
		return errors.New("closed")
	}
	select {
	case a := <-c.s.answers:
		defer func() { c.s.handled <- struct{}{} }()
		for _, line := range a.lines {
			hdr, b := c.s.parsePartition(req, line)
			r := io.LimitReader(bytes.NewReader(b), int64(hdr.RecordBytes))
			if err := h.Partition(hdr, r); err != nil {
				return err
			}
		}
		return a.err
	case <-c.closed:
		return errors.New("closed")
	}
}

var epoch0 = time.Unix(1_000_000, 0)

// parsePartition reads one line of an answer:
//
//	<partition> [hw=N] [start=N] [error=CODE] [leader=ID@EPOCH] [div=EPOCH@END]
//	            [batches=B-L@E,…] [cut=N] [flip] [old] [promise=N]
//
// cut leaves off the last N bytes, flip damages the last batch, old gives it
// format v1, promise announces N bytes more than are sent.
func (s *script) parsePartition(req *sdk.FetchRequest, line string) (*sdk.PartitionHeader, []byte) {
	f := strings.Fields(line)
	h := &sdk.PartitionHeader{HighWatermark: 100, LastStable: 100, Diverging: sdk.Undefined, LeaderID: -1, LeaderEpoch: -1}
	h.Key = key(f[0])
	var b []byte
	var last int
	cut, promise := 0, 0
	for _, arg := range f[1:] {
		k, v, _ := strings.Cut(arg, "=")
		switch k {
		case "hw":
			h.HighWatermark = number(v)
		case "start":
			h.LogStart = number(v)
		case "error":
			h.ErrorCode = int16(number(v))
		case "leader":
			id, e, _ := strings.Cut(v, "@")
			h.LeaderID, h.LeaderEpoch = int32(number(id)), int32(number(e))
		case "div":
			e, end, _ := strings.Cut(v, "@")
			h.Diverging = sdk.EpochEnd{Epoch: int32(number(e)), End: number(end)}
		case "batches":
			for one := range strings.SplitSeq(v, ",") {
				last = len(b)
				b = append(b, parseBatch(one)...)
			}
		case "cut":
			cut = int(number(v))
		case "flip":
			b[len(b)-1] ^= 1
		case "old":
			b[last+16] = 1
		case "promise":
			promise = int(number(v))
		default:
			s.t.Fatalf("no such word: %s", arg)
		}
	}
	b = b[:len(b)-cut]
	h.RecordBytes = len(b) + promise
	return h, b
}

// parseBatch makes base-last@epoch, with *N for records of N bytes.
func parseBatch(text string) []byte {
	text, size, large := strings.Cut(text, "*")
	span, e, _ := strings.Cut(text, "@")
	base, last, _ := strings.Cut(span, "-")
	if !large {
		return batch(number(base), number(last), int32(number(e)))
	}
	h := record.NoProducer(1000)
	h.BaseOffset, h.LeaderEpoch = number(base), int32(number(e))
	value := bytes.Repeat([]byte("x"), int(number(size)))
	return record.Build(h, []record.Record{{Value: value, OffsetDelta: int32(number(last) - number(base))}})
}

func key(partition string) sdk.PartitionKey {
	return sdk.PartitionKey{Topic: "t", TopicID: [16]byte{7}, Partition: int32(number(partition))}
}

func number(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		panic(fmt.Sprintf("%q is no number", s))
	}
	return n
}

func newScript(t *testing.T, o WorkerOptions) *script {
	s := &script{
		t: t, clock: clock.NewManual(epoch0), parts: map[string]*scripted{},
		requests: make(chan request), answers: make(chan answer), handled: make(chan struct{}, 1),
	}
	o.Clock = s.clock
	o.Open = func(context.Context) (sdk.Session, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.adverse != nil {
			return nil, s.adverse
		}
		s.sessions++
		return &scriptedSession{s: s, number: s.sessions, closed: make(chan struct{})}, nil
	}
	s.w = NewWorker(o)
	return s
}

// request waits for the worker's next request. Backoffs end by moving the
// clock; how often is no part of the trace.
func (s *script) request() request {
	for deadline := time.Now().Add(10 * time.Second); ; {
		select {
		case r := <-s.requests:
			return r
		default:
			s.clock.Advance(100 * time.Millisecond)
			runtime.Gosched()
			if time.Now().After(deadline) {
				s.t.Fatalf("no request from the worker; trace:\n%s", s.drain())
			}
		}
	}
}

func (s *script) wait(name string) {
	select {
	case <-s.parts[name].ended:
	case <-time.After(10 * time.Second):
		s.t.Fatalf("p%s does not end; trace:\n%s", name, s.drain())
	}
}

// requestFor waits for a request that asks for every partition of the answer.
// One that was under way when a partition was added is answered with nothing.
func (s *script) requestFor(lines string) request {
	for {
		r := s.request()
		complete := true
		for line := range strings.Lines(lines) {
			name := strings.Fields(line)[0]
			k := key(name)
			complete = complete && (!s.parts[name].p.isAttached() ||
				slices.ContainsFunc(r.Partitions, func(p sdk.FetchPartition) bool { return p.PartitionKey == k }))
		}
		if complete {
			return r
		}
		s.answers <- answer{}
		<-s.handled
	}
}

// MIR-068: damage in one partition is fetched again, and the others go on. MIR-296: a
// connection breaks between answers, or inside one: nothing of the cut-off batch is taken.
// MIR-306: an error code that nobody knows ends with a text.
func TestWorker(t *testing.T) {
	datadriven.Walk(t, "testdata/worker", func(t *testing.T, path string) {
		s := newScript(t, WorkerOptions{MaxBatchBytes: 3 << 20, PartitionMaxBytes: 1000})
		defer func() { s.w.Close() }()
		datadriven.RunTest(t, path, s.run)
	})
}

// run knows these commands:
//
//	add p=N end=N [epoch=N] dle=N [sle=N] [refuse=N] [restarts]
//	answer [sorted] [error=break|refuse] [ends=N]
//	    the lines are partitions, see parsePartition; ends waits for the end of
//	    a pipeline that follows the answer
//	open error=TEXT | open          what the next connection attempt gets
//	ended p=N                       wait until the pipeline has ended
//	room p=N | room p=N none        is there room in its log?
//	waited                          did the last answer's request wait for fullAsk?
//	age p=N                         is its position that of the last answer?
//	remove p=N; epochs p=N dle=N sle=N; log p=N; close
func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	s.t = t
	arg := func(name string, def int64) int64 {
		if !d.HasArg(name) {
			return def
		}
		var v int64
		d.ScanArgs(t, name, &v)
		return v
	}
	name := fmt.Sprint(arg("p", 0))
	switch d.Cmd {
	case "add":
		m := &memTarget{name: "p" + name, s: s, end: arg("end", 0), epoch: int32(arg("epoch", -1)), refuse: int(arg("refuse", 0))}
		m.hw = m.end
		var target Target = m
		if d.HasArg("restarts") {
			target = restartingTarget{m}
		}
		p := New(Options{Key: key(name), Target: target, LeaderEpoch: int32(arg("dle", 0)), SourceEpoch: int32(arg("sle", -1)), Observer: s})
		s.mu.Lock()
		s.parts[name] = &scripted{p: p, target: m, ended: make(chan struct{})}
		s.mu.Unlock()
		s.w.Add(p)
		return ""
	case "answer":
		r := s.requestFor(d.Input)
		var ask []string
		for _, p := range r.Partitions {
			if s.parts[fmt.Sprint(p.Partition)].p.isAttached() {
				ask = append(ask, fmt.Sprintf("%d: offset=%d last=%d current=%d max=%d", p.Partition, p.Offset, p.LastFetchedEpoch, p.CurrentLeaderEpoch, p.MaxBytes))
			}
		}
		if d.HasArg("sorted") {
			slices.Sort(ask) // the order of new partitions is not fixed
		}
		for _, a := range ask {
			s.log("connection %d asks %s", r.session, a)
		}
		a := answer{}
		if d.Input != "" {
			a.lines = strings.Split(d.Input, "\n")
		}
		var how string
		if d.HasArg("error") {
			d.ScanArgs(t, "error", &how)
			a.err = errors.New("connection broke")
			if how == "refuse" {
				a.err = &sdk.ResponseError{Code: 70}
			}
		}
		s.waited = s.clock.Now().Sub(s.answered)
		s.clock.Advance(time.Second) // each answer has its own time
		s.answered = s.clock.Now()
		s.answers <- a
		<-s.handled
		if d.HasArg("ends") {
			s.wait(fmt.Sprint(arg("ends", 0)))
		}
	case "age":
		s.request() // the worker is done with the last answer
		age := s.answered.Sub(s.parts[name].p.Position().FetchedAt)
		s.answers <- answer{}
		<-s.handled
		return fmt.Sprintf("p%s is up to date: %v\n", name, age <= 0)
	case "room":
		s.parts[name].target.noRoom.Store(d.HasArg("none"))
	case "waited":
		return fmt.Sprintln(s.waited >= fullAsk)
	case "open":
		s.mu.Lock()
		s.adverse = nil
		if d.HasArg("error") {
			s.adverse = errors.New("nobody listens")
		}
		s.mu.Unlock()
	case "ended":
		s.wait(name)
	case "remove":
		s.w.Remove(s.parts[name].p)
	case "epochs":
		s.w.SetEpochs(s.parts[name].p, int32(arg("dle", 0)), int32(arg("sle", -1)))
	case "log":
		m := s.parts[name].target
		return fmt.Sprintf("%s start=%d end=%d epoch=%d\n", describe(m.log), m.start, m.end, m.epoch)
	case "close":
		s.w.Close()
	default:
		t.Fatalf("no such command: %s", d.Cmd)
	}
	return s.drain()
}
