package segment

import (
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/cores"
	"github.com/lockstep-kafka/lockstep/internal/record"
)

// Compression is what a topic's batches are to be compressed with.
type Compression struct {
	Codec record.Codec
	Level int // in the codec's own numbers, as Kafka has them; 0 is its default
}

// ErrSwells is a batch that decompresses to more than is allowed.
var ErrSwells = errInflated

// recompressor takes a client's batch apart and compresses its records anew.
type recompressor struct {
	inflater inflater
	deflater deflater
	batch    []byte
}

// recompressors bounds how many batches are taken apart at the same time, and with
// it the memory for that: it is the processor's time that they wait for anyway. An
// empty place is nil.
var recompressors = func() chan *recompressor {
	c := make(chan *recompressor, cores.Count())
	for range cap(c) {
		c <- nil
	}
	return c
}()

// keptBuffers is what a recompressor keeps between two batches.
const keptBuffers = 4 << 20

// Recompress makes the batch of a client one of another codec: same offsets,
// producer, timestamps and records. A batch that has the codec is returned as it is.
// The records must decompress to at most maxPlain bytes; the times are those of all that were
// read, else the header's. The bytes are good until
// release is called, once, also after an error.
func Recompress(b record.Batch, c Compression, maxPlain int) (_ record.Batch, _ record.Times, release func(), err error) {
	if b.Codec() == c.Codec {
		return b, b.HeaderTimes(), func() {}, nil
	}
	r := <-recompressors
	if r == nil {
		r = new(recompressor)
	}
	release = func() {
		if cap(r.batch)+cap(r.inflater.dst)+cap(r.deflater.out)+r.deflater.buf.Cap() > keptBuffers {
			r.inflater.close()
			r.deflater.close()
			r = nil
		}
		recompressors <- r
	}
	next, times, err := r.recompress(b, c, maxPlain)
	return next, times, release, err
}

func (r *recompressor) recompress(b record.Batch, c Compression, maxPlain int) (_ record.Batch, times record.Times, err error) {
	plain := b.RecordBytes()
	if b.Codec() != record.CodecNone {
		r.inflater.max = maxPlain
		if plain, err = r.inflater.inflate(b.Codec(), plain); err != nil {
			return nil, times, err
		}
	}
	n, newest := int32(0), int64(noTime)
	times = record.NoTimes()
	err = b.RawRecords(plain, func(rec *record.Raw) error {
		// From here on a log has the records as they are: they count up from 0.
		if rec.OffsetDelta != n {
			return fmt.Errorf("record %d has offset delta %d", n, rec.OffsetDelta)
		}
		n++
		ts := b.BaseTimestamp() + rec.TimestampDelta
		newest = max(newest, ts)
		times.Note(ts)
		return nil
	})
	if err != nil {
		return nil, times, err
	}
	r.deflater.level = c.Level
	records, err := r.deflater.deflate(c.Codec, plain)
	if err != nil {
		r.deflater.close()
		r.deflater = deflater{} // an encoder may be in the middle of something
		return nil, times, err
	}
	r.batch, err = b.AppendRebuilt(r.batch[:0], record.Rebuild{
		Records: records, Count: n, MaxTimestamp: newest, Codec: c.Codec, SetCodec: true,
	})
	return r.batch, times, err
}
