// Package coordinator is what the coordinators of groups and of transactions
// share: state machines by name, kept in the partitions of an internal compacted
// topic, each partition's by the broker that leads it.
//
// A name belongs to the partition that it hashes to (PartitionFor). For each
// partition that this broker leads there is one Shard, which Shards begins and
// ends with the leadership, and which is bound to the leader epoch it began in:
//
//	leader, epoch E  → load: replay the log; requests answer ErrLoading
//	                 → serve: tasks from connections, alarms and acknowledgements
//	a later epoch    → a new shard, which loads again
//	not leader       → what waits is answered with ErrNotCoordinator
//
// The shard's goroutine owns the machines and never waits for the disk: it hands
// a batch to the log and goes on when the acknowledgement comes back as a task.
// Everything written between two tasks shares a batch. Its appends carry the
// leader epoch, so that the partition refuses those of a leader that was deposed.
//
// What a machine is, and what its records mean, is the Driver's: internal/group
// and internal/txn embed a Shard and are its Driver. Slots keeps their machines
// by name, each with an alarm; a Store reads and appends; a Topic is created when
// somebody asks for a coordinator first.
//
// What may fail: an append that is refused fails what depended on it and nothing
// else. One that is neither stored nor refused, because the leadership went before
// the acknowledgement, say, is no answer: the shard begins anew from the log, so
// that what it tells is what the log says (ErrUnsettled). One that is late is
// answered so, and takes effect when it is stored. A load that fails is tried again
// each second.
package coordinator
