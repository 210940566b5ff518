package group

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// topicNo makes topic ids that sort by their numbers.
func topicNo(n int) metadata.TopicID { return metadata.TopicID{0: 0xee, 14: byte(n >> 8), 15: byte(n)} }

// shareOf reads "1:0,1 2:3" as partitions 0 and 1 of topic 1 and 3 of topic 2.
func shareOf(t interface{ Fatal(...any) }, text string) share {
	s := share{}
	for topic, rest := range pairs(text) {
		var n int
		if _, err := fmt.Sscan(topic, &n); err != nil {
			t.Fatal(err)
		}
		for _, p := range rest {
			var i int32
			if _, err := fmt.Sscan(p, &i); err != nil {
				t.Fatal(err)
			}
			s.add(topicNo(n), i)
		}
	}
	return s.sorted()
}

// pairs splits "1:0,1 2:3" into topics and their partitions.
func pairs(text string) map[string][]string {
	out := map[string][]string{}
	for _, word := range strings.Fields(text) {
		topic, list, _ := strings.Cut(word, ":")
		out[topic] = strings.Split(list, ",")
	}
	return out
}

func TestAssignors(t *testing.T) {
	all := func(n ...int) (ids []metadata.TopicID) {
		for _, i := range n {
			ids = append(ids, topicNo(i))
		}
		return ids
	}
	for _, c := range []struct {
		name    string
		fn      assignor
		members []assignee
		topics  topicSizes
		want    map[string]string
	}{
		{"uniform deals one topic in turn", uniform,
			[]assignee{{id: "a", reads: all(1)}, {id: "b", reads: all(1)}},
			topicSizes{topicNo(1): 5}, map[string]string{"a": "1:0,2,4", "b": "1:1,3"}},
		{"uniform takes from those who have too much, and no more", uniform,
			[]assignee{{id: "a", reads: all(1), had: shareOf(t, "1:0,2,4")}, {id: "b", reads: all(1), had: shareOf(t, "1:1,3")}, {id: "c", reads: all(1)}},
			topicSizes{topicNo(1): 5}, map[string]string{"a": "1:0,2", "b": "1:1,3", "c": "1:4"}},
		{"uniform leaves the larger share where it is", uniform,
			[]assignee{{id: "a", reads: all(1), had: shareOf(t, "1:0")}, {id: "b", reads: all(1), had: shareOf(t, "1:1,2")}},
			topicSizes{topicNo(1): 3}, map[string]string{"a": "1:0", "b": "1:1,2"}},
		{"uniform drops partitions that are gone", uniform,
			[]assignee{{id: "a", reads: all(2), had: shareOf(t, "1:0 2:0,7")}},
			topicSizes{topicNo(2): 2}, map[string]string{"a": "2:0,1"}},
		{"uniform with different subscriptions moves what another may read", uniform,
			[]assignee{{id: "a", reads: all(1, 2), had: shareOf(t, "1:0,1,2,3 2:0,1")}, {id: "b", reads: all(2)}},
			topicSizes{topicNo(1): 4, topicNo(2): 2}, map[string]string{"a": "1:0,1,2,3", "b": "2:0,1"}},
		{"more members than partitions", uniform,
			[]assignee{{id: "a", reads: all(1)}, {id: "b", reads: all(1)}},
			topicSizes{topicNo(1): 1}, map[string]string{"a": "1:0", "b": ""}},
		{"nobody reads anything", uniform, []assignee{{id: "a"}}, topicSizes{}, map[string]string{"a": ""}},
		{"no members", uniform, nil, topicSizes{}, map[string]string{}},
		{"range gives runs, alike in topics of one size", byRange,
			[]assignee{{id: "a", reads: all(1, 2)}, {id: "b", reads: all(1, 2)}},
			topicSizes{topicNo(1): 3, topicNo(2): 3}, map[string]string{"a": "1:0,1 2:0,1", "b": "1:2 2:2"}},
		{"range goes by instance id", byRange,
			[]assignee{{id: "a", instance: "2", reads: all(1)}, {id: "b", instance: "1", reads: all(1)}},
			topicSizes{topicNo(1): 2}, map[string]string{"a": "1:1", "b": "1:0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.fn(c.members, c.topics)
			if len(got) != len(c.want) {
				t.Fatalf("%d members, want %d", len(got), len(c.want))
			}
			for id, want := range c.want {
				if !got[id].equal(shareOf(t, want)) {
					t.Errorf("%s has %v, want %s", id, got[id], want)
				}
			}
		})
	}
}

// randomGroup is a group of some members, alike or not, with the shares that an
// earlier round gave them.
func randomGroup(t *rapid.T, alike bool) ([]assignee, topicSizes) {
	topics := topicSizes{}
	var ids []metadata.TopicID
	for i := range rapid.IntRange(1, 6).Draw(t, "topics") {
		topics[topicNo(i)] = int32(rapid.IntRange(0, 12).Draw(t, "partitions"))
		ids = append(ids, topicNo(i))
	}
	subset := func() []metadata.TopicID {
		if alike {
			return ids
		}
		var some []metadata.TopicID
		for _, id := range ids {
			if rapid.Bool().Draw(t, "reads") {
				some = append(some, id)
			}
		}
		return some
	}
	var members []assignee
	for i := range rapid.IntRange(0, 8).Draw(t, "members") {
		members = append(members, assignee{id: fmt.Sprintf("m%d", i), reads: subset()})
	}
	return members, topics
}

