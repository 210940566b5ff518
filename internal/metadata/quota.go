package metadata

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"math"
	"net/netip"
	"strings"

	"github.com/RaduBerinde/btreemap"
)

// ErrInvalidQuota is a quota that cannot be: of nobody, of an unknown kind, or with
// a value that is none.
var ErrInvalidQuota = errors.New("invalid quota")

// QuotaName is one part of whom a quota is for: a name, or all those that have no
// quota of their own. The zero value: the part is not looked at.
type QuotaName struct {
	Set     bool
	Default bool // the name is empty then
	Name    string
}

// QuotaEntity is whom a client quota is for (KIP-546). User and client id may
// stand together, an address stands alone.
type QuotaEntity struct {
	User, ClientID, IP QuotaName
}

// The kinds of quota, by Kafka's names.
const (
	QuotaProduce     = "producer_byte_rate"
	QuotaFetch       = "consumer_byte_rate"
	QuotaRequest     = "request_percentage"
	QuotaMutation    = "controller_mutation_rate"
	QuotaConnections = "connection_creation_rate"
)

func (n QuotaName) compare(o QuotaName) int {
	rank := func(n QuotaName) int {
		switch {
		case !n.Set:
			return 0
		case n.Default:
			return 1
		}
		return 2
	}
	return cmp.Or(cmp.Compare(rank(n), rank(o)), strings.Compare(n.Name, o.Name))
}

// Compare orders entities.
func (e QuotaEntity) Compare(o QuotaEntity) int {
	return cmp.Or(e.User.compare(o.User), e.ClientID.compare(o.ClientID), e.IP.compare(o.IP))
}

func (e QuotaEntity) String() string {
	var parts []string
	for _, p := range []struct {
		kind string
		name QuotaName
	}{{"user", e.User}, {"client-id", e.ClientID}, {"ip", e.IP}} {
		switch {
		case !p.name.Set:
		case p.name.Default:
			parts = append(parts, p.kind+" <default>")
		default:
			parts = append(parts, fmt.Sprintf("%s %q", p.kind, p.name.Name))
		}
	}
	return strings.Join(parts, ", ")
}

// Validate tells why no quota can be for the entity, or nil.
func (e QuotaEntity) Validate() error {
	switch {
	case !e.User.Set && !e.ClientID.Set && !e.IP.Set:
		return fmt.Errorf("%w: a quota needs a user, a client-id or an ip", ErrInvalidQuota)
	case e.IP.Set && (e.User.Set || e.ClientID.Set):
		return fmt.Errorf("%w: a quota of an ip stands alone, without user and client-id", ErrInvalidQuota)
	}
	if e.IP.Set && !e.IP.Default {
		if _, err := netip.ParseAddr(e.IP.Name); err != nil {
			return fmt.Errorf("%w: ip %q is not an address", ErrInvalidQuota, e.IP.Name)
		}
	}
	return nil
}

// ValidateQuota checks one quota of an entity.
func (e QuotaEntity) ValidateQuota(key string, value float64) error {
	whole := false
	switch key {
	case QuotaProduce, QuotaFetch:
		whole = true
	case QuotaRequest, QuotaMutation:
	case QuotaConnections:
		whole = true
	default:
		return fmt.Errorf("%w: %s: no such quota", ErrInvalidQuota, key)
	}
	switch {
	case (key == QuotaConnections) != e.IP.Set:
		return fmt.Errorf("%w: %s is no quota of %s", ErrInvalidQuota, key, e)
	case !(value > 0) || math.IsInf(value, 0):
		return fmt.Errorf("%w: %s=%g: must be above 0", ErrInvalidQuota, key, value)
	case whole && math.Abs(value-math.Round(value)) > 1e-6:
		return fmt.Errorf("%w: %s=%g: must be a whole number", ErrInvalidQuota, key, value)
	case key == QuotaConnections && value > math.MaxInt32, value > math.MaxInt64:
		return fmt.Errorf("%w: %s=%g: too large", ErrInvalidQuota, key, value)
	}
	return nil
}

// Quotas walks the quotas of all entities. The maps are shared: do not write.
func (img *Image) Quotas() iter.Seq2[QuotaEntity, map[string]float64] {
	return img.quotas.Ascend(btreemap.Min[QuotaEntity](), btreemap.Max[QuotaEntity]())
}

// Quota returns the quotas of one entity; nil if it has none.
func (img *Image) Quota(e QuotaEntity) map[string]float64 {
	_, q, _ := img.quotas.Get(e)
	return q
}

// NumQuotas counts the entities with quotas.
func (img *Image) NumQuotas() int { return img.quotas.Len() }

// SetQuota replaces the quotas of an entity; empty removes them.
func (e *Editor) SetQuota(entity QuotaEntity, quotas map[string]float64) {
	e.quotas = true
	if len(quotas) == 0 {
		e.next.quotas.Delete(entity)
		return
	}
	e.next.quotas.ReplaceOrInsert(entity, quotas)
}
