package kafka

// registerGroups adds the consumer group keys.
func (s *Server) registerGroups() {}
