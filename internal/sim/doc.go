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
// A pair is two such clusters on one queue, with mirrors in both directions: the real
// managers and coordinators of internal/mirror, driven by hand ([mirror.Manual]), a link
// between the clusters that is cut, slowed and made to lose, clusters that die as a
// whole, and operators who start, pause, resume, stop, turn, recover, grow and delete by
// the commands that there are. The checker follows each timeline through its versions
// and compares by the hash of everything in front of a batch, so that one comparison
// holds a log against the other cluster's (GI-20 to GI-25, GI-31 to GI-35, GI-46, GI-50,
// GI-51, GI-54, GI-60, GI-61, GI-65, GI-66); which state followed which is counted
// against the table of the specification.
//
// Half of a pair's seeds have storms of faults, half have faults that lie in wait for a new
// state of a mirror, and uncleanly elected sources among them (ambush.go).
//
// A play is a pair without chance: one topic, and what the test says happens (play_test.go).
//
// Log starts move (DeleteRecords, retention), and brokers are added, removed and
// unregistered. That deleted records stay deleted when another broker leads is not
// checked: the answer to DeleteRecords does not wait for the followers.
//
// What is not simulated: segment files (make crash), etcd, sockets and wire formats,
// real goroutines and their races, transactions, follower fetching; of mirrors: groups' offsets, retention
// on the source, repair of damage.
package sim
