package controller

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

type quotaRecord struct {
	V      int                `json:"v"`
	Quotas map[string]float64 `json:"quotas"`
}

// quotaKey names an entity by its parts, each a letter, then = and a name, or * for
// all without a quota of their own: u=alice&c* is every client id of alice.
func quotaKey(e metadata.QuotaEntity) string {
	var parts []string
	for _, p := range []struct {
		letter string
		name   metadata.QuotaName
	}{{"u", e.User}, {"c", e.ClientID}, {"i", e.IP}} {
		switch {
		case !p.name.Set:
		case p.name.Default:
			parts = append(parts, p.letter+"*")
		default:
			parts = append(parts, p.letter+"="+url.QueryEscape(p.name.Name))
		}
	}
	return dirQuota + strings.Join(parts, "&")
}

func parseQuotaKey(key string) (e metadata.QuotaEntity, err error) {
	for part := range strings.SplitSeq(key, "&") {
		name := metadata.QuotaName{Set: true}
		letter, escaped, named := strings.Cut(part, "=")
		if named {
			if name.Name, err = url.QueryUnescape(escaped); err != nil {
				return e, fmt.Errorf("%w: quota of %q", errBadRecord, key)
			}
		} else {
			letter, name.Default = strings.CutSuffix(part, "*")
		}
		switch {
		case !named && !name.Default:
			return e, fmt.Errorf("%w: quota of %q", errBadRecord, key)
		case letter == "u":
			e.User = name
		case letter == "c":
			e.ClientID = name
		case letter == "i":
			e.IP = name
		default:
			return e, fmt.Errorf("%w: quota of %q", errBadRecord, key)
		}
	}
	return e, nil
}

func encodeQuotas(c setQuotas) (write, error) {
	if len(c.Quotas) == 0 {
		return write{key: quotaKey(c.Entity)}, nil
	}
	return putJSON(quotaKey(c.Entity), quotaRecord{1, c.Quotas})
}

func decodeQuotas(name string, value []byte) (Change, error) {
	e, err := parseQuotaKey(name)
	if err != nil || value == nil {
		return setQuotas{Entity: e}, err
	}
	var r quotaRecord
	if err := getJSON(value, &r); err != nil {
		return nil, err
	}
	return setQuotas{e, r.Quotas}, nil
}
