package txn

import (
	"time"

	"github.com/lockstep-kafka/lockstep/internal/coordinator"
)

// ticket stands for one caller who waits for an answer; 0 is nobody.
type ticket = coordinator.Ticket

// effects is what a step asks the driver to do, in order.
type effects struct {
	replies []reply
	writes  []write
	// mark asks for markers in the partitions; the answer comes back as marked.
	mark *mark
}

// reply answers a ticket; the result's type is that of the question.
type reply struct {
	to     ticket
	result any
}

// write is one record. The driver answers it with stored{of: done, err}, in the
// order of the writes.
type write struct {
	entry
	done pending
}

// entry is one record of __transaction_state; a nil value is a tombstone.
type entry struct{ key, value []byte }

func (e *entry) size() int { return coordinator.RecordSize(e.key, e.value) }

type mark struct {
	marker     Marker
	partitions []TopicPartition
}

func (fx *effects) reply(to ticket, result any) {
	if to != 0 {
		fx.replies = append(fx.replies, reply{to, result})
	}
}

// pending is a transition on its way to the log.
type pending struct {
	by   event
	next values
	to   []ticket
	// answers is what each ticket gets once the log has it.
	answer any
}

// Inputs of a step.
type (
	initInput struct {
		to  ticket
		req *InitRequest
		// newID is a fresh producer id, -1 if the caller has none yet.
		newID int64
	}
	addInput struct {
		to            ticket
		producerID    int64
		producerEpoch int16
		partitions    []TopicPartition
		version       int
	}
	verifyInput struct {
		to            ticket
		producerID    int64
		producerEpoch int16
		partitions    []TopicPartition
	}
	endInput struct {
		to    ticket
		req   *EndRequest
		newID int64
	}
	// stored ends a write.
	stored struct {
		of  pending
		err error
	}
	// marked tells what became of the markers in partitions.
	marked struct {
		partitions []TopicPartition
		errs       []error
	}
	// resume goes on after a replay.
	resume struct{}
	// tick: a deadline may have passed.
	tick struct{}
	// checkTimeout aborts a transaction whose time is up.
	checkTimeout struct{}
	// checkExpiry forgets an id that nobody used for long.
	checkExpiry struct{}
)

// Answers.
type (
	initResult struct {
		producer Producer
		err      error
	}
	endResult struct {
		producer Producer
		err      error
	}
	verifyResult struct {
		errs []error
		err  error
	}
)

// held is an add that waits for the transition under way.
type held struct {
	in    addInput
	until time.Time
}
