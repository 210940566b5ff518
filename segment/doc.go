// Package segment keeps the logs of partitions: record batches in files, which
// are the truth, and an index that finds them, which is a cache (D10).
//
// A Store is one log directory:
//
//	LOCK                                   held while the store is open
//	logs/<topic id>-<partition>/           one Log; Kafka's own layout:
//	    00000000000000000000.log           whole v2 batches back to back, named by base offset
//	    00000000000001048576.log           … the last one is active
//	logs/<topic id>-<partition>-delete/    a log that is going
//	index/                                 one Pebble: where batches are, summaries of
//	                                       closed segments, producer snapshots
//	watermarks-a, watermarks-b             two slots: per log start, durable end, high watermark
//	logs/<topic id>-<partition>/damaged    of a damaged log: the files to look at
//	quarantine/                            damaged files that were replaced, records that were cut
//	ballast                                blocks to give up when others fill the disk
//
// # What flows through
//
// In: Append takes whole, verified batches whose offsets and epochs are final,
// and writes them. Out: Read gives a View, a range of whole
// batches in one file, for the kernel to send. Beside it the log keeps what the
// batches say: leader epochs (epoch.Cache), producers and transactions
// (producer.Table), timestamps. Nothing here decides about leaders or high
// watermarks; nothing here rewrites a byte.
//
// # Who owns what
//
// Appends are the caller's goroutine, and so are reads. The store has four
// goroutines, and workers of the flusher while somebody waits for a sync: each takes
// a log, syncs it for all who asked until then, and calls them back; of a crowd of logs
// one worker takes all, and syncs the file system (flushtogether.go). The flusher
// itself syncs the rest and writes the watermarks down on a timer. Writeback has the
// kernel begin with what the flusher will want. The watcher looks
// whether the disk has room and answers, and tells when Health changes. The
// scrubber reads everything, slowly, to find damage, and tells of it. A log has
// none. An idle log has no open file after the cache has closed it.
//
// # What may fail, and what then
//
//   - no room: appends of records end before the disk does (space), with ErrFull,
//     and begin again by themselves. Marks, the index, deletions and batches of our
//     own go on in the reserve;
//   - a write: the bytes that got through are cut off again, nothing was appended,
//     the log goes on. Where they cannot be cut, that log fails;
//   - an fsync, of a file, a directory or the marks: the store is dead (ErrFailed).
//     What was not confirmed never will be; a second fsync that succeeds proves
//     nothing;
//   - a disk that hangs: Health says Slow; who waits for an fsync waits;
//   - a read: that read;
//   - a crash: every operation says in its comment what one leaves behind. Recovery
//     looks only at what is above the durable end or unknown to the index, and
//     cuts a torn tail;
//   - damage below the durable end: *DamageError with file and offset; the log is
//     out of use until Repair (damage.go), its neighbours go on, nothing is deleted;
//   - the index: never an error. Lookups walk until the next start rebuilds it.
//
// # What it promises of positions
//
// A position in a segment file never gets other bytes. A truncation inside a
// file ends that file; the log goes on in a new one. So a View that was taken
// before shows the old bytes or their end, never new ones (see View).
package segment
