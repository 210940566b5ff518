package kafka

// registerMirrors adds the keys of cluster mirroring.
func (s *Server) registerMirrors() {}
