// Package group coordinates consumer groups: who belongs to one and what each
// member reads (Kafka's classic group protocol with static members, KIP-345, and
// the consumer protocol, KIP-848), and what groups have committed.
//
// What flows in are requests (Join, Sync, Heartbeat, Leave, Commit, …) from
// internal/kafka, offsets of a source cluster's groups from a mirror
// (CommitFromMirror), and the metadata image (Apply). What flows out are records
// in the partitions of __consumer_offsets, in Apache Kafka's own format, through
// the functions in Options; in the server those are a PartitionStore's.
//
// A group belongs to the partition that its name hashes to, and its coordinator
// is that partition's leader. For each partition it leads the Coordinator keeps
// one shard with one goroutine, which owns the groups of that partition:
//
//	BecomeLeader → load: replay the log; requests answer ErrLoading
//	             → serve: tasks from connections, alarms and acknowledgements
//	Resign       → what waits is answered with ErrNotCoordinator
//
// The shard's goroutine never waits for the disk: it hands over a batch and goes
// on, and what answers depend on the batch are given when the acknowledgement
// comes back as a task. Everything written between two tasks shares a batch.
//
// Each group is a machine, which decides by step(now, input) alone and tells by
// effects what to answer and what to write. Its life:
//
//	Empty ──join──▶ PreparingRebalance ──all rejoined, or time is up──▶ CompletingRebalance
//	  ▲                 ▲    │ nobody is left                               │ leader's assignment
//	  │                 │    ▼                                              ▼ is stored
//	  └─────────────────┼── Empty          join, leave, timeout ◀─────── Stable
//	                    └───────────────────────┘
//	Empty ──delete, or the last offset expires──▶ Dead (Empty again if that cannot be stored)
//
// Committed offsets become visible, and are acknowledged, when the log has them;
// those in a producer's transaction when the log has its COMMIT marker, which goes
// through the shard as well (CompleteTxn).
// Membership runs ahead of the log: only the leader's assignment is stored, and
// a generation that is lost with its leader is one more rebalance.
//
// A group whose members speak the consumer protocol (files consumer_*.go) has
// another life, which stands at consumerGroup: the coordinator itself shares out
// partitions and leads each member to its share by its heartbeats. Classic members
// may take part in it, so that a group changes its protocol one client after the
// other; with its last member of the other kind it changes over. All answers of
// such a group wait for the log.
//
// What may fail: an append that is refused fails what depended on it (a commit,
// a generation) and nothing else; a load that fails is tried again each second,
// with requests answering ErrLoading meanwhile; a record that cannot be read is
// skipped with a warning.
//
// Not here: share groups and streams groups. Their requests are not advertised,
// their records not read.
package group
