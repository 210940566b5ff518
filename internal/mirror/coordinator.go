package mirror

// Coordinator validates mirror commands before they reach the controller, and
// answers questions about mirrors.
type Coordinator struct{ m *Manager }

// NewCoordinator makes the Coordinator that belongs to m.
func NewCoordinator(m *Manager) *Coordinator { return &Coordinator{m: m} }
