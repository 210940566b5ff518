package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/internal/wire"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// The mirror path over a loopback connection: a server that answers fetches
// from memory, our fetch session, and the pipeline's worker writing one file per
// partition. "of-null" is the median of (null mirror's time / worker's time) in
// alternating rounds; the null mirror uses the same session, checks the CRCs and
// writes as many bytes into one file with 1 MiB writes.
func BenchmarkMirrorOverTCP(b *testing.B) {
	for _, c := range []struct{ partitions, bytes, batch int }{
		{1, 1 << 20, 64 << 10}, {50, 1 << 20, 1 << 20}, {50, 1 << 20, 16 << 10}, {256, 64 << 10, 16 << 10}, {2000, 16 << 10, 16 << 10},
	} {
		b.Run(fmt.Sprintf("partitions=%d/batch=%dKiB", c.partitions, c.batch>>10), func(b *testing.B) {
			s := startMemSource(b, c.bytes, c.batch)
			null := &nullMirror{ring: newRing(b, 256<<20), buf: make([]byte, 1<<20)}
			var logs []*fileLog
			for range c.partitions {
				logs = append(logs, &fileLog{ring: newRing(b, max(128<<10, benchRound/int64(c.partitions))), epoch: -1})
			}
			round := func(mirror bool) time.Duration {
				start := time.Now()
				if mirror {
					s.mirror(b, logs, int32(c.bytes))
				} else {
					s.null(b, null, c.partitions, int32(c.bytes))
				}
				return time.Since(start)
			}
			round(false)
			round(true)
			b.SetBytes(benchRound)
			b.ReportAllocs()
			b.ResetTimer()
			var ratios, speeds []float64
			for b.Loop() {
				b.StopTimer()
				n := round(false)
				b.StartTimer()
				ratios = append(ratios, n.Seconds()/round(true).Seconds())
				speeds = append(speeds, benchRound/1e6/n.Seconds())
			}
			slices.Sort(ratios)
			slices.Sort(speeds)
			b.ReportMetric(ratios[len(ratios)/2], "of-null")
			b.ReportMetric(speeds[len(speeds)/2], "null-MB/s")
		})
	}
}

const benchRound = 256 << 20

// memSource answers Fetch v12 from one template, one connection at a time.
type memSource struct {
	l        net.Listener
	template []byte
	sent     atomic.Int64
}

func startMemSource(b *testing.B, bytesPerPartition, batchBytes int) *memSource {
	h := record.NoProducer(1000)
	h.LeaderEpoch = 1
	var recs []record.Record
	for size := record.HeaderSize; size+1010 < batchBytes; size += 1010 {
		recs = append(recs, record.Record{OffsetDelta: int32(len(recs)), Value: bytes.Repeat([]byte("v"), 1000)})
	}
	one := record.Build(h, recs)
	s := &memSource{template: bytes.Repeat(one, max(1, bytesPerPartition/len(one)))}
	var err error
	if s.l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { s.l.Close() })
	go func() {
		for {
			conn, err := s.l.Accept()
			if err != nil {
				return
			}
			s.serve(conn)
			conn.Close()
		}
	}()
	return s
}

func (s *memSource) serve(conn net.Conn) {
	var in, head []byte
	req := kmsg.NewPtrFetchRequest()
	for {
		frame, err := wire.ReadFrame(conn, 1<<24, in)
		if err != nil {
			return
		}
		in = frame[:0]
		h, body, err := wire.ParseRequestHeader(frame)
		if err != nil {
			return
		}
		req.SetVersion(h.Version)
		if req.ReadFrom(body) != nil || len(req.Topics) != 1 {
			return
		}
		n := min(len(req.Topics[0].Partitions), max(1, int(req.MaxBytes)/len(s.template)))
		// One entry: index, error, three offsets, no aborted, replica, length, …, tags.
		const entry = 4 + 2 + 24 + 1 + 4 + 4 + 1
		topic := req.Topics[0].Topic
		fixed := 4 + 1 + 4 + 2 + 4 + 1 + 1 + len(topic) + 3
		head = binary.BigEndian.AppendUint32(head[:0], uint32(fixed+n*(entry+len(s.template))+1+1))
		head = binary.BigEndian.AppendUint32(head, uint32(h.CorrelationID))
		head = append(head, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) // tags, throttle, error, session
		head = append(head, 2, byte(len(topic)+1))
		head = append(head, topic...)
		head = appendWideUvarint(head, uint32(n+1), 3)
		for _, p := range req.Topics[0].Partitions[:n] {
			next := p.FetchOffset
			for t := s.template; len(t) > 0; {
				batch, rest, err := record.Next(t)
				if err != nil {
					panic(err)
				}
				batch.SetBaseOffset(next)
				next, t = batch.NextOffset(), rest
			}
			head = binary.BigEndian.AppendUint32(head, uint32(p.Partition))
			head = append(head, 0, 0)
			head = binary.BigEndian.AppendUint64(head, uint64(next))
			head = binary.BigEndian.AppendUint64(head, uint64(next))
			head = append(head, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff)
			head = appendWideUvarint(head, uint32(len(s.template)+1), 4)
			if len(s.template) < 256<<10 { // gathered, as a good source does
				head = append(head, s.template...)
			} else {
				if _, err := conn.Write(head); err != nil {
					return
				}
				if _, err := conn.Write(s.template); err != nil {
					return
				}
				head = head[:0]
			}
			head = append(head, 0)
			s.sent.Add(int64(len(s.template)))
		}
		head = append(head, 0, 0)
		if _, err := conn.Write(head); err != nil {
			return
		}
	}
}

