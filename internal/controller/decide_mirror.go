package controller

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func requireMirror(img *metadata.Image, name string) error {
	if img.Mirror(name) == nil {
		return fmt.Errorf("%w: %s", ErrUnknownMirror, name)
	}
	return nil
}

func decideCreateMirror(img *metadata.Image, c createMirror) ([]Change, error) {
	if err := metadata.ValidateMirrorName(c.Name); err != nil {
		return nil, fmt.Errorf("create mirror: %w: %w", ErrInvalidMirrorName, err)
	}
	if img.Mirror(c.Name) != nil {
		return nil, fmt.Errorf("create mirror: %w: %s", ErrMirrorExists, c.Name)
	}
	// A mirror is its configs (M1), so one without an address is no mirror: a
	// bad request, and not a bad value (5.3, key 94).
	if strings.TrimSpace(c.Configs[metadata.MirrorBootstrapServers]) == "" {
		return nil, fmt.Errorf("create mirror %s: %w: %s is required", c.Name, ErrInvalidRequest, metadata.MirrorBootstrapServers)
	}
	configs, _, err := metadata.ValidateMirrorConfigs(c.Configs)
	if err != nil {
		return nil, fmt.Errorf("create mirror %s: %w", c.Name, err)
	}
	if id := configs[metadata.MirrorSourceClusterID]; id != "" && id == img.ClusterID {
		return nil, fmt.Errorf("create mirror %s: %w: the source is this cluster itself (%s)", c.Name, ErrInvalidRequest, id)
	}
	return []Change{putMirror{&metadata.Mirror{Name: c.Name, Configs: configs}}}, nil
}

// decideRemoveMirror makes the mirror's topics ordinary ones and forgets their
// states and LMEs (9.17); the ACLs that it has copied are this cluster's own from
// then on. The mirror's own record goes last: until then the command can be
// repeated, and the name is not free, so that no stale LME can be served under a
// new mirror of that name (O21).
func decideRemoveMirror(img *metadata.Image, c removeMirror) ([]Change, error) {
	if err := requireMirror(img, c.Name); err != nil {
		return nil, fmt.Errorf("delete mirror: %w", err)
	}
	topics := img.MirrorTopics(c.Name)
	for _, t := range topics {
		if d := t.Attachment().Desired; d != metadata.DesiredStopped {
			return nil, fmt.Errorf("delete mirror %s: %w: topic %s is %s there; stop it first", c.Name, ErrMirrorNotEmpty, t.Name, d)
		}
	}
	for _, t := range topics {
		for _, p := range t.Partitions {
			if s := t.MirrorState(p); s != metadata.StateStopped {
				return nil, fmt.Errorf("delete mirror %s: %w: %s-%d is %s, not yet STOPPED", c.Name, ErrMirrorStates, t.Name, p.Index, s)
			}
		}
	}
	if err := checkValidation(topics, c.Validation); err != nil {
		return nil, fmt.Errorf("delete mirror %s: %w", c.Name, err)
	}
	var changes []Change
	for _, t := range topics {
		changes = append(changes, setAttachment{ID: t.ID})
		changes = append(changes, forgetStates(t)...)
	}
	changes = append(changes, keepACLs(img, c.Name)...)
	return append(changes, deleteMirror{c.Name}), nil
}

// checkValidation is the optimistic check of P14: nobody changed an attachment
// after the caller looked.
func checkValidation(topics []*metadata.Topic, validation int64) error {
	if validation < 0 {
		return nil
	}
	for _, t := range topics {
		if t.MirrorRevision > validation {
			return fmt.Errorf("%w: topic %s was changed at %d, after the caller looked at %d", ErrMirrorStates, t.Name, t.MirrorRevision, validation)
		}
	}
	return nil
}

// checkNames refuses a repeated topic (P3) and answers the topics that exist.
func checkNames(img *metadata.Image, names []string) ([]*metadata.Topic, error) {
	seen := make(map[string]bool, len(names))
	var topics []*metadata.Topic
	for _, name := range names {
		if seen[name] {
			return nil, fmt.Errorf("%w: topic %s stands twice", ErrInvalidRequest, name)
		}
		seen[name] = true
		if t := img.Topic(name); t != nil {
			topics = append(topics, t)
		}
	}
	return topics, nil
}

