// Package epoch answers two questions about leader epochs in one log: in which
// epoch was this offset written, and where does that epoch end?
//
// A Cache is a short ascending list of (epoch, first offset). The log that owns
// it feeds it every appended batch and cuts it together with the segments; the
// cache itself never touches a disk and is rebuilt from the segments when
// needed. On a mirror the epochs are the source's, not our own (L1), which is
// what lets us ask the source where an epoch ends.
//
// MirrorTarget is the one decision in here that is not Kafka's: where a
// partition is cut before it mirrors again (spec 9.6.2). It is a pure function,
// tested against table A.1 of the specification.
//
// Nothing in this package is safe for several goroutines; the log's lock
// guards it.
package epoch
