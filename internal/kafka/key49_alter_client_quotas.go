package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// AlterClientQuotas (v0-v1)
//
// Behavior:
//   - Each entity succeeds or fails by itself, with all its quotas or none; one that
//     is named twice fails in both places. What is refused is INVALID_REQUEST with
//     a word on why.
//   - Quotas hold from the answer on. What was measured before counts.
//
// Version notes:
//   - v0: KIP-546
//   - v1: flexible
func (s *Server) registerAlterClientQuotas() {
	s.register(49, 0, 1, s.alterClientQuotas)
}

func (s *Server) alterClientQuotas(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.AlterClientQuotasRequest)
	resp := req.ResponseKind().(*kmsg.AlterClientQuotasResponse)
	allowed := s.allowedCluster(r, authz.AlterConfigs)
	named := map[metadata.QuotaEntity]int{}
	entities := make([]metadata.QuotaEntity, len(req.Entries))
	errs := make([]error, len(req.Entries))
	for i := range req.Entries {
		var parts []quotaPart
		for _, p := range req.Entries[i].Entity {
			parts = append(parts, quotaPart{p.Type, p.Name})
		}
		if entities[i], errs[i] = quotaEntity(parts); errs[i] == nil {
			named[entities[i]]++
		}
		if !allowed {
			errs[i] = kerr.ClusterAuthorizationFailed
		}
	}
	var alter []controller.AlterQuotas
	var at []int // index in the request of each change
	for i := range req.Entries {
		if errs[i] == nil && named[entities[i]] > 1 {
			errs[i] = fmt.Errorf("%w: %s is named more than once", metadata.ErrInvalidQuota, entities[i])
		}
		if errs[i] != nil {
			continue
		}
		a := controller.AlterQuotas{Entity: entities[i]}
		for _, op := range req.Entries[i].Ops {
			a.Ops = append(a.Ops, controller.QuotaOp{Key: op.Key, Value: op.Value, Remove: op.Remove})
		}
		alter, at = append(alter, a), append(at, i)
	}
	for i, err := range s.o.Controller.AlterQuotas(r.ctx, alter, req.ValidateOnly) {
		errs[at[i]] = err
	}
	s.settle(r.ctx)
	for i := range req.Entries {
		out := kmsg.NewAlterClientQuotasResponseEntry()
		for _, p := range req.Entries[i].Entity {
			part := kmsg.NewAlterClientQuotasResponseEntryEntity()
			part.Type, part.Name = p.Type, p.Name
			out.Entity = append(out.Entity, part)
		}
		out.ErrorCode, out.ErrorMessage = errorCode(errs[i])
		resp.Entries = append(resp.Entries, out)
	}
	return resp, nil
}