func forgetStates(t *metadata.Topic) []Change {
	var changes []Change
	for _, p := range t.Partitions {
		if p.Mirror != nil {
			changes = append(changes, deleteState{t.ID, p.Index})
		}
	}
	return changes
}

// attach sets mirror.name, also to the value it has: the new revision makes every
// leader look again (S20).
func attach(t *metadata.Topic, mirror string, desired metadata.Desired) Change {
	return setAttachment{ID: t.ID, Value: metadata.Attachment{Mirror: mirror, Desired: desired}.Value()}
}

// decideStartHead checks a start as a whole, merges its patterns into the mirror
// (W5), and stops the topics that a new exclude pattern names (W7).
func decideStartHead(img *metadata.Image, c startHead) ([]Change, error) {
	m := img.Mirror(c.Mirror)
	if m == nil {
		return nil, fmt.Errorf("start mirror topics: %w: %s", ErrUnknownMirror, c.Mirror)
	}
	names := make([]string, len(c.Topics))
	for i, t := range c.Topics {
		names[i] = t.Name
	}
	topics, err := checkNames(img, names)
	if err == nil {
		err = checkValidation(topics, c.Validation)
	}
	if err != nil {
		return nil, fmt.Errorf("start topics of mirror %s: %w", m.Name, err)
	}
	changes, err := mergePatterns(m, c.Include, c.Exclude)
	if err != nil {
		return nil, fmt.Errorf("start topics of mirror %s: %w", m.Name, err)
	}
	excluded, err := metadata.CompileRegexList(metadata.JoinList(c.Exclude))
	if err != nil {
		return nil, fmt.Errorf("start topics of mirror %s: %w", m.Name, err)
	}
	for _, t := range img.MirrorTopics(m.Name) {
		if excluded.MatchString(t.Name) && t.Attachment().Desired != metadata.DesiredStopped {
			changes = append(changes, stopTopic(t, m.Name)...)
		}
	}
	return changes, nil
}

// mergePatterns adds patterns to the mirror's filters (W5). It starts from the
// values in force: the default of topics.exclude must survive the first start,
// or the source's internal topics would be mirrored (B5).
func mergePatterns(m *metadata.Mirror, include, exclude []string) ([]Change, error) {
	for _, p := range slices.Concat(include, exclude) {
		if len(metadata.SplitList(p)) != 1 || strings.Contains(p, ",") {
			return nil, fmt.Errorf("%w: pattern %q: must not be empty nor contain a comma (C2)", ErrInvalidConfig, p)
		}
		if _, err := metadata.CompileRegexList(p); err != nil {
			return nil, err
		}
	}
	inc := metadata.SplitList(m.Config(metadata.MirrorTopicsInclude))
	exc := metadata.SplitList(m.Config(metadata.MirrorTopicsExclude))
	for _, p := range include {
		inc, exc = move(p, inc, exc)
	}
	for _, p := range exclude {
		exc, inc = move(p, exc, inc)
	}
	return setFilters(m, inc, exc), nil
}

// move adds a pattern to one list and takes it out of the other.
func move(pattern string, into, outOf []string) ([]string, []string) {
	pattern = strings.TrimSpace(pattern)
	if !slices.Contains(into, pattern) {
		into = append(into, pattern)
	}
	return into, without(outOf, pattern)
}

func without(list []string, pattern string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return s == pattern })
}

// setFilters is no change if the filters in force are these already.
func setFilters(m *metadata.Mirror, include, exclude []string) []Change {
	next := *m
	next.Configs = maps.Clone(m.Configs)
	for name, list := range map[string][]string{
		metadata.MirrorTopicsInclude: include, metadata.MirrorTopicsExclude: exclude,
	} {
		if value := metadata.JoinList(list); value != metadata.JoinList(metadata.SplitList(m.Config(name))) {
			next.Configs[name] = value
		}
	}
	if maps.Equal(next.Configs, m.Configs) {
		return nil
	}
	return []Change{putMirror{&next}}
}

