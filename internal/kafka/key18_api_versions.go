package kafka

import (
	"regexp"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// ApiVersions (v0-v4)
//
// Behavior:
//   - Advertises exactly what the table in dispatch.go serves. (Produce v0 to v2
//     are the exception, see there.)
//   - A version we do not know is answered in v0 with UNSUPPORTED_VERSION and
//     the versions, so that the client can ask again (KIP-511). The answer's
//     header is v0 always.
//   - Features (KIP-584): mirror.version tells tools that mirrors are served
//     (spec 3.4); metadata.version is the level that the Java admin tools of 4.x
//     take as "nothing of ours is too old"; transaction.version 2 lets producers
//     add partitions by writing to them (KIP-890); group.version 1 lets
//     consumers use the consumer protocol (KIP-848).
//
// Version notes:
//   - v3: flexible, client software name and version, features
//   - v4: a supported feature may begin at 0 (KIP-1022); v3 clients refuse such
//     answers, so they do not see those features
func (s *Server) registerApiVersions() {
	s.register(keyApiVersions, 0, 4, s.apiVersions)
}

// features of this broker. metadata.version 25 is Apache Kafka's 4.0-IV3.
var features = []struct {
	name                string
	min, max, finalized int16
}{
	{"metadata.version", 7, 25, 25},
	{"mirror.version", 0, 1, 1},
	{"group.version", 0, 1, 1},
	{"transaction.version", 0, 2, 2},
}

// softwareName is what KIP-511 allows a client to call itself.
var softwareName = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?$`)

func (s *Server) apiVersions(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.ApiVersionsRequest)
	resp := req.ResponseKind().(*kmsg.ApiVersionsResponse)
	if req.Version >= 3 && (!softwareName.MatchString(req.ClientSoftwareName) || !softwareName.MatchString(req.ClientSoftwareVersion)) {
		resp.ErrorCode = kerr.InvalidRequest.Code
		return resp, nil
	}
	resp.ApiKeys = s.advertised()
	if req.Version < 3 {
		return resp, nil
	}
	for _, f := range features {
		if f.min > 0 || req.Version >= 4 {
			sf := kmsg.NewApiVersionsResponseSupportedFeature()
			sf.Name, sf.MinVersion, sf.MaxVersion = f.name, f.min, f.max
			resp.SupportedFeatures = append(resp.SupportedFeatures, sf)
		}
		if f.finalized > 0 {
			ff := kmsg.NewApiVersionsResponseFinalizedFeature()
			ff.Name, ff.MinVersionLevel, ff.MaxVersionLevel = f.name, f.finalized, f.finalized
			resp.FinalizedFeatures = append(resp.FinalizedFeatures, ff)
		}
	}
	// The set never changes while a broker runs, so one epoch does.
	resp.FinalizedFeaturesEpoch = 1
	return resp, nil
}

func (s *Server) advertised() []kmsg.ApiVersionsResponseApiKey {
	var out []kmsg.ApiVersionsResponseApiKey
	for _, a := range s.apis {
		if a == nil {
			continue
		}
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MinVersion, k.MaxVersion = a.key, a.advertisedMin, a.max
		out = append(out, k)
	}
	return out
}

// refuseVersions answers an ApiVersions request that is newer than ours.
func (c *conn) refuseVersions(r *request) error {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.SetVersion(0)
	resp.ErrorCode = kerr.UnsupportedVersion.Code
	resp.ApiKeys = c.server.advertised()
	return c.send(func(dst []byte) []byte {
		return wire.AppendResponse(dst, r.header.CorrelationID, resp, false)
	})
}
