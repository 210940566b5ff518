package group

import "github.com/lockstep-kafka/lockstep/internal/coordinator"

// ticket stands for one caller who waits for an answer; 0 is nobody.
type ticket = coordinator.Ticket

// effects is what a step asks the driver to do, in order.
type effects struct {
	replies []reply
	writes  []write
}

// reply answers a ticket; the result's type is that of the question.
type reply struct {
	to     ticket
	result any
}

// write is a set of records that reach the log in one batch or not at all. The
// driver answers it with stored{of: done, err}, in the order of the writes.
type write struct {
	records []entry
	done    any          // one of the pending… types below
	txn     *transaction // in whose name; nil: our own
}

// entry is one record of __consumer_offsets; a nil value is a tombstone.
type entry struct{ key, value []byte }

func (w *write) size() int {
	n := 0
	for _, e := range w.records {
		n += coordinator.RecordSize(e.key, e.value)
	}
	return n
}

func (fx *effects) reply(to ticket, result any) {
	if to != 0 {
		fx.replies = append(fx.replies, reply{to, result})
	}
}

func (fx *effects) write(done any, records ...entry) {
	fx.writes = append(fx.writes, write{records: records, done: done})
}

// stored is the input that ends a write.
type stored struct {
	of  any
	err error
}

// What a write was for.
type (
	// pendingAssignment: the leader's assignment of one generation.
	pendingAssignment struct {
		generation int32
		byMember   map[string][]byte
	}
	// pendingEmpty: the generation in which the last member was gone.
	pendingEmpty struct{ generation int32 }
	// pendingStatic: a static member's new id in an unchanged generation.
	pendingStatic struct {
		to                ticket
		generation        int32
		memberID          string
		oldMemberID       string
		canSkipAssignment bool
	}
	// pendingCommit: offsets; which of the request's they are, and its errors.
	pendingCommit struct {
		to        ticket
		positions []committed
		keys      []TopicPartition
		index     []int
		errs      []error
	}
	// pendingRemoval: tombstones of offsets. The last of several answers.
	pendingRemoval struct {
		to   ticket
		keys []TopicPartition
		errs []error
		last bool
	}
	// pendingDeath: tombstones of a whole group. The last of several answers.
	pendingDeath struct {
		to   ticket
		keys []TopicPartition
		last bool
	}
)
