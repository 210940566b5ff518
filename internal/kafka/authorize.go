package kafka

import (
	"github.com/lockstep-kafka/lockstep/internal/authz"
)

// allowed tells whether the client of r may do op on a resource; true when there
// is no authorizer. A refusal is counted once per request: for a resource that is
// only looked at to see whether it may be shown, use visible.
func (s *Server) allowed(r *request, op authz.Operation, res authz.ResourceType, name string) bool {
	if s.visible(r, op, res, name) {
		return true
	}
	if !r.denied {
		r.denied = true
		s.metrics.denied.Inc()
	}
	return false
}

// allowedCluster is allowed for the cluster as a resource.
func (s *Server) allowedCluster(r *request, op authz.Operation) bool {
	return s.allowed(r, op, authz.Cluster, authz.ClusterName)
}

// visible is allowed for answers that leave out what a client may not see: that
// is no refusal.
func (s *Server) visible(r *request, op authz.Operation, res authz.ResourceType, name string) bool {
	if s.o.Authorizer == nil {
		return true
	}
	return s.o.Authorizer.Allowed(s.o.Controller.Image(), r.principal(), r.conn.ip, op, res, name)
}
