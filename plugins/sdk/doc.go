// Package sdk holds the seams that a plugin author implements; it imports
// nothing of Lockstep. The main of a plugin process also calls plugins/serve,
// which is apart so that the byte path does not link what only plugins need.
//
// It names two seams of a mirror:
//
//   - the transport ([Transport], [Session], [FetchHandler]): how the bytes of
//     a partition arrive. The built-in ones speak the Kafka protocol to a
//     source cluster; others may read an archive, a proxy or a message bus.
//   - the policies ([TruncationPolicy], [UncleanElectionPolicy]): what to do in
//     the few moments in which a mirror may lose records. The built-in ones
//     give exactly the documented behaviour.
//
// A plugin process is a main that fills a serve.Plugin and calls serve.Run. It
// can offer the policies and, as a [DialFunc], the way to a broker; a Session of its
// own it cannot offer, because record bytes do not pass through messages.
//
// What flows: the pipeline asks a session for bytes from the end of its log and
// gets whole record batches in the format that Kafka writes to disk (magic 2).
// A session never changes a byte: base offsets, leader epochs, producer ids and
// checksums are the source's. The pipeline checks every batch again before it
// appends it, so a faulty transport costs its own partitions and nothing else.
//
// Ownership: a session is used by one goroutine at a time, with one Fetch in
// flight. Everything handed to a FetchHandler is valid until that call returns.
// A policy may be called from several goroutines.
//
// Offsets named end are exclusive, offsets named last are inclusive. An epoch
// or an offset of -1 is unknown.
package sdk
