package group

import (
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// A pattern finds internal topics too; what a member may not describe it does not.
func TestPatternFindsInternalTopics(t *testing.T) {
	re, err := compilePattern("__consumer_offsets|orders|secrets")
	if err != nil {
		t.Fatal(err)
	}
	p := pattern{re: re, visible: func(topic string) bool { return topic != "secrets" }}
	e := metadata.NewImage().Edit()
	for i, name := range []string{"__consumer_offsets", "orders", "secrets", "reorders"} {
		e.PutTopic(&metadata.Topic{ID: metadata.TopicID{byte(i + 1)}, Name: name, Internal: name[0] == '_'})
	}
	var got []string
	for _, topic := range p.find(topicView{image: e.Image(1), version: 1}) {
		got = append(got, topic.Name)
	}
	if len(got) != 2 || got[0] != "__consumer_offsets" || got[1] != "orders" {
		t.Errorf("%q", got)
	}
}
