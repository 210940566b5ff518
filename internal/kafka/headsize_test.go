package kafka

import (
	"fmt"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// The head of a fetch answer is made once: what headSize says is enough for it, in
// every version, and not much more.
func TestHeadSize(t *testing.T) {
	for version := int16(4); version <= 17; version++ {
		for _, shape := range []struct{ topics, partitions int }{{0, 0}, {1, 1}, {1, 3000}, {300, 10}} {
			var results []fetchResult
			for i := range shape.topics * shape.partitions {
				part := &fetchPart{fetchKey: fetchKey{topic: fmt.Sprintf("topic-%d", i/max(shape.partitions, 1)), index: int32(i)}}
				if version >= 13 {
					part.id = metadata.TopicID{1: byte(i / shape.partitions), 2: 1}
					part.topic = ""
				}
				results = append(results, fetchResult{part: part})
			}
			w := fetchWriter{bodyWriter: bodyWriter{flexible: version >= 12}, version: version}
			w.b = make([]byte, 0, 64)
			w.topics(results)
			const frame = 32 // size, header, throttle time, error, session, tags
			if got, want := headSize(results), len(w.b)+frame; got < want || got > 2*want+200 {
				t.Errorf("v%d, %d topics of %d partitions: headSize %d for %d bytes", version, shape.topics, shape.partitions, got, want)
			}
		}
	}
}
