package kafka

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Results that come back are as if new, whoever used them and for how many
// partitions.
func TestWideResults(t *testing.T) {
	for _, n := range []int{heavyParts + 1, 5000, 300, mostResults, mostResults + 1, 0, 4000} {
		results := takeResults(n)
		if len(results) != n {
			t.Fatalf("%d results for %d partitions", len(results), n)
		}
		for i := range results {
			if !reflect.ValueOf(results[i]).IsZero() {
				t.Fatalf("result %d of %d is used: %+v", i, n, results[i])
			}
			results[i] = fetchResult{part: &fetchPart{}, denied: true, preferred: 1}
		}
		giveResults(results)
	}
}

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
