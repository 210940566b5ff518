// Package verify compares a mirror with its source, byte for byte, over the
// wire. It asks neither side for anything but metadata, offsets and raw fetches,
// so it can hold Lockstep against any Kafka cluster, and Kafka against Kafka.
//
// For each partition it takes the range that both sides have, from the later log
// start to the earlier high watermark, fetches it from both leaders, cuts what
// comes into batches and compares them whole: offsets, leader epochs, producer
// ids, timestamps, CRCs and records, compressed as they lie in the log. The first
// difference of a partition is reported with both headers, and the partition is
// left there. Nothing is decompressed.
//
// Follow does so round after round, from where the last one was; what was cut off
// meanwhile is found by the end of its leader epoch, and compared again.
//
// Run starts a bounded number of workers, each with its own connections and with
// at most one fetch per side in flight, and has ended all of them when it returns.
// An unreachable cluster ends the run; an error of one partition is in its report.
//
// It does not know about compaction: a log that was compacted after it had been
// mirrored differs from its mirror, and is reported so.
package verify
