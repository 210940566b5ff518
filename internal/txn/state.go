package txn

import "fmt"

// State is where a transactional id is in its life. The numbers are those of
// Kafka's log records.
type State int8

const (
	// Empty: a producer has its id and epoch; nothing is in the transaction yet.
	Empty State = iota
	// Ongoing: partitions belong to the transaction. Only here time runs out.
	Ongoing
	// PrepareCommit: the decision is stored, its markers are being written. From
	// here a transaction can only be committed.
	PrepareCommit
	// PrepareAbort: the same for an abort.
	PrepareAbort
	// CompleteCommit: every partition has its marker.
	CompleteCommit
	// CompleteAbort: the same for an abort.
	CompleteAbort
	// Dead: being forgotten, because nobody used the id for long.
	Dead
	// PrepareEpochFence: the producer of an ongoing transaction is being replaced.
	// It is passed through on the way to PrepareAbort and never stored.
	PrepareEpochFence

	states = int(PrepareEpochFence) + 1
)

var stateNames = [states]string{
	"Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence",
}

// String is the name as Kafka's clients print and filter by it.
func (s State) String() string {
	if s < 0 || int(s) >= states {
		return fmt.Sprintf("State(%d)", int8(s))
	}
	return stateNames[s]
}

// ParseState is the state with a name; names are case-sensitive, as in Kafka.
func ParseState(name string) (State, bool) {
	for s, n := range stateNames {
		if n == name {
			return State(s), true
		}
	}
	return 0, false
}

// event is what moves a transactional id from one state to the next.
type event int8

const (
	initialize event = iota // a producer takes the id
	add                     // partitions join the transaction
	commit
	abort
	fence    // the producer is replaced, or its time is up
	complete // every partition has its marker
	expire
)

func (e event) String() string {
	return [...]string{"initialize", "add", "commit", "abort", "fence", "complete", "expire"}[e]
}

type transition struct {
	from State
	by   event
	to   State
}

// transitions is the whole life of a transactional id. What is not listed
// cannot happen: next refuses it.
var transitions = []transition{
	{Empty, initialize, Empty}, // the next epoch, or the next producer id
	{Empty, add, Ongoing},
	{Empty, abort, PrepareAbort}, // since KIP-890: a producer that does not know whether anything arrived
	{Empty, expire, Dead},
	{Ongoing, add, Ongoing},
	{Ongoing, commit, PrepareCommit},
	{Ongoing, abort, PrepareAbort},
	{Ongoing, fence, PrepareEpochFence}, // by a newer producer, or by the timeout
	{PrepareEpochFence, abort, PrepareAbort},
	{PrepareCommit, complete, CompleteCommit},
	{PrepareAbort, complete, CompleteAbort},
	{CompleteCommit, initialize, Empty},
	{CompleteCommit, add, Ongoing},
	{CompleteCommit, abort, PrepareAbort}, // as from Empty
	{CompleteCommit, expire, Dead},
	{CompleteAbort, initialize, Empty},
	{CompleteAbort, add, Ongoing},
	{CompleteAbort, abort, PrepareAbort},
	{CompleteAbort, expire, Dead},
}

// next is the state that an event leads to.
func next(from State, by event) (State, bool) {
	for _, t := range transitions {
		if t.from == from && t.by == by {
			return t.to, true
		}
	}
	return from, false
}

// deciding tells that the outcome is stored and its markers are being written.
func (s State) deciding() bool { return s == PrepareCommit || s == PrepareAbort }