// checkComplete: every partition that somebody reads is with one who does.
func checkComplete(t *rapid.T, members []assignee, topics topicSizes, got map[string]share) {
	seen := map[partitionID]string{}
	read := map[metadata.TopicID]bool{}
	for _, m := range members {
		for _, topic := range m.reads {
			read[topic] = true
		}
		for p := range got[m.id].all() {
			if other, twice := seen[p]; twice {
				t.Fatalf("%v is with %s and with %s", p, other, m.id)
			}
			if !slices.Contains(m.reads, p.topic) || p.index >= topics[p.topic] {
				t.Fatalf("%s has %v, which it does not read or which is not there", m.id, p)
			}
			seen[p] = m.id
		}
	}
	for topic := range read {
		for i := range topics[topic] {
			if _, ok := seen[partitionID{topic, i}]; !ok {
				t.Fatalf("nobody has partition %d of %v", i, topic)
			}
		}
	}
}

func TestUniformProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, topics := randomGroup(t, rapid.Bool().Draw(t, "alike"))
		for range 4 {
			got := uniform(members, topics)
			checkComplete(t, members, topics, got)

			// Balance: no single move would bring two members closer together.
			for _, a := range members {
				for _, b := range members {
					for _, topic := range b.reads {
						if len(got[a.id][topic]) > 0 && got[a.id].count()-got[b.id].count() > 1 {
							t.Fatalf("%s has %d, %s has %d, and reads %v too", a.id, got[a.id].count(), b.id, got[b.id].count(), topic)
						}
					}
				}
			}
			// Stickiness: asked again, nothing moves.
			for i := range members {
				members[i].had = got[members[i].id]
			}
			again := uniform(members, topics)
			for _, m := range members {
				if !again[m.id].equal(got[m.id]) {
					t.Fatalf("%s had %v and is given %v, though nothing changed", m.id, got[m.id], again[m.id])
				}
			}
			// One leaves or comes: among alike members, nobody loses a partition
			// beyond its new quota.
			if len(members) > 1 && rapid.Bool().Draw(t, "leave") {
				i := rapid.IntRange(0, len(members)-1).Draw(t, "who")
				members = slices.Delete(slices.Clone(members), i, i+1)
			} else if len(members) > 0 {
				fresh := assignee{id: fmt.Sprintf("n%d", rapid.IntRange(0, 1<<30).Draw(t, "new")), reads: members[0].reads}
				if !slices.ContainsFunc(members, func(m assignee) bool { return m.id == fresh.id }) {
					members = append(slices.Clone(members), fresh)
				}
			}
		}
	})
}

// TestUniformMovesLittle: among members that read the same, the number of
// partitions that move is the smallest that balance allows.
func TestUniformMovesLittle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, topics := randomGroup(t, true)
		first := uniform(members, topics)
		for i := range members {
			members[i].had = first[members[i].id]
		}
		for range rapid.IntRange(0, len(members)).Draw(t, "leaving") {
			i := rapid.IntRange(0, len(members)-1).Draw(t, "who")
			members = slices.Delete(slices.Clone(members), i, i+1)
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "coming") {
			members = append(members, assignee{id: fmt.Sprintf("n%d", i), reads: slices.SortedFunc(maps.Keys(topics), metadata.TopicID.Compare)})
		}
		if len(members) == 0 {
			return
		}
		total := 0
		for _, n := range topics {
			total += int(n)
		}
		// The best that can be kept: larger quotas go to those who have more.
		quota, larger, best := total/len(members), total%len(members), 0
		for _, m := range members {
			if n := m.had.count(); n > quota && larger > 0 {
				larger--
				best += quota + 1
			} else {
				best += min(n, quota)
			}
		}
		kept := 0
		for id, s := range uniform(members, topics) {
			for _, m := range members {
				if m.id == id {
					kept += s.and(m.had).count()
				}
			}
		}
		if kept != best {
			t.Fatalf("%d partitions stayed, %d could have", kept, best)
		}
	})
}

func TestRangeProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members, topics := randomGroup(t, rapid.Bool().Draw(t, "alike"))
		got := byRange(members, topics)
		checkComplete(t, members, topics, got)
		for topic := range topics {
			least, most := 1<<30, 0
			for _, m := range members {
				if slices.Contains(m.reads, topic) {
					least, most = min(least, len(got[m.id][topic])), max(most, len(got[m.id][topic]))
				}
			}
			if most-least > 1 && least != 1<<30 {
				t.Fatalf("topic %v: between %d and %d partitions", topic, least, most)
			}
		}
	})
}
