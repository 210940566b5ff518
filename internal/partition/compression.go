package partition

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/record"
	"github.com/lockstep-kafka/lockstep/pipeline"
	"github.com/lockstep-kafka/lockstep/segment"
)

// compression is compression.type of a topic, where it is not "producer": batches
// of clients that come in another codec are compressed anew before they are
// appended. It is done outside of the append lock; batches of a mirror and of our
// own never come here.
type compression struct {
	segment.Compression
	maxMessageBytes int
	times           timeBounds
}

// maxSwelling bounds what a batch may decompress to, in times of max.message.bytes:
// far more than records shrink by, and a bomb stops there.
const maxSwelling = 8

var codecs = map[string]record.Codec{
	"uncompressed": record.CodecNone, "gzip": record.CodecGzip, "snappy": record.CodecSnappy,
	"lz4": record.CodecLz4, "zstd": record.CodecZstd,
}

// compressionOf reads the topic's settings; nil: as the producer chose.
func compressionOf(get func(string) string, maxMessageBytes int, times timeBounds) *compression {
	name := strings.TrimSpace(get("compression.type"))
	codec, ok := codecs[name]
	if !ok {
		return nil
	}
	c := &compression{segment.Compression{Codec: codec}, maxMessageBytes, times}
	if level, err := strconv.Atoi(strings.TrimSpace(get("compression." + name + ".level"))); err == nil && !(codec == record.CodecGzip && level < 0) {
		c.Level = level
	}
	return c
}

// recompress is Produce for a topic that chooses the codec.
func (p *Partition) recompress(c *compression, records []byte, o ProduceOptions, done func(ProduceResult, error)) {
	// The rest of the checks follow under the lock, on what comes out of this.
	b, times, err := pipeline.VerifyProduce(records, c.maxMessageBytes)
	release := func() {}
	if err == nil {
		if b, times, release, err = segment.Recompress(b, c.Compression, c.maxMessageBytes*maxSwelling); errors.Is(err, segment.ErrSwells) {
			err = fmt.Errorf("%w: %w", ErrTooLarge, err)
		} else if err != nil {
			err = fmt.Errorf("%w: %w", pipeline.ErrInvalidRecord, err)
		}
	}
	if err == nil {
		err = c.times.check(p.clock.Now().UnixMilli(), times)
	}
	defer release()
	if err != nil {
		done(ProduceResult{BaseOffset: -1, LogAppendTime: -1, LogStart: -1}, p.wrap(err))
		return
	}
	p.produce(b, o, done)
}
