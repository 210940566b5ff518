// Package sim runs a whole cluster in one goroutine, from one seed: harness H1.
//
// What decides is the real code, driven by hand: [controller.Manual] (Decide, sessions,
// the builder of images, the codec of the store), [partition.Manual] (roles, high
// watermarks, acknowledgements, truncation, reads, isr.Tracker), [replica.Manual] and
// [pipeline.Manual] (whom to follow, what to ask, what to do with the answer). What it
// stands on is simulated: the metadata store, with watches that come late and an office
// that can be lost; the network, which loses, delays, reorders and parts; disks, which
// lose what was not synced; the processes, which are killed, stopped and started; and
// clients. Each event is one step of [World]'s queue, which is ordered by time; all
// chance is drawn from the seed, so a seed is a run.
//
// The checker knows what was written by whom, committed, acknowledged and read, and
// holds the cluster against the rules of the specification (GI-01 to GI-15, GI-30,
// GI-40, GI-52) after each event, for what changed in it, and every thousand events as a
// whole. Then the faults end, and everything has to come right by itself (LV).
//
// What is not simulated: segment files (make crash), etcd, sockets and wire formats,
// real goroutines and their races, transactions, mirrors, follower fetching.
package sim
