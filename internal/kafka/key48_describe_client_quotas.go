package kafka

import (
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// DescribeClientQuotas (v0-v1)
//
// Behavior:
//   - Answers the entities that match every component: an exact name, the default,
//     or any. Strictly, an entity may have no other part.
//   - A type that is not user, client-id or ip has UNSUPPORTED_VERSION, as in Kafka;
//     an empty one, one named twice, or ip beside others INVALID_REQUEST.
//
// Version notes:
//   - v0: KIP-546
//   - v1: flexible
func (s *Server) registerDescribeClientQuotas() {
	s.register(48, 0, 1, s.describeClientQuotas)
}

// How a component of the request compares.
const (
	quotaMatchExact   = 0
	quotaMatchDefault = 1
	quotaMatchAny     = 2
)

func (s *Server) describeClientQuotas(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DescribeClientQuotasRequest)
	resp := req.ResponseKind().(*kmsg.DescribeClientQuotasResponse)
	if !s.allowedCluster(r, authz.DescribeConfigs) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil
	}
	filter, err := quotaFilter(req)
	if err != nil {
		resp.ErrorCode, resp.ErrorMessage = errorCode(err)
		return resp, nil
	}
	resp.Entries = []kmsg.DescribeClientQuotasResponseEntry{} // null means an error to the Java client
	for e, values := range s.o.Controller.Image().Quotas() {
		if !filter(e) {
			continue
		}
		entry := kmsg.NewDescribeClientQuotasResponseEntry()
		for _, p := range []struct {
			kind string
			name metadata.QuotaName
		}{{"user", e.User}, {"client-id", e.ClientID}, {"ip", e.IP}} {
			if !p.name.Set {
				continue
			}
			part := kmsg.NewDescribeClientQuotasResponseEntryEntity()
			part.Type = p.kind
			if !p.name.Default {
				part.Name = &p.name.Name
			}
			entry.Entity = append(entry.Entity, part)
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			v := kmsg.NewDescribeClientQuotasResponseEntryValue()
			v.Key, v.Value = key, values[key]
			entry.Values = append(entry.Values, v)
		}
		resp.Entries = append(resp.Entries, entry)
	}
	return resp, nil
}

// quotaFilter is what a request selects.
func quotaFilter(req *kmsg.DescribeClientQuotasRequest) (func(metadata.QuotaEntity) bool, error) {
	var asked metadata.QuotaEntity // which parts are named
	type test func(metadata.QuotaEntity) bool
	var tests []test
	for i := range req.Components {
		c := &req.Components[i]
		if c.EntityType == "" {
			return nil, fmt.Errorf("%w: an empty entity type", metadata.ErrInvalidQuota)
		}
		n, err := quotaName(&asked, c.EntityType)
		if err != nil {
			return nil, fmt.Errorf("%w: entity type %q", kerr.UnsupportedVersion, c.EntityType)
		}
		if n.Set {
			return nil, fmt.Errorf("%w: entity type %q is named twice", metadata.ErrInvalidQuota, c.EntityType)
		}
		n.Set = true
		want := metadata.QuotaName{Set: true}
		switch c.MatchType {
		case quotaMatchExact:
			if c.Match == nil {
				return nil, fmt.Errorf("%w: entity type %q is to match a name and has none", metadata.ErrInvalidQuota, c.EntityType)
			}
			want.Name = *c.Match
		case quotaMatchDefault:
			want.Default = true
		case quotaMatchAny:
		default:
			return nil, fmt.Errorf("%w: match type %d", metadata.ErrInvalidQuota, c.MatchType)
		}
		kind, anyName := c.EntityType, c.MatchType == quotaMatchAny
		tests = append(tests, func(e metadata.QuotaEntity) bool {
			have, _ := quotaName(&e, kind)
			return have.Set && (anyName || *have == want)
		})
	}
	if asked.IP.Set && (asked.User.Set || asked.ClientID.Set) {
		return nil, fmt.Errorf("%w: an ip stands alone", metadata.ErrInvalidQuota)
	}
	return func(e metadata.QuotaEntity) bool {
		if req.Strict && (e.User.Set != asked.User.Set || e.ClientID.Set != asked.ClientID.Set || e.IP.Set != asked.IP.Set) {
			return false
		}
		return !slices.ContainsFunc(tests, func(t test) bool { return !t(e) })
	}, nil
}
