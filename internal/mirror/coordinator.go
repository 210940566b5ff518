package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
)

// ErrSourceUnreachable: the source did not answer, so nothing was stored.
var ErrSourceUnreachable = errors.New("source unreachable")

// Coordinator validates mirror commands before they reach the controller, and
// answers questions about mirrors. It looks at the metadata and, for create and
// start, at the source; the controller decides, and checks again what must hold
// at the moment of the change.
type Coordinator struct {
	m *Manager
	// may is asked for the topics of a command before anything is done.
	may func(topics []string) error
}

// NewCoordinator makes the Coordinator that belongs to m.
func NewCoordinator(m *Manager) *Coordinator {
	return &Coordinator{m: m, may: func([]string) error { return nil }}
}

// For is the Coordinator for somebody who may not do everything: may is asked for
// the topics of a command, and its error refuses the command as a whole.
func (c *Coordinator) For(may func(topics []string) error) *Coordinator {
	return &Coordinator{m: c.m, may: may}
}

// TopicOutcome is what became of one topic of a command (P16).
type TopicOutcome struct {
	Name string
	Err  error
}

// Create makes a mirror (9.1). Everything its tasks need of the source is tried
// first; whatever fails, nothing is stored (W1).
func (c *Coordinator) Create(ctx context.Context, name string, configs map[string]string) error {
	if err := metadata.ValidateMirrorName(name); err != nil {
		return fmt.Errorf("%w: %w", controller.ErrInvalidMirrorName, err)
	}
	if c.image().Mirror(name) != nil {
		return fmt.Errorf("%w: %s", controller.ErrMirrorExists, name)
	}
	if strings.TrimSpace(configs[metadata.MirrorBootstrapServers]) == "" {
		return fmt.Errorf("mirror %s: %w: %s is required", name, controller.ErrInvalidRequest, metadata.MirrorBootstrapServers)
	}
	if _, given := configs[metadata.MirrorSourceClusterID]; given {
		return fmt.Errorf("mirror %s: %w: %s: is learnt from the source and cannot be set", name, controller.ErrInvalidConfig, metadata.MirrorSourceClusterID)
	}
	canonical, ignored, err := metadata.ValidateMirrorConfigs(configs)
	if err != nil {
		return fmt.Errorf("mirror %s: %w", name, err)
	}
	if len(ignored) > 0 {
		c.m.o.Logger.Warn("mirror settings have no meaning here and are ignored", "mirror", name, "keys", ignored)
	}
	mirror := &metadata.Mirror{Name: name, Configs: canonical}
	err = c.withSource(ctx, mirror, true, func(ctx context.Context, cluster Source) error {
		id, err := cluster.ID(ctx)
		if err != nil {
			return err
		}
		if id == c.m.o.ClusterID {
			return fmt.Errorf("%w: the source is this cluster itself (%s)", controller.ErrInvalidRequest, id)
		}
		canonical[metadata.MirrorSourceClusterID] = id
		return nil
	})
	if err != nil {
		return fmt.Errorf("mirror %s: %w", name, err)
	}
	return c.m.o.Controller.CreateMirror(ctx, name, canonical)
}

func (c *Coordinator) image() *metadata.Image { return c.m.o.Controller.Image() }

// withSource runs f with the source of a mirror: the connection that the mirror
// has already, or one of its own. Where new settings of the mirror close the one it has
// meanwhile, f runs again with the next.
func (c *Coordinator) withSource(ctx context.Context, mirror *metadata.Mirror, own bool, f func(context.Context, Source) error) error {
	ctx, cancel := c.m.sched.within(ctx, requestTimeout(mirror))
	defer cancel()
	var cluster Source
	if p := c.m.peer(mirror.Name); p != nil && !own {
		cluster, _ = p.source()
	}
	if cluster == nil {
		opened, err := c.m.o.Open(mirror.Configs, source.Options{
			Logger: c.m.o.Logger, ClientID: "lockstep-mirror", Dial: c.m.o.dial(mirror.Name),
		})
		if err != nil {
			return fmt.Errorf("%w: %w", controller.ErrInvalidConfig, err)
		}
		defer opened.Close()
		cluster = opened
	}
	err := f(ctx, cluster)
	for p := c.m.peer(mirror.Name); p != nil && !own && source.IsClosed(err) && ctx.Err() == nil; {
		next, _ := p.source()
		if next == nil || next == cluster {
			break
		}
		cluster = next
		err = f(ctx, cluster)
	}
	return classify(err)
}

// classify gives an error of a source call the sentinel that its code hangs on.
// Its text is the source package's: one line with peer, side and cause.
func classify(err error) error {
	if err == nil {
		return nil
	}
	for _, known := range []error{controller.ErrInvalidRequest, controller.ErrInvalidConfig, controller.ErrUnknownMirror, controller.ErrMirrorStates} {
		if errors.Is(err, known) {
			return err
		}
	}
	switch source.ErrorClass(err) {
	case source.Unreachable:
		return &sourceError{ErrSourceUnreachable, err}
	case source.Authentication, source.TLS:
		return &sourceError{controller.ErrInvalidConfig, err}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &sourceError{ErrSourceUnreachable, err}
	}
	return err
}

// sourceError is an error of the source under one of our sentinels. The text
// stays the cause's alone, because it says the same already.
type sourceError struct{ kind, err error }

func (e *sourceError) Error() string   { return e.err.Error() }
func (e *sourceError) Unwrap() []error { return []error{e.kind, e.err} }

func (c *Coordinator) mirror(name string) (*metadata.Mirror, error) {
	if m := c.image().Mirror(name); m != nil {
		return m, nil
	}
	return nil, fmt.Errorf("%w: %s", controller.ErrUnknownMirror, name)
}

