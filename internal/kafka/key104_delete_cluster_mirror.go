package kafka

import (
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// DeleteClusterMirror (v0)
//
// Behavior:
//   - Removes a mirror all of whose topics are STOPPED, else 143 or 145. Its
//     topics become ordinary ones. Their last mirrored epochs go with it, so a
//     later failback copies everything anew.
//   - Needs Delete on the mirror: 144 (DEC-10).
//
// Version notes:
//   - v0: KIP-1279
func (s *Server) registerDeleteClusterMirror() { s.register(104, 0, 0, s.deleteClusterMirror) }

func (s *Server) deleteClusterMirror(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*wire.DeleteClusterMirrorRequest)
	resp := new(wire.DeleteClusterMirrorResponse)
	if !s.allowed(r, authz.Delete, authz.ClusterMirror, req.MirrorName) {
		setMirrorStatus(resp, errMirrorDenied)
		return resp, nil
	}
	setMirrorStatus(resp, s.o.Mirrors.Delete(r.ctx, req.MirrorName))
	return resp, nil
}
