// Package producer keeps, for one log, what its batches say about idempotent
// and transactional producers: the last sequences of each producer id, the
// transactions that are open, and those that were aborted.
//
// Two doors. Check is asked before a client's batch is appended: is it in
// sequence, is it a duplicate of one of the last five, is its epoch fenced
// (KIP-98)? Apply is told every batch that was appended, in log order, by
// whatever entrance: client, coordinator, replication, mirror, recovery. Apply
// never refuses: a batch that is in the log is a fact (L9). Appends gather many batches
// into Changes first.
//
// A MIRROR_PID_RESET batch drops every producer entry (L15), so that producer
// ids given out by another cluster can never meet ours. Aborted transactions
// and markers before it stay known, because read-committed consumers still read
// the records in front of the reset.
//
// The owner is segment.Log: it guards a Table with its own lock, cuts it by
// rebuilding from a snapshot, and stores snapshots as a cache beside its index.
// Nothing here is safe for several goroutines, nothing touches a disk.
package producer
