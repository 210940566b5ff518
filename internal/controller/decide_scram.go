package controller

import (
	"fmt"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// maxScramUser bounds a user's name: it is part of a key of the store.
const maxScramUser = 1024

// decideAlterScram changes the credentials of one user, all of them or none.
func decideAlterScram(img *metadata.Image, c alterScram) ([]Change, error) {
	fail := func(err error, format string, args ...any) ([]Change, error) {
		return nil, fmt.Errorf("SCRAM credentials of %q: %w: %s", c.User, err, fmt.Sprintf(format, args...))
	}
	if c.User == "" || len(c.User) > maxScramUser {
		return fail(ErrUnacceptableCredential, "a user name has 1 to %d bytes", maxScramUser)
	}
	var changes []Change
	for _, m := range c.Deletes {
		if img.Scram(c.User, m) == nil {
			return fail(ErrUnknownScram, "nothing to delete for %v", m)
		}
		changes = append(changes, deleteScram{c.User, m})
	}
	for _, p := range c.Puts {
		size := p.Mechanism.Size()
		switch {
		case p.Mechanism.String() == "":
			return fail(ErrUnacceptableCredential, "mechanism %d", int8(p.Mechanism))
		case p.Iterations < metadata.MinScramIterations:
			return fail(ErrUnacceptableCredential, "too few iterations: %d, at least %d", p.Iterations, metadata.MinScramIterations)
		case p.Iterations > metadata.MaxScramIterations:
			return fail(ErrUnacceptableCredential, "too many iterations: %d, at most %d", p.Iterations, metadata.MaxScramIterations)
		case len(p.Salt) == 0 || len(p.Salt) > maxScramSalt:
			return fail(ErrUnacceptableCredential, "a salt has 1 to %d bytes", maxScramSalt)
		case len(p.StoredKey) != size || len(p.ServerKey) != size:
			return fail(ErrUnacceptableCredential, "keys of %v have %d bytes", p.Mechanism, size)
		}
		changes = append(changes, putScram{&metadata.ScramCredential{
			User: c.User, Mechanism: p.Mechanism, Iterations: p.Iterations,
			Salt: slices.Clone(p.Salt), StoredKey: slices.Clone(p.StoredKey), ServerKey: slices.Clone(p.ServerKey),
		}})
	}
	return changes, nil
}

const maxScramSalt = 1024
