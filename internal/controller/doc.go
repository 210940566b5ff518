// Package controller is the only writer of cluster metadata. etcd hides behind it.
//
// A call becomes commands. [Decide] answers, from an image and a command and
// nothing else, the changes that carry it out or why it is refused. The changes
// are written as transactions, come back over the watch, and make the next
// [metadata.Image]; the call returns when the local image shows them.
//
//	call ── commands ─▶ Decide(image, command) ── changes ─▶ fenced transactions
//	                        ▲                                      │ etcd
//	 Watch(prev, next) ◀── image ◀── builder ◀── changes ◀── watch ─┘
//
// Goroutines, all started by Open and ended by Close:
//
//   - the controller holds the office, decides and commits. All requests that wait
//     are one batch, decided one after the other on the image that the ones before
//     leave behind, and share transactions;
//   - the candidate stands for election while the office is not ours;
//   - the follower reads the store, then watches it, and publishes images. A watch
//     that falls behind compacted history reads everything anew;
//   - the dispatcher shows images to watchers;
//   - the housekeeper keeps etcd's file small.
//
// Where there are several nodes, each controller has a [listener] for the others,
// and one etcd member; [formation] says how members find each other. A node that is
// not active has the active one decide ([Controller.ask]) and stays connected to it
// (link.go), so that each notices soon that the other is gone. The active one drives
// the [sessions] of the brokers (alive.go).
//
// What keeps a deposed controller from writing, and an uncertain write from
// coming late, is on [term]. A command over many partitions is many transactions:
// each is atomic for a partition, and for a topic as long as it has fewer than a
// thousand partitions or so (120 in an etcd of the operator's); the rest is ordered
// such that no reader sees half a topic and every command can be repeated. What a
// controller that died left half done is swept when the next one takes office.
//
// Calls fail with the sentinels of this package, ErrNotController while nobody
// here holds the office, ErrClosed, or what etcd answers; the last leaves open
// whether the command took effect. A failing disk under etcd ends the process:
// etcd cannot go on without it, and a node without metadata cannot either.
//
// Mirror state is part of the metadata (spec 3.1, 8 and 9; there is no
// __mirror_state topic): the mirror coordinator of the spec is this package's
// decide_mirror.go and decide_state.go.
package controller
