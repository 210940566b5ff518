package segment

import (
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// filter takes batches apart and puts them together again, in buffers of its
// own.
type filter struct {
	inflater inflater
	deflater deflater

	keep       []bool // by record: it stays
	kept       int
	tombstones int  // removed
	keyless    int  // removed
	living     bool // a tombstone stays

	out   []byte // chosen records
	batch []byte
}

func (f *filter) close() {
	f.inflater.close()
	f.deflater.close()
}

// records returns the record bytes of a batch, decompressed, until the next call.
func (f *filter) records(b record.Batch) ([]byte, error) {
	if b.Codec() == record.CodecNone {
		return b.RecordBytes(), nil
	}
	return f.inflater.inflate(b.Codec(), b.RecordBytes())
}

// rebuild makes a batch of the records that keep says, with a delete horizon if
// stamp. The batch is valid until the next call.
func (f *filter) rebuild(b record.Batch, plain []byte, stamp bool, horizon int64) (record.Batch, error) {
	f.out = f.out[:0]
	i, newest := 0, int64(noTime)
	base := b.BaseTimestamp()
	err := b.RawRecords(plain, func(rec *record.Raw) error {
		if i++; !f.keep[i-1] {
			return nil
		}
		at, delta := base+rec.TimestampDelta, rec.TimestampDelta
		newest = max(newest, at)
		if stamp {
			delta = at - horizon
		}
		f.out = rec.AppendTo(f.out, delta)
		return nil
	})
	if err != nil {
		return nil, err
	}
	records, err := f.deflater.deflate(b.Codec(), f.out)
	if err != nil {
		return nil, err
	}
	count := 0
	for _, keep := range f.keep {
		if keep {
			count++
		}
	}
	f.batch, err = b.AppendRebuilt(f.batch[:0], record.Rebuild{Records: records, Count: int32(count), MaxTimestamp: newest, Horizon: horizon, SetHorizon: stamp})
	return f.batch, err
}