// Delete removes a mirror all of whose topics are STOPPED (9.17). Their last
// mirrored epochs go with it: a later failback copies everything anew (W64).
func (c *Coordinator) Delete(ctx context.Context, name string) error {
	img := c.image()
	if _, err := c.mirror(name); err != nil {
		return err
	}
	return c.m.o.Controller.DeleteMirror(ctx, name, img.Revision)
}

// Stop fails topics over (9.14). It works from every state, and needs nothing of the
// source; one that answers is asked for the offsets of its groups once more before the
// stop is recorded. STOPPED is reached after it returns (W58, W59).
func (c *Coordinator) Stop(ctx context.Context, mirror string, topics, patterns []string) ([]TopicOutcome, error) {
	// No optimistic check: a stop is right whatever happened meanwhile.
	return c.set(ctx, mirror, topics, patterns, metadata.DesiredStopped, -1)
}

// Pause stops fetching (9.13); the topics stay attached and read-only.
func (c *Coordinator) Pause(ctx context.Context, mirror string, topics, patterns []string) ([]TopicOutcome, error) {
	return c.set(ctx, mirror, topics, patterns, metadata.DesiredPaused, c.image().Revision)
}

// Resume goes on with paused topics at their log end (9.13).
func (c *Coordinator) Resume(ctx context.Context, mirror string, topics, patterns []string) ([]TopicOutcome, error) {
	return c.set(ctx, mirror, topics, patterns, metadata.DesiredMirroring, c.image().Revision)
}

// Recover takes FAILED partitions out of FAILED (S20). No topic and no pattern
// means all topics of the mirror; those without a FAILED partition are then
// left out silently, and so are those that only a pattern found.
func (c *Coordinator) Recover(ctx context.Context, mirror string, topics, patterns []string) ([]TopicOutcome, error) {
	m, err := c.mirror(mirror)
	if err != nil {
		return nil, err
	}
	if len(topics) == 0 && len(patterns) == 0 {
		patterns = []string{".*"}
	}
	names, err := c.expand(m, topics, patterns, func(t *metadata.Topic) bool {
		return slices.ContainsFunc(t.Partitions, func(p *metadata.Partition) bool {
			return t.MirrorState(p) == metadata.StateFailed
		})
	})
	if err != nil || len(names) == 0 {
		return nil, err
	}
	if err := c.may(names); err != nil {
		return nil, err
	}
	results, err := c.m.o.Controller.RecoverMirrorTopics(ctx, mirror, names)
	return outcomes(results), err
}

func (c *Coordinator) set(ctx context.Context, mirror string, topics, patterns []string, desired metadata.Desired, validation int64) ([]TopicOutcome, error) {
	m, err := c.mirror(mirror)
	if err != nil {
		return nil, err
	}
	names, err := c.expand(m, topics, patterns, func(t *metadata.Topic) bool {
		// A pattern means what the command can still do something about; a topic
		// that is stopped is not paused or resumed by ".*".
		return desired == metadata.DesiredStopped || t.Attachment().Desired != metadata.DesiredStopped
	})
	if err == nil {
		err = c.may(names)
	}
	if err != nil {
		return nil, err
	}
	r := controller.SetMirrorTopics{Mirror: mirror, Topics: names, Desired: desired, Validation: validation}
	if desired == metadata.DesiredStopped {
		r.Patterns = append(r.Patterns, patterns...)
		for _, name := range topics {
			r.Patterns = append(r.Patterns, metadata.LiteralPattern(name))
		}
	}
	if len(r.Topics) == 0 && len(r.Patterns) == 0 {
		return nil, nil
	}
	if p := c.m.peer(mirror); desired == metadata.DesiredStopped && p != nil {
		p.drainGroups(ctx, m, slices.DeleteFunc(mirroredTopics(c.image(), mirror), func(t *metadata.Topic) bool {
			return !slices.Contains(names, t.Name)
		}))
	}
	results, err := c.m.o.Controller.SetMirrorTopics(ctx, r)
	return outcomes(results), err
}

// expand lists the topics of a mirror that are named or match a pattern (K3),
// sorted. Names are kept as they are: the controller says what is wrong with
// them. A pattern finds only topics of this mirror that pass the filter.
func (c *Coordinator) expand(m *metadata.Mirror, topics, patterns []string, filter func(*metadata.Topic) bool) ([]string, error) {
	if err := checkPatterns(patterns); err != nil {
		return nil, err
	}
	re, err := metadata.CompileRegexList(metadata.JoinList(patterns))
	if err != nil {
		return nil, err
	}
	seen := make(map[string]bool)
	for _, name := range topics {
		if seen[name] {
			return nil, fmt.Errorf("%w: topic %s stands twice", controller.ErrInvalidRequest, name)
		}
		seen[name] = true
	}
	for _, t := range c.image().MirrorTopics(m.Name) {
		if re.MatchString(t.Name) && filter(t) {
			seen[t.Name] = true
		}
	}
	return slices.Sorted(maps.Keys(seen)), nil
}

func checkPatterns(patterns []string) error {
	for _, p := range patterns {
		if strings.TrimSpace(p) == "" || strings.Contains(p, ",") {
			return fmt.Errorf("%w: pattern %q: must not be empty nor contain a comma", controller.ErrInvalidConfig, p)
		}
	}
	return nil
}

func outcomes(results []controller.TopicResult) []TopicOutcome {
	out := make([]TopicOutcome, len(results))
	for i, r := range results {
		out[i] = TopicOutcome{Name: r.Name, Err: r.Err}
	}
	slices.SortFunc(out, func(a, b TopicOutcome) int { return strings.Compare(a.Name, b.Name) })
	return out
}
