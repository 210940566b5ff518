package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// NullPartition is one partition that NullMirror reads.
type NullPartition struct {
	Leader      sdk.BrokerAddr
	LeaderEpoch int32
	Key         sdk.PartitionKey
	Start, End  int64 // offsets; End is exclusive and must not rise above the high watermark
}

// NullMirrorOptions describe a null mirror. The fetch sizes default to a mirror's.
type NullMirrorOptions struct {
	Transport  sdk.Transport
	Partitions []NullPartition
	Dir        string // one file per source broker is written here, and removed

	MaxBytes          int32 // of a response; default 10 MiB
	PartitionMaxBytes int32 // default 1 MiB
}

// nullPiece is the size of a read and of a write: what fits the cache.
const nullPiece = 1 << 20

// NullMirror reads everything once, one connection per source broker as a mirror
// has, and reports how fast that went.
func NullMirror(ctx context.Context, o NullMirrorOptions) (*Report, error) {
	if o.MaxBytes == 0 {
		o.MaxBytes = 10 << 20
	}
	if o.PartitionMaxBytes == 0 {
		o.PartitionMaxBytes = 1 << 20
	}
	byBroker := map[sdk.BrokerAddr][]NullPartition{}
	for _, p := range o.Partitions {
		if p.Start < p.End {
			byBroker[p.Leader] = append(byBroker[p.Leader], p)
		}
	}
	start, cpu := time.Now(), processCPU()
	var readers []*nullReader
	g, ctx := errgroup.WithContext(ctx)
	for broker, partitions := range byBroker {
		r := &nullReader{o: &o, broker: broker, partitions: map[sdk.PartitionKey]*NullPartition{}, buf: make([]byte, nullPiece)}
		for i := range partitions {
			r.partitions[partitions[i].Key] = &partitions[i]
		}
		readers = append(readers, r)
		g.Go(func() error { return r.run(ctx) })
	}
	err := g.Wait()
	report := &Report{Kind: "null-mirror"}
	for _, r := range readers {
		report.Bytes += r.bytes
		report.Records += r.records
	}
	report.finish(time.Since(start), processCPU()-cpu)
	return report, err
}

// nullReader is the connection to one broker. It implements sdk.FetchHandler.
type nullReader struct {
	o          *NullMirrorOptions
	broker     sdk.BrokerAddr
	partitions map[sdk.PartitionKey]*NullPartition // what is not read to its end
	file       *os.File
	at         int64 // in file
	buf        []byte
	bytes      int64
	records    int64
}

func (r *nullReader) run(ctx context.Context) (err error) {
	r.file, err = os.Create(filepath.Join(r.o.Dir, fmt.Sprintf("null-mirror-%d", r.broker.ID)))
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, r.file.Close(), os.Remove(r.file.Name()))
	}()
	session, err := r.o.Transport.Open(ctx, r.broker)
	if err != nil {
		return err
	}
	defer session.Close()
	req := &sdk.FetchRequest{MaxWait: 500 * time.Millisecond, MinBytes: 1, MaxBytes: r.o.MaxBytes}
	for len(r.partitions) > 0 {
		req.Partitions = req.Partitions[:0]
		for key, p := range r.partitions {
			req.Partitions = append(req.Partitions, sdk.FetchPartition{
				PartitionKey: key, Offset: p.Start, MaxBytes: r.o.PartitionMaxBytes, LogStart: -1,
				CurrentLeaderEpoch: p.LeaderEpoch, LastFetchedEpoch: -1,
			})
		}
		if err := session.Fetch(ctx, req, r); err != nil {
			return fmt.Errorf("fetch from %s: %w", r.broker.Addr(), err)
		}
	}
	return nil
}

// Partition reads what a response brings for one partition, in pieces.
func (r *nullReader) Partition(h *sdk.PartitionHeader, records io.Reader) error {
	if h.ErrorCode != 0 {
		return fmt.Errorf("%s: error code %d", h.Key, h.ErrorCode)
	}
	p, ok := r.partitions[h.Key]
	if !ok {
		return nil
	}
	have := 0
	for left := h.RecordBytes; left > 0; {
		n, err := io.ReadFull(records, r.buf[have:min(len(r.buf), have+left)])
		if err != nil {
			return err
		}
		have, left = have+n, left-n
		whole, err := r.check(p, r.buf[:have])
		if err != nil {
			return err
		}
		if whole > 0 {
			if _, err := r.file.WriteAt(r.buf[:whole], r.at); err != nil {
				return err
			}
			r.at += int64(whole)
			r.bytes += int64(whole)
			have = copy(r.buf, r.buf[whole:have])
		} else if have == len(r.buf) { // a batch that is larger than the piece
			r.buf = append(r.buf, make([]byte, len(r.buf))...)
		}
	}
	if p.Start >= p.End {
		delete(r.partitions, h.Key)
	}
	return nil
}

// check walks the whole batches in b and returns their length.
func (r *nullReader) check(p *NullPartition, b []byte) (whole int, err error) {
	for rest := b; ; {
		batch, next, err := record.Next(rest)
		if errors.Is(err, record.ErrShort) {
			return whole, nil
		}
		if err == nil {
			err = batch.VerifyCRC()
		}
		if err != nil {
			return whole, fmt.Errorf("%s: %w", p.Key, err)
		}
		whole, rest = whole+len(batch), next
		p.Start = batch.NextOffset()
		r.records += int64(batch.NumRecords())
	}
}
