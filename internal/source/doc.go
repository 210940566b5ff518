// Package source is our side of a source cluster, seen as an ordinary client
// sees it (W21): metadata, topic configs, groups and their offsets, first and
// last offsets, epoch ends, what the source knows about mirrors, and the raw
// fetch of record bytes. Nothing is ever written to the source.
//
// A [Cluster] is made from one mirror's configs and holds three kinds of
// connections, all with that mirror's security settings and no others (W19):
//
//   - one franz-go client for the control plane (metadata, configs, groups), which is
//     replaced when the source's brokers have moved (where.go);
//   - one plain request/response connection per broker that was asked for
//     offsets or epoch ends, and one to any broker for the mirror requests;
//   - fetch sessions, opened through [Cluster.Transport] and owned by whoever
//     opened them.
//
// A broker is asked for the cluster's id before anything else: addresses go to other
// clusters.
//
// The fetch session ([kafkaSession]) encodes requests with kmsg and parses the
// answers itself, field by field from the socket, because a whole response in
// memory costs more than everything else on the path. Record bytes are handed
// on as a reader over the socket and never stored here. Each length a source
// sends is held against what is left of its frame, so a hostile one costs a
// connection and no memory. Sources from Kafka 1.1 on remember a session's
// partitions, so requests carry only changes ([incremental], KIP-227).
//
// Goroutines: none of our own; every call runs on its caller's and obeys its
// context. The franz-go client has its own until Close.
//
// What may fail: every error is an [*Error] of one line that names the peer,
// says which side refused and why, and has a [Class] by which the caller
// chooses between retry and report. Error texts never hold credentials.
package source
