package txn

import "testing"

// All brokers lost their power, with durability=replicated: the record that a partition
// belongs to a transaction was in memory only, and the first batch in that partition on
// a disk. The coordinator knew of no transaction, so nobody ended it, and readers of
// committed records stood still, or a whole group where the partition was one of
// __consumer_offsets. What the broker's default is must not matter to these records.
func TestStateIsOnDisks(t *testing.T) {
	var o Options
	o.EnsureDefaults()
	for live := 1; live <= 3; live += 2 {
		if got := o.stateTopic(live).Configs["durability"]; got != "fsync" {
			t.Errorf("with %d brokers %s has durability %q", live, TopicName, got)
		}
	}
}