// What a start may find (8.4): where the topic is asked to run already, running
// partitions are left alone; where it was stopped, the stop must be complete, or
// the caller repeats (O20).
var (
	startWhileStopped   = states(metadata.StateUnknown, metadata.StateStopped, metadata.StateFailed)
	startWhileMirroring = states(metadata.StateUnknown, metadata.StateStopped, metadata.StateFailed,
		metadata.StatePreparing, metadata.StateEpochFencing, metadata.StateULERecovery, metadata.StateMirroring)
	pauseFrom = states(metadata.StateMirroring, metadata.StateEpochFencing, metadata.StateULERecovery, metadata.StatePaused)
	// A partition that the source grew while the topic was paused has never been
	// started; resuming starts it.
	resumeFrom = states(metadata.StatePaused, metadata.StateUnknown)
)

func states(list ...metadata.MirrorState) []metadata.MirrorState { return list }

func requireStates(t *metadata.Topic, allowed []metadata.MirrorState) error {
	for _, p := range t.Partitions {
		if s := t.MirrorState(p); !slices.Contains(allowed, s) {
			return fmt.Errorf("%w: partition %d is %s, allowed are %v", ErrMirrorStates, p.Index, s, allowed)
		}
	}
	return nil
}

// decideStartTopic attaches one topic (W6), creating it if need be.
func decideStartTopic(img *metadata.Image, c startTopic) ([]Change, error) {
	if err := requireMirror(img, c.Mirror); err != nil {
		return nil, err
	}
	changes, err := startOne(img, c)
	if err != nil {
		return nil, fmt.Errorf("start %s in mirror %s: %w", c.Topic.Name, c.Mirror, err)
	}
	return changes, nil
}

func startOne(img *metadata.Image, c startTopic) ([]Change, error) {
	t := img.Topic(c.Topic.Name)
	if t == nil {
		return createMirrorTopic(img, c)
	}
	if err := CheckStart(t, c.Mirror, c.Topic.ID); err != nil {
		return nil, err
	}
	if a := t.Attachment(); a.Desired != metadata.DesiredNone && a.Mirror == c.Mirror {
		return append(mirrorChanges(img, t, c), restartFailed(t)...), nil
	}
	// New in this mirror: what another one recorded, or left behind when its
	// deletion was cut short, is not this mirror's history (W61).
	return append(mirrorChanges(img, t, c), forgetStates(t)...), nil
}

// CheckStart tells why a topic of ours cannot be started in a mirror whose source has it
// with an id; nil: it can.
func CheckStart(t *metadata.Topic, mirror string, id metadata.TopicID) error {
	if t.Internal {
		return fmt.Errorf("%w: it is an internal topic of this cluster", ErrInvalidRequest)
	}
	if !t.ID.IsTopicOf(id) {
		return fmt.Errorf("%w: here %s, on the source %s; delete it here to mirror it (W15)", ErrInconsistentTopicID, t.ID, id)
	}
	a := t.Attachment()
	switch {
	case a.Desired == metadata.DesiredNone:
	case a.Mirror != mirror:
		if !t.Stopped() {
			return fmt.Errorf("%w: it is %s in %s", ErrTopicInOtherMirror, a.Desired, a.Mirror)
		}
	case a.Desired == metadata.DesiredPaused:
		return fmt.Errorf("%w: it is paused; resume it", ErrNotStopped)
	case a.Desired == metadata.DesiredMirroring:
		return requireStates(t, startWhileMirroring)
	default:
		return requireStates(t, startWhileStopped)
	}
	return nil
}

// mirrorChanges attaches a topic. ELRs end before that: a mirror has none.
func mirrorChanges(img *metadata.Image, t *metadata.Topic, c startTopic) []Change {
	next := *t
	next.MirrorName = metadata.Attachment{Mirror: c.Mirror, Desired: metadata.DesiredMirroring}.Value()
	return append(replicasOf(img, c.Defaults).recheckELR(nil, &next), attach(t, c.Mirror, metadata.DesiredMirroring))
}

