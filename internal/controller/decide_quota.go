package controller

import (
	"errors"
	"fmt"
	"maps"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Bounds of client quotas: every broker keeps all of them in memory.
const (
	maxQuotas    = 50_000
	maxQuotaName = 1024 // bytes of a user or client id
)

// ErrTooManyQuotas is a quota beyond maxQuotas.
var ErrTooManyQuotas = errors.New("too many client quotas")

// decideAlterQuotas changes the quotas of one entity, all operations or none.
func decideAlterQuotas(img *metadata.Image, c alterQuotas) ([]Change, error) {
	if err := c.Entity.Validate(); err != nil {
		return nil, err
	}
	for _, n := range []metadata.QuotaName{c.Entity.User, c.Entity.ClientID} {
		if len(n.Name) > maxQuotaName {
			return nil, fmt.Errorf("%w: a name of %d bytes, at most %d are kept", ErrInvalidRequest, len(n.Name), maxQuotaName)
		}
	}
	cur := img.Quota(c.Entity)
	next := maps.Clone(cur)
	if next == nil {
		next = make(map[string]float64)
	}
	for _, op := range c.Ops {
		if op.Remove {
			delete(next, op.Key)
			continue
		}
		if err := c.Entity.ValidateQuota(op.Key, op.Value); err != nil {
			return nil, fmt.Errorf("quotas of %s: %w", c.Entity, err)
		}
		next[op.Key] = op.Value
	}
	switch {
	case maps.Equal(next, cur):
		return nil, nil
	case cur == nil && img.NumQuotas() >= maxQuotas:
		return nil, fmt.Errorf("%w: there are %d, the most that are kept", ErrTooManyQuotas, maxQuotas)
	}
	return []Change{setQuotas{c.Entity, next}}, nil
}