// appendWideUvarint writes v in exactly n bytes, so that sizes are known before.
func appendWideUvarint(b []byte, v uint32, n int) []byte {
	for range n - 1 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func (s *memSource) session(b *testing.B) *kafkaSession {
	conn, err := net.Dial("tcp", s.l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	return newKafkaSession(conn, s.l.Addr().String(), "bench", 4, 12, 10*time.Second)
}

func (s *memSource) mirror(b *testing.B, logs []*fileLog, perPartition int32) {
	w := pipeline.NewWorker(pipeline.WorkerOptions{
		Open:     func(context.Context) (sdk.Session, error) { return s.session(b), nil },
		MaxBytes: 16 << 20, PartitionMaxBytes: perPartition,
	})
	r := &roundObserver{done: make(chan struct{})}
	for i, log := range logs {
		w.Add(pipeline.New(pipeline.Options{
			Key: sdk.PartitionKey{Topic: "t", Partition: int32(i)}, Target: &roundLog{log, r}, LeaderEpoch: 100, SourceEpoch: -1, Observer: r,
		}))
	}
	<-r.done
	w.Close()
}

// roundObserver ends a round when enough bytes are in the logs.
type roundObserver struct {
	appended int64
	done     chan struct{}
}

func (r *roundObserver) Progress(*pipeline.Pipeline, pipeline.Position) {}
func (r *roundObserver) NearEpoch(*pipeline.Pipeline, int32)            {}
func (r *roundObserver) Ended(_ *pipeline.Pipeline, e pipeline.End)     { panic(e.Err) }

type roundLog struct {
	*fileLog
	r *roundObserver
}

func (l *roundLog) MirrorAppend(epoch int32, b []byte) (int64, error) {
	end, err := l.fileLog.MirrorAppend(epoch, b)
	before := l.r.appended
	if l.r.appended += int64(len(b)); before < benchRound && l.r.appended >= benchRound {
		close(l.r.done)
	}
	return end, err
}

func (s *memSource) null(b *testing.B, n *nullMirror, partitions int, perPartition int32) {
	session := s.session(b)
	defer session.Close()
	req := &sdk.FetchRequest{MinBytes: 1, MaxBytes: 16 << 20, MaxWait: time.Second}
	next := 0
	for n.read = 0; n.read < benchRound; {
		req.Partitions = req.Partitions[:0]
		for i := range partitions {
			req.Partitions = append(req.Partitions, sdk.FetchPartition{
				PartitionKey: sdk.PartitionKey{Topic: "t", Partition: int32((next + i) % partitions)}, MaxBytes: perPartition,
			})
		}
		next = (next + 16) % partitions
		if err := session.Fetch(b.Context(), req, n); err != nil {
			b.Fatal(err)
		}
	}
}

type nullMirror struct {
	ring *ring
	buf  []byte
	have int
	read int64
}

func (n *nullMirror) Partition(h *sdk.PartitionHeader, records io.Reader) error {
	for left := h.RecordBytes; left > 0; {
		k := min(left, len(n.buf)-n.have)
		if _, err := io.ReadFull(records, n.buf[n.have:n.have+k]); err != nil {
			return err
		}
		for b := n.buf[n.have : n.have+k]; len(b) > 0; {
			batch, rest, err := record.Next(b)
			if err != nil {
				break // cut by the end of the buffer: not checked, to the null mirror's favour
			}
			if err := batch.VerifyCRC(); err != nil {
				return err
			}
			b = rest
		}
		left -= k
		n.read += int64(k)
		if n.have += k; n.have == len(n.buf) {
			if err := n.ring.write(n.buf); err != nil {
				return err
			}
			n.have = 0
		}
	}
	return nil
}

// fileLog is the least a log can be.
type fileLog struct {
	ring  *ring
	end   int64
	epoch int32
}

func (f *fileLog) LogEnd() (int64, int32)             { return f.end, f.epoch }
func (f *fileLog) HighWatermark() int64               { return f.end }
func (f *fileLog) AdvanceLogStart(int32, int64) error { return nil }

func (f *fileLog) MirrorAppend(_ int32, b []byte) (int64, error) {
	if err := f.ring.write(b); err != nil {
		return 0, err
	}
	for len(b) > 0 {
		batch, rest, err := record.Next(b)
		if err != nil {
			return 0, err
		}
		f.end, f.epoch, b = batch.NextOffset(), batch.PartitionLeaderEpoch(), rest
	}
	return f.end, nil
}

// ring is a file written in a circle, so that after one turn its pages exist.
type ring struct {
	f        *os.File
	size, at int64
}

func newRing(b *testing.B, size int64) *ring {
	f, err := os.Create(filepath.Join(b.TempDir(), "ring"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	return &ring{f: f, size: size}
}

func (r *ring) write(p []byte) error {
	if r.at+int64(len(p)) > r.size {
		r.at = 0
	}
	_, err := r.f.WriteAt(p, r.at)
	r.at += int64(len(p))
	return err
}
