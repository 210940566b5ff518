package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
)

// UpdateFeatures (v0-v2)
//
// Behavior:
//   - The levels of this version's features are fixed (key 18 tells them): setting a
//     feature to the level that it has succeeds and changes nothing. Another level,
//     or a feature that is not known, is INVALID_UPDATE_VERSION with a word on why;
//     one such refuses all. A dry run (validate only) answers the same.
//
// Version notes:
//   - v0: KIP-584
//   - v1: how a level is changed, validate only (KIP-778)
//   - v2: no results per feature; what is refused is an error of the whole request
func (s *Server) registerUpdateFeatures() {
	s.register(57, 0, 2, s.updateFeatures)
}

func (s *Server) updateFeatures(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.UpdateFeaturesRequest)
	resp := req.ResponseKind().(*kmsg.UpdateFeaturesResponse)
	if !s.allowedCluster(r, authz.Alter) {
		resp.ErrorCode = kerr.ClusterAuthorizationFailed.Code
		return resp, nil
	}
	seen := map[string]bool{}
	var first error
	for i := range req.FeatureUpdates {
		u := &req.FeatureUpdates[i]
		err := checkFeature(u, req.Version)
		if seen[u.Feature] {
			err = fmt.Errorf("%w: feature %s is named more than once", kerr.InvalidRequest, u.Feature)
		}
		seen[u.Feature] = true
		if first == nil {
			first = err
		}
		out := kmsg.NewUpdateFeaturesResponseResult()
		out.Feature = u.Feature
		out.ErrorCode, out.ErrorMessage = errorCode(err)
		resp.Results = append(resp.Results, out)
	}
	if first != nil && req.Version >= 2 {
		resp.ErrorCode, resp.ErrorMessage = errorCode(first)
	}
	return resp, nil
}

// checkFeature tells why a feature cannot have the level asked for.
func checkFeature(u *kmsg.UpdateFeaturesRequestFeatureUpdate, version int16) error {
	const upgrade, safeDowngrade, unsafeDowngrade = 1, 2, 3
	how := u.UpgradeType
	if version < 1 {
		if how = upgrade; u.AllowDowngrade {
			how = safeDowngrade
		}
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s: %s", kerr.InvalidUpdateVersion, u.Feature, fmt.Sprintf(format, args...))
	}
	if how < upgrade || how > unsafeDowngrade {
		return refuse("upgrade type %d", how)
	}
	for _, f := range features {
		switch {
		case f.name != u.Feature:
		case u.MaxVersionLevel < f.min || u.MaxVersionLevel > f.max:
			return refuse("level %d is not supported, only %d to %d", u.MaxVersionLevel, f.min, f.max)
		case u.MaxVersionLevel < f.finalized && how == upgrade:
			return refuse("level %d is below the current one, %d, and no downgrade was asked for", u.MaxVersionLevel, f.finalized)
		case u.MaxVersionLevel != f.finalized:
			return refuse("this version of Lockstep runs at level %d and cannot change it", f.finalized)
		default:
			return nil
		}
	}
	return refuse("this broker does not know the feature")
}
