package kafka

import (
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// The benchmarks speak raw frames, so that what is measured is the server.

// discardAnswer reads one frame without looking at it.
func discardAnswer(b *testing.B, c *rawConn, buf []byte) int {
	if _, err := io.ReadFull(c, buf[:4]); err != nil {
		b.Fatal(err)
	}
	size := int(binary.BigEndian.Uint32(buf))
	for left := size; left > 0; {
		n, err := c.Read(buf[:min(left, len(buf))])
		if err != nil {
			b.Fatal(err)
		}
		left -= n
	}
	return size
}

func BenchmarkFetch(b *testing.B) {
	for _, bc := range []struct {
		name       string
		partitions int32
		bytes      int // of each partition's range
	}{
		{"1x1MiB", 1, 1 << 20},
		{"1x64KiB", 1, 64 << 10},
		{"64x16KiB", 64, 16 << 10},
		{"1x1KiB", 1, 1 << 10},
	} {
		b.Run(bc.name, func(b *testing.B) {
			topic := newTopic(b, bc.partitions, "max.message.bytes", "2000000", "durability", "replicated")
			writer := dial(b, testBroker(b).addr)
			req := fetchFrom(topic, 0, 0)
			req.Topics[0].Partitions = nil
			for i := range bc.partitions {
				ask[*kmsg.ProduceResponse](b, writer, produceTo(topic, i, 1, batchOf(strings.Repeat("x", bc.bytes-100))))
				req.Topics[0].Partitions = append(req.Topics[0].Partitions, fetchFrom(topic, i, 0).Topics[0].Partitions[0])
			}
			frame := wire.AppendRequest(nil, 1, "bench", req)
			c := dialRaw(b, testBroker(b).addr)
			buf := make([]byte, 512<<10)
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				if _, err := c.Write(frame); err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(discardAnswer(b, c, buf)))
			}
		})
	}
}

// BenchmarkProduce keeps a window of requests in flight.
func BenchmarkProduce(b *testing.B) {
	for _, bc := range []struct {
		name       string
		bytes      int
		window     int
		durability string
	}{
		{"100B/replicated", 100, 64, "replicated"},
		{"100B/fsync", 100, 64, "fsync"},
		{"64KiB/replicated", 64 << 10, 5, "replicated"},
		{"1MiB/replicated", 1 << 20, 5, "replicated"},
	} {
		b.Run(bc.name, func(b *testing.B) {
			topic := newTopic(b, 1, "max.message.bytes", "2000000", "durability", bc.durability)
			frame := wire.AppendRequest(nil, 1, "bench", produceTo(topic, 0, -1, batchOf(strings.Repeat("x", bc.bytes))))
			c := dialRaw(b, testBroker(b).addr)
			buf := make([]byte, 64<<10)
			answers := make(chan struct{}, bc.window)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range answers {
					discardAnswer(b, c, buf)
				}
			}()
			b.ReportAllocs()
			b.SetBytes(int64(bc.bytes))
			b.ResetTimer()
			for b.Loop() {
				if _, err := c.Write(frame); err != nil {
					b.Fatal(err)
				}
				answers <- struct{}{}
			}
			close(answers)
			<-done
		})
	}
}
