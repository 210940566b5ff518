package kafka

import (
	"github.com/lockstep-kafka/lockstep/internal/authz"
)

// allowed tells whether the client of r may do op on a resource; true when there
// is no authorizer. A refusal is counted once per request: for a resource that is
// only looked at to see whether it may be shown, use visible.
func (s *Server) allowed(r *request, op authz.Operation, res authz.ResourceType, name string) bool {
	ok := s.visible(r, op, res, name)
	s.note(r, op, res, name, ok)
	if ok {
		return true
	}
	if !r.denied {
		r.denied = true
		s.metrics.denied.Inc()
	}
	return false
}

// allowedOr is allowed where another right, which the client has or has not, does
// as well.
func (s *Server) allowedOr(r *request, other bool, op authz.Operation, res authz.ResourceType, name string) bool {
	if other {
		s.note(r, op, res, name, true)
		return true
	}
	return s.allowed(r, op, res, name)
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

// allowedTopic is allowed for a topic.
func (s *Server) allowedTopic(r *request, op authz.Operation, name string) bool {
	return s.allowed(r, op, authz.Topic, name)
}

// allowedIdempotent is what an idempotent producer without transactions needs:
// the right of the cluster, or to write to any topic (KIP-679).
func (s *Server) allowedIdempotent(r *request) bool {
	if s.o.Authorizer == nil || s.visible(r, authz.IdempotentWrite, authz.Cluster, authz.ClusterName) {
		return true
	}
	return s.o.Authorizer.AllowedByType(s.o.Controller.Image(), r.principal(), r.conn.ip, authz.Write, authz.Topic) ||
		s.allowedCluster(r, authz.IdempotentWrite) // false, and counted
}

// operations is what an answer tells of what the client may do with a resource
// (KIP-430).
func (s *Server) operations(r *request, res authz.ResourceType, name string) int32 {
	if s.o.Authorizer == nil {
		return int32(res.Operations())
	}
	return int32(s.o.Authorizer.Operations(s.o.Controller.Image(), r.principal(), r.conn.ip, res, name))
}

// clusterOperations is operations of the cluster, none for a client that may not
// describe it.
func (s *Server) clusterOperations(r *request) int32 {
	if !s.allowedCluster(r, authz.Describe) {
		return 0
	}
	return s.operations(r, authz.Cluster, authz.ClusterName)
}
