// Package partition is where everything about one replica meets: its role, its
// leader epoch, its log, the ISR and therefore the high watermark, the write
// rules of a mirror topic, and those who wait.
//
// Bytes come in through three doors. Produce takes one batch of a client:
// verify, give it an offset and an epoch, append, and answer when the
// acknowledgement it asked for is reached. MirrorAppend takes verified batches
// of a source cluster as they are. AppendInternal takes one batch of our own
// coordinators (group offsets, transaction markers, the producer id reset of a
// failover). They leave through Read, as file ranges.
//
// A Partition owns no goroutine. Appends, truncations and changes of role are
// serialised by one lock (appendMu); readers take a short read lock on the
// published state. The acknowledgement of a write that must be on disk first
// comes on the flusher goroutine of the segment store. The Manager owns one
// goroutine for retention.
//
// A partition whose log cannot be opened, or whose disk failed, is offline: it
// answers ErrStorage with the cause and its neighbours go on.
package partition