// createMirrorTopic gives the topic the source's id, partition count and configs
// (W12). Every replica must be alive, so that the first gate can be passed (W14).
func createMirrorTopic(img *metadata.Image, c startTopic) ([]Change, error) {
	if err := checkNewTopic(img, c.Topic.Name, c.Topic.ID); err != nil {
		return nil, err
	}
	if c.Topic.Partitions <= 0 {
		return nil, nil // left to a later refresh, which will know the count
	}
	if c.Topic.Partitions > c.Defaults.MaxPartitions {
		return nil, fmt.Errorf("%w: %d, at most %d", ErrInvalidPartitions, c.Topic.Partitions, c.Defaults.MaxPartitions)
	}
	rf := c.Defaults.ReplicationFactor
	if alive := living(img); int(rf) > alive {
		return nil, fmt.Errorf("%w: %d, there are %d living brokers", ErrInvalidReplicationFactor, rf, alive)
	}
	replicas, err := place(img, c.Topic.Name, nil, c.Topic.Partitions, rf)
	if err != nil {
		return nil, err
	}
	id := c.Topic.ID
	if id.IsZero() {
		id = c.NewID.WithoutSource()
	}
	configs, _ := sourceConfigs(c.Topic.Configs)
	changes := []Change{setAttachment{ID: id, Value: metadata.Attachment{Mirror: c.Mirror, Desired: metadata.DesiredMirroring}.Value()}}
	parts, err := newTopic(img, id, c.Topic.Name, false, replicas, configs, img.Lives)
	return append(changes, parts...), err
}

// restartFailed sends FAILED partitions to PREPARING with a clean slate (S20).
func restartFailed(t *metadata.Topic) []Change {
	var changes []Change
	for _, p := range t.Partitions {
		if m := t.MirrorPartition(p); m != nil && m.State == metadata.StateFailed {
			next := *m
			enter(&next, metadata.StatePreparing)
			clearFailure(&next)
			next.StateEpoch++
			changes = append(changes, putState{t.ID, p.Index, &next})
		}
	}
	return changes
}

// decideSetHead checks a stop, pause or resume as a whole, and keeps the patterns
// of a stop away from discovery (9.14).
func decideSetHead(img *metadata.Image, c setHead) ([]Change, error) {
	m := img.Mirror(c.Mirror)
	if m == nil {
		return nil, fmt.Errorf("set mirror topics: %w: %s", ErrUnknownMirror, c.Mirror)
	}
	switch c.Desired {
	case metadata.DesiredMirroring, metadata.DesiredPaused, metadata.DesiredStopped:
	default:
		return nil, fmt.Errorf("set topics of mirror %s: %w: desired state %s", m.Name, ErrInvalidRequest, c.Desired)
	}
	topics, err := checkNames(img, c.Topics)
	if err == nil {
		err = checkValidation(topics, c.Validation)
	}
	if err != nil {
		return nil, fmt.Errorf("set topics of mirror %s: %w", m.Name, err)
	}
	if c.Desired != metadata.DesiredStopped {
		return nil, nil
	}
	inc := metadata.SplitList(m.Config(metadata.MirrorTopicsInclude))
	exc := metadata.SplitList(m.Config(metadata.MirrorTopicsExclude))
	for _, p := range c.Patterns {
		if _, err := mergePatterns(m, nil, []string{p}); err != nil {
			return nil, fmt.Errorf("stop topics of mirror %s: %w", m.Name, err)
		}
		p = strings.TrimSpace(p)
		if slices.Contains(inc, p) {
			inc = without(inc, p)
		} else if !slices.Contains(exc, p) {
			exc = append(exc, p)
		}
	}
	return setFilters(m, inc, exc), nil
}

// decideSetTopic stops, pauses or resumes one topic. A stop is allowed from every
// state: a disaster is its purpose (8.4, O1).
func decideSetTopic(img *metadata.Image, c setTopic) ([]Change, error) {
	t, err := mirrorTopic(img, c.Mirror, c.Topic)
	if err != nil {
		return nil, err
	}
	a := t.Attachment()
	if err := checkSet(t, a.Desired, c.Desired); err != nil {
		return nil, fmt.Errorf("%s in mirror %s: %w", t.Name, c.Mirror, err)
	}
	if a.Desired == c.Desired && arrived(t, c.Desired) {
		return nil, nil
	}
	if c.Desired == metadata.DesiredStopped {
		return stopTopic(t, c.Mirror), nil
	}
	return []Change{attach(t, c.Mirror, c.Desired)}, nil
}

