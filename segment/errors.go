package segment

import (
	"errors"
	"fmt"
)

var (
	// ErrOutOfRange: the offset is below the log start or above the log end.
	ErrOutOfRange = errors.New("segment: offset out of range")
	// ErrClosed: the log or its store was closed, or the log was deleted.
	ErrClosed = errors.New("segment: closed")
	// ErrLocked: another process has the log directory open.
	ErrLocked = errors.New("segment: locked by another process")
	// ErrOffsetOrder: a batch does not lie at or behind the log end.
	ErrOffsetOrder = errors.New("segment: offset order")
	// ErrFailed: an fsync, or the repair of a broken write, failed before.
	// Nothing of this store is acknowledged any more (fsync is asked once, a later
	// success proves nothing); what is in the page cache can still be read.
	ErrFailed = errors.New("segment: store failed")
	// ErrFull: the disk has no room for records. Nothing was appended, reading goes
	// on, and appends are taken again by themselves once there is room.
	ErrFull = errors.New("segment: disk is full")
	// ErrRebuilding: what the index knew of this log is being gathered from its
	// segments again. Reading by offset goes on; ask the rest again.
	ErrRebuilding = errors.New("segment: index is being rebuilt")
	// ErrCorrupt marks damage: bytes that were once durable and cannot be read as
	// batches any more. The error is a *DamageError.
	ErrCorrupt = errors.New("segment: damaged")
)

// DamageError names damaged bytes. Nothing is deleted or cut because of it.
type DamageError struct {
	File   string
	At     int64 // position in the file
	Offset int64 // first log offset that cannot be read
	Err    error

	// Dir and Log name the damaged log as an operator has to name it; empty where
	// the error speaks of a file alone.
	Dir string
	Log LogID
}

func (e *DamageError) Error() string {
	text := fmt.Sprintf("segment: %s is damaged at position %d, offset %d: %v", e.File, e.At, e.Offset, e.Err)
	if e.Dir != "" {
		text += fmt.Sprintf("; nothing of the log is served until it is whole again; with the server stopped, %s lists what is lost and says how to go on without it", e.command())
	}
	return text
}

// command is what an operator can type.
func (e *DamageError) command() string {
	return fmt.Sprintf("lockstep repair --dir %s --log %s", e.Dir, e.Log)
}

// Unwrap makes errors.Is(err, ErrCorrupt) hold.
func (e *DamageError) Unwrap() []error { return []error{ErrCorrupt, e.Err} }
