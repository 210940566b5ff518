package group

// State is where a group is in its life. The drawing is in the package comment.
type State int8

const (
	// Empty: no members, though perhaps offsets. Where every group begins.
	Empty State = iota
	// PreparingRebalance: collecting the members of the next generation.
	PreparingRebalance
	// CompletingRebalance: the generation is fixed, the leader's assignment awaited.
	CompletingRebalance
	// Stable: every member has its assignment.
	Stable
	// Dead: removed, or being removed.
	Dead

	// Assigning and Reconciling are shown of consumer groups: the target is out
	// of date; members are on their way to it.
	Assigning
	Reconciling
)

// String is the name as Kafka's clients print and filter by it.
func (s State) String() string {
	switch s {
	case Empty:
		return "Empty"
	case PreparingRebalance:
		return "PreparingRebalance"
	case CompletingRebalance:
		return "CompletingRebalance"
	case Stable:
		return "Stable"
	case Assigning:
		return "Assigning"
	case Reconciling:
		return "Reconciling"
	default:
		return "Dead"
	}
}
