// Package txn coordinates transactions (KIP-98, KIP-360, KIP-890): which
// producer has a transactional id, which partitions are in its transaction, and
// whether that was committed.
//
// What flows in are requests (InitProducer, AddPartitions, End, …) from
// internal/kafka and the metadata image (Apply). What flows out are records in
// the partitions of __transaction_state, in Apache Kafka's own format, and
// markers that end transactions in the partitions that take part, both through
// the functions in Options; in the server a PartitionStore keeps the records.
//
// A transactional id belongs to the partition that it hashes to, and its
// coordinator is that partition's leader, whose leader epoch goes into markers.
// For each partition it leads the Coordinator keeps one shard with one
// goroutine, which owns the ids of that partition:
//
//	BecomeLeader → load: replay the log; requests answer ErrLoading
//	             → serve: markers that were missing, then tasks from connections,
//	               alarms, acknowledgements and marker writers
//	Resign       → what waits is answered with ErrNotCoordinator
//
// The shard's goroutine never waits: it hands a batch to the log and markers to
// the marker writers, and goes on when they come back as tasks. Everything
// written between two tasks shares a batch.
//
// Each id is a machine, which decides by step(now, input) alone. Its life (the
// table is in state.go):
//
//	Empty ──add──▶ Ongoing ──commit──▶ PrepareCommit ──all markers──▶ CompleteCommit
//	  ▲              │ └──abort──▶ PrepareAbort ──all markers──▶ CompleteAbort
//	  │              └──fence──▶ (PrepareEpochFence) ──▶ PrepareAbort
//	  ├──initialize── CompleteCommit, CompleteAbort ──add──▶ Ongoing
//	  └──expire──▶ Dead, from the Complete states too
//
// A decision takes effect, and is answered, when the log has its record: what a
// producer or a reader was told survives the coordinator. Between the record of
// PrepareCommit and that of CompleteCommit the markers are written, again and
// again until every partition has one on its leader's disk or is gone; a marker
// that comes twice changes nothing. While a change is under way the id answers
// ErrConcurrent; adds wait for its end instead (add.go).
//
// What may fail: an append that is refused leaves the id as it was; markers that
// a partition does not take are tried again, with a growing pause; a load that
// fails is tried again each second, with requests answering ErrLoading
// meanwhile; a record that cannot be read is skipped with a warning.
//
// Not here: two-phase commit by an outside coordinator (KIP-939).
package txn
