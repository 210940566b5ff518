// Package replica keeps this broker's replicas equal to their leaders'.
//
// A [Manager] follows the metadata image. For each partition of which this broker
// has a replica and that another one leads, it gives a pipeline to a fetcher: a
// [pipeline.Worker] with one connection to that leader. Partitions whose leader
// waits for our disk (durability=fsync) and others have fetchers of their own, so
// that the latter do not wait for a disk. The bytes take the path of all bytes:
// they are verified, and appended by [partition.Follower], which refuses them once
// this broker is not a follower in the fetcher's leader epoch any more.
//
// A leader answers that histories part with the epoch in which they do
// (KIP-595); the log is cut there and goes on. One that begins above our end has
// ours begin anew there.
//
// A log that is damaged (segment/damage.go) is repaired before it follows: the damaged
// range, and nothing else, is asked of the leader once more, up to the end of its log,
// see heal.go. By then the controller has taken the replica out of the ISR, and had
// another one lead if this broker did, as its heartbeats say which logs it cannot use.
//
// What is on our disk is told with each fetch. After the append of a small answer
// the fetcher waits for the fsync, some milliseconds at most, and the fetch that
// follows says both; the leader needs one round trip and one fsync for a write with
// acks=all, and one request. If the fsync takes longer the fetch goes out without,
// and is interrupted when it is done. While much is coming nothing waits: each
// fetch tells what is on disk by then.
//
// Goroutines: the Manager's loop owns all state, each fetcher has one, and cuts run
// on a few more, because they wait for the disk. What may fail is tried again, with
// a pause that grows, for as long as the metadata say that we follow.
package replica
