// Package mirror owns the life of mirrors: what an operator may ask, and what
// each leader does about it. Words and rules are those of KIP-1279.
//
// # What flows
//
// A command comes from a client into the [Coordinator]. It expands patterns, asks
// the source where it must (create, start), and hands one command to the
// controller, which decides again on the image of that moment. The answer is in
// the metadata image, and from there on the client is not needed.
//
// The [Manager] sees every image. For each mirror partition that this broker
// leads it keeps a replica with a machine:
//
//	image, outcomes, timers ──▶ machine.step ──▶ effects
//	                                              ├─ state writes ──▶ controller
//	                                              ├─ actions      ──▶ pool
//	                                              └─ timers
//
// The machine (step.go) decides and does nothing else: no goroutine, no clock, no
// connection. Which state follows which is metadata.Allowed; what a new leader
// does first is the table of desired.go (S9); what is true of the rest:
//
//	PREPARING      loop check, last mirrored epoch, alignment (prepare.go,
//	               align.go); gate and cut (gate.go); then MIRRORING
//	MIRRORING      check the log against the source, then fetch (fetching.go);
//	               a pipeline.Worker moves the bytes
//	EPOCH_FENCING  raise our leader epoch above the source's
//	ULE_RECOVERY   the source lost records: align, gate on all replicas, cut
//	PAUSING        take the fetcher away; then PAUSED
//	STOPPING       the failover (stop.go); then STOPPED, and clients may write
//	FAILED         wait for the retry (retry.go) or the operator
//
// The plan of a start (plan.go) asks for the operator what PREPARING asks, by the same
// rules, and changes nothing.
//
// Beside the machines each mirror has a peer: the connection to its source, what
// is known of it, and one goroutine that refreshes that (refresh.go): leaders,
// growth, deletion, topic configs, group offsets, discovery.
//
// # Goroutines
//
// One loop owns all machines; everybody else sends to its inbox. Actions block
// and run on a pool, one at a time per partition: the next begins when the one
// before has returned, so no two of them touch one log. Failovers have places of
// their own in it: they never wait for a source. One refresh goroutine per
// mirror, one worker per mirror, source broker and fetcher index. Batchers run a
// goroutine while they have work. Close ends and waits for all of them.
//
// A [Manual] is the same without goroutines: what would block is a coroutine there,
// and names what it waits for before each select (scheduler.go). The simulation has
// one for each broker, with a [Source] and a [Controller] of its own.
//
// # What may fail, and what then
//
// An error of one partition makes that partition FAILED, with the text that the
// operator reads in describe; nothing else stops. Errors of the source are
// retried with a growing delay, an unreachable one for ever, and at once when a
// refresh reaches it again. A policy ([sdk.TruncationPolicy],
// [sdk.UncleanElectionPolicy]) is asked once before records are removed.
//
// Every write to a log carries the leader epoch that the action was begun with;
// the partition refuses an old one, so a deposed leader changes nothing.
//
// # Choices where the specification leaves one
//
//   - A partition goes to PREPARING also while its source leader is unknown, and
//     fails there with the reason, because an operator sees FAILED and not
//     UNKNOWN (S11). The refresh that finds the leader starts it again.
//   - The first refresh comes right after the start, not one interval later.
//   - A partition that grew while its topic is paused stays UNKNOWN until the
//     resume.
//   - A stop that is repeated, or ends a run whose gate was not passed, goes on in a
//     leader epoch of its own and appends a producer id reset in it.
//   - Loops over three or more clusters are found by what each cluster tells of its
//     topics' origins (origins.go), asked anew along the whole chain before anything is
//     cut (O12).
//   - An ACL here belongs to the mirrors that have copied it, or to this cluster: by
//     being created here too, or with the deletion of the mirror (DEC-09). Each cluster
//     tells from where its mirrors have its ACLs, as long as these mirror something, so
//     that of two that mirror each other none gives back what the other took (acls.go).
//   - A topic that is deleted here and created again by a mirror has its old id. It begins
//     above the leader epochs of all topics that were deleted, and every replica of it
//     behind a truncation barrier, so that no log of before is taken for its own
//     (metadata.Lives).
//   - The once-per-mirror work is done by one live broker, another one for each
//     mirror (owner.go).
//
// # What is left out
//
// There are no share groups, and no tiered storage that a mirror could meet. With
// mirror.support.unclean.leader.election a gate waits for all replicas, though the
// truncation barrier (O4; partition/barrier.go) would do: the operator asked for it.
package mirror