// stopTopic asks for a topic to be STOPPED, and takes its partitions to STOPPING at once
// (S9 rule 1): the leaders would ask for just that, each in transactions of its own, and a
// failover of thousands of partitions would wait for them. Who leads begins with 9.14 when
// it sees the state. Those that only their leader can stop are left to it: in states other
// than these it may be about to cut its log, and nothing is cut any more once STOPPING is
// recorded (GI-13).
func stopTopic(t *metadata.Topic, mirror string) []Change {
	changes := []Change{attach(t, mirror, metadata.DesiredStopped)}
	for _, p := range t.Partitions {
		m := t.MirrorPartition(p)
		if m == nil || m.StateEpoch == math.MaxInt32 {
			continue
		}
		switch {
		case m.State == metadata.StateMirroring, m.State == metadata.StatePaused:
		case m.State == metadata.StateFailed && m.PreviousState == metadata.StateMirroring: // its source is gone
		default:
			continue
		}
		next := *m
		enter(&next, metadata.StateStopping)
		next.LeaderEpoch = max(next.LeaderEpoch, p.LeaderEpoch) // S6, in the leader's place
		next.StateEpoch++
		changes = append(changes, putState{t.ID, p.Index, &next})
	}
	return changes
}

func checkSet(t *metadata.Topic, cur, want metadata.Desired) error {
	switch want {
	case metadata.DesiredPaused:
		switch cur {
		case metadata.DesiredStopped:
			return ErrBeingStopped
		case metadata.DesiredMirroring:
			return requireStates(t, pauseFrom)
		}
	case metadata.DesiredMirroring:
		switch cur {
		case metadata.DesiredStopped:
			return ErrNotPaused
		case metadata.DesiredPaused:
			return requireStates(t, resumeFrom)
		}
	}
	return nil
}

// arrived reports that asking again would change nothing. A resume of what is
// mirroring already is left alone whatever its partitions do.
func arrived(t *metadata.Topic, desired metadata.Desired) bool {
	switch desired {
	case metadata.DesiredStopped:
		return t.Stopped()
	case metadata.DesiredPaused:
		return requireStates(t, states(metadata.StatePaused)) == nil
	}
	return true
}

// mirrorTopic is a topic that is attached to a mirror.
func mirrorTopic(img *metadata.Image, mirror, topic string) (*metadata.Topic, error) {
	t := img.Topic(topic)
	if t == nil {
		return nil, fmt.Errorf("mirror %s: %w: %s", mirror, ErrUnknownTopic, topic)
	}
	if t.Attachment().Mirror != mirror {
		return nil, fmt.Errorf("mirror %s: %w: %s", mirror, ErrTopicNotInMirror, topic)
	}
	return t, nil
}

// decideRecoverTopic takes FAILED partitions out of FAILED with a clean slate:
// back to where they were, or through PREPARING after a failure that no retry
// can mend (S20, 9.16), and makes every leader look again.
func decideRecoverTopic(img *metadata.Image, c recoverTopic) ([]Change, error) {
	t, err := mirrorTopic(img, c.Mirror, c.Topic)
	if err != nil {
		return nil, err
	}
	changes := []Change{setAttachment{ID: t.ID, Value: t.MirrorName}}
	for _, p := range t.Partitions {
		m := t.MirrorPartition(p)
		if m == nil || m.State != metadata.StateFailed {
			continue
		}
		target := m.RetryTarget()
		if m.RetryAttempt == nonRetryable {
			target = metadata.StatePreparing
		}
		next := *m
		enter(&next, target)
		clearFailure(&next)
		next.StateEpoch++
		changes = append(changes, putState{t.ID, p.Index, &next})
	}
	if len(changes) > 1 {
		return changes, nil
	}
	if c.All {
		return nil, nil
	}
	return nil, fmt.Errorf("recover %s in mirror %s: %w: no partition is FAILED", t.Name, c.Mirror, ErrMirrorStates)
}
