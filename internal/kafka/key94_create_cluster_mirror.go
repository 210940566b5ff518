package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// CreateClusterMirror (v0)
//
// Behavior:
//   - Validates name and settings, connects to the source, and learns its
//     cluster id, all before anything is stored: 135, 136, 40, 42, or 7 when the
//     source does not answer within request.timeout.ms. The message is one line
//     that names the peer, the side and the cause.
//   - Needs Create on the mirror: 144.
//   - A setting without a value counts as not given.
//   - No topic is touched; a topics.include in the settings is acted on by
//     discovery.
//
// Version notes:
//   - v0: KIP-1279
func (s *Server) registerCreateClusterMirror() { s.register(94, 0, 0, s.createClusterMirror) }

func (s *Server) createClusterMirror(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*wire.CreateClusterMirrorRequest)
	resp := new(wire.CreateClusterMirrorResponse)
	if !s.allowed(r, authz.Create, authz.ClusterMirror, req.MirrorName) {
		setMirrorStatus(resp, errMirrorDenied)
		return resp, nil
	}
	configs := make(map[string]string, len(req.Config))
	for _, c := range req.Config {
		if _, twice := configs[c.Name]; twice {
			setMirrorStatus(resp, fmt.Errorf("%w: %s stands twice", controller.ErrInvalidRequest, c.Name))
			return resp, nil
		}
		if c.Value != nil {
			configs[c.Name] = *c.Value
		}
	}
	setMirrorStatus(resp, s.o.Mirrors.Create(r.ctx, req.MirrorName, configs))
	return resp, nil
}
