package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
)

// StartRequest asks to mirror topics: those named, and those of the source that
// match a pattern.
type StartRequest struct {
	Mirror           string
	Topics           []string
	Include, Exclude []string
}

// Start attaches topics to a mirror (9.2). It answers for the topics that were
// found; no match is success, because the patterns are kept for discovery (W8).
func (c *Coordinator) Start(ctx context.Context, r StartRequest) ([]TopicOutcome, error) {
	m, err := c.mirror(r.Mirror)
	if err != nil {
		return nil, err
	}
	include, exclude, err := startFilters(m, r)
	if err == nil {
		err = c.may(r.Topics) // before the source is asked about them
	}
	if err != nil {
		return nil, err
	}
	var found []controller.MirrorTopic
	var out []TopicOutcome
	err = c.withSource(ctx, m, false, func(ctx context.Context, cluster Source) error {
		_, wanted, refused, err := c.startable(ctx, cluster, m, r, include, exclude)
		if err != nil {
			return err
		}
		out = refused
		found, refused, err = sourceTopics(ctx, cluster, m, wanted)
		out = append(out, refused...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("mirror %s: %w", r.Mirror, err)
	}
	start := controller.StartMirrorTopics{
		Mirror: r.Mirror, Topics: found, Include: slices.Clone(r.Include), Exclude: r.Exclude, Validation: c.image().Revision,
	}
	for _, name := range r.Topics {
		start.Include = append(start.Include, metadata.LiteralPattern(name)) // W5: "." is a dot
	}
	results, err := c.m.o.Controller.StartMirrorTopics(ctx, start)
	if err != nil {
		return nil, err
	}
	noteSkipped(c.m.o.Logger, r.Mirror, results)
	out = append(out, outcomes(results)...)
	slices.SortFunc(out, func(a, b TopicOutcome) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// startable are the topics of the source that a start is about, by name, and those that
// it names and that cannot be had. The client may start all of them.
func (c *Coordinator) startable(ctx context.Context, cluster Source, m *metadata.Mirror, r StartRequest, include, exclude *regexp.Regexp) (listing *source.Metadata, wanted []*source.Topic, refused []TopicOutcome, err error) {
	if listing, err = cluster.Metadata(ctx, nil); err != nil {
		return nil, nil, nil, err
	}
	if err := seeNamed(ctx, cluster, m, listing, r); err != nil {
		return nil, nil, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(listing.Topics)) {
		t := listing.Topics[name]
		if slices.Contains(r.Topics, t.Name) || t.Err == nil && !t.Internal && include.MatchString(t.Name) && !exclude.MatchString(t.Name) {
			wanted = append(wanted, t)
		}
	}
	for _, name := range r.Topics {
		t := listing.Topics[name]
		switch {
		case t == nil:
			refused = append(refused, TopicOutcome{name, fmt.Errorf("%w: the source does not have %s", controller.ErrUnknownTopic, name)})
		case t.Err != nil:
			refused = append(refused, TopicOutcome{name, fmt.Errorf("source topic %s: %w", name, t.Err)})
			wanted = slices.DeleteFunc(wanted, func(w *source.Topic) bool { return w == t })
		}
	}
	matched := make([]string, len(wanted))
	for i, t := range wanted {
		matched[i] = t.Name
	}
	return listing, wanted, refused, c.may(matched)
}

// plainName matches a pattern that can only mean one topic.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`)

// seeNamed asks for the topics that the request names and the listing lacks. A
// source leaves out of a listing what we have no right to see, but says so of a
// topic that is asked for by name: the operator learns of the missing right now,
// and not from a topic that never comes.
func seeNamed(ctx context.Context, cluster Source, m *metadata.Mirror, listing *source.Metadata, r StartRequest) error {
	var absent []string
	for _, name := range append(slices.Clone(r.Topics), r.Include...) {
		if name = strings.TrimSpace(name); listing.Topics[name] == nil && plainName.MatchString(name) {
			absent = append(absent, name)
		}
	}
	if len(absent) == 0 {
		return nil
	}
	asked, err := cluster.Metadata(ctx, absent)
	if err != nil {
		return err
	}
	for _, name := range absent {
		if t := asked.Topics[name]; t != nil && errors.Is(t.Err, kerr.TopicAuthorizationFailed) {
			return fmt.Errorf("source %s: topic %s: the mirror's principal lacks rights (READ, DESCRIBE and DESCRIBE_CONFIGS are needed): %w",
				m.Config(metadata.MirrorBootstrapServers), name, t.Err)
		}
	}
	return nil
}

// startFilters are the expressions that decide which source topics a start
// takes (W3), after its patterns have been merged into the mirror's (W5): what
// an earlier stop put into topics.exclude must not hinder its reversal.
func startFilters(m *metadata.Mirror, r StartRequest) (include, exclude *regexp.Regexp, err error) {
	if err := errors.Join(checkPatterns(r.Include), checkPatterns(r.Exclude)); err != nil {
		return nil, nil, err
	}
	if include, err = metadata.CompileRegexList(metadata.JoinList(r.Include)); err != nil {
		return nil, nil, err
	}
	freed := slices.Clone(r.Include)
	for i, name := range r.Topics {
		if slices.Contains(r.Topics[:i], name) {
			return nil, nil, fmt.Errorf("%w: topic %s stands twice", controller.ErrInvalidRequest, name)
		}
		freed = append(freed, metadata.LiteralPattern(name))
	}
	list := slices.DeleteFunc(metadata.SplitList(m.Config(metadata.MirrorTopicsExclude)), func(p string) bool {
		return slices.ContainsFunc(freed, func(f string) bool { return strings.TrimSpace(f) == p })
	})
	if exclude, err = metadata.CompileRegexList(metadata.JoinList(append(list, r.Exclude...))); err != nil {
		return nil, nil, err
	}
	for _, name := range r.Topics {
		if exclude.MatchString(name) {
			return nil, nil, fmt.Errorf("%w: topic %s matches %s of mirror %s or an exclude pattern of the request",
				controller.ErrInvalidRequest, name, metadata.MirrorTopicsExclude, m.Name)
		}
	}
	return include, exclude, nil
}

// sourceTopics describes topics as the controller creates them: the source's id
// and partition count, and the configs that belong here too, so that a compacted
// topic is compacted from its first record on. Topics whose configs the source
// refuses to tell are answered apart, and left to discovery (W4).
func sourceTopics(ctx context.Context, cluster Source, m *metadata.Mirror, topics []*source.Topic) (found []controller.MirrorTopic, refused []TopicOutcome, err error) {
	if len(topics) == 0 {
		return nil, nil, nil
	}
	exclude, err := metadata.CompileRegexList(m.Config(metadata.MirrorTopicPropsExclude))
	if err != nil {
		return nil, nil, err
	}
	slices.SortFunc(topics, func(a, b *source.Topic) int { return strings.Compare(a.Name, b.Name) })
	names := make([]string, len(topics))
	for i, t := range topics {
		names[i] = t.Name
	}
	configs, err := cluster.TopicConfigs(ctx, names)
	if err != nil {
		return nil, nil, err
	}
	for _, t := range topics {
		tc, ok := configs[t.Name]
		if !ok {
			continue // deleted between two requests
		}
		if tc.Err != nil {
			refused = append(refused, TopicOutcome{t.Name, fmt.Errorf("bootstrap %s: %w", m.Config(metadata.MirrorBootstrapServers), tc.Err)})
			continue
		}
		overrides := make(map[string]string)
		for _, e := range tc.Entries {
			// What we do not know the controller leaves out and names.
			if e.Dynamic && e.Value != nil && e.Name != metadata.MirrorNameConfig && !exclude.MatchString(e.Name) {
				overrides[e.Name] = *e.Value
			}
		}
		found = append(found, controller.MirrorTopic{Name: t.Name, ID: t.ID, Partitions: int32(len(t.Partitions)), Configs: overrides})
	}
	return found, refused, nil
}

func noteSkipped(log *slog.Logger, mirror string, results []controller.TopicResult) {
	for _, r := range results {
		if len(r.SkippedConfigs) > 0 {
			log.Warn("configs of the source topic are not known here and were left out", "mirror", mirror, "topic", r.Name, "configs", r.SkippedConfigs)
		}
	}
}

// discover starts source topics that match the mirror's patterns and are not
// attached to it in any form, and stops attached ones that an exclude pattern
// names (9.3, steps 7 and 8). A topic that was stopped is attached still, so
// discovery never starts it again.
//
// Patterns and attachments are those of one image, and a stop is refused where an
// attachment has changed since: a start takes its topics out of the patterns (W5).
func (p *peer) discover(ctx context.Context, cluster Source, listing *source.Metadata) error {
	img := p.m.o.Controller.Image()
	mirror := img.Mirror(p.name)
	if mirror == nil {
		return nil // being deleted
	}
	include, err := metadata.CompileRegexList(mirror.Config(metadata.MirrorTopicsInclude))
	if err != nil {
		return err
	}
	exclude, err := metadata.CompileRegexList(mirror.Config(metadata.MirrorTopicsExclude))
	if err != nil {
		return err
	}
	return errors.Join(
		p.discoverNew(ctx, cluster, mirror, img, listing, func(name string) bool {
			return include.MatchString(name) && !exclude.MatchString(name)
		}),
		p.stopExcluded(ctx, mirroredTopics(img, p.name), exclude, img.Revision),
	)
}

func (p *peer) discoverNew(ctx context.Context, cluster Source, mirror *metadata.Mirror, img *metadata.Image, listing *source.Metadata, match func(string) bool) error {
	var wanted []*source.Topic
	for _, name := range slices.Sorted(maps.Keys(listing.Topics)) {
		st := listing.Topics[name]
		if st.Err != nil || st.Internal || !match(st.Name) {
			continue
		}
		if t := img.Topic(st.Name); t != nil && t.Attachment().Mirror == p.name {
			continue
		}
		wanted = append(wanted, st)
	}
	if len(wanted) == 0 {
		return nil
	}
	ctx, cancel := p.m.sched.within(ctx, p.timeout())
	defer cancel()
	topics, refused, err := sourceTopics(ctx, cluster, mirror, wanted)
	for _, r := range refused {
		p.tell("discovery "+r.Name, fmt.Sprintf("source topic %s is not mirrored: %v", r.Name, r.Err))
	}
	if err != nil || len(topics) == 0 {
		return err
	}
	results, err := p.m.o.Controller.StartMirrorTopics(ctx, controller.StartMirrorTopics{Mirror: p.name, Topics: topics, Validation: -1})
	if err != nil {
		return err
	}
	noteSkipped(p.log, p.name, results)
	for _, r := range results {
		switch {
		case errors.Is(r.Err, controller.ErrInconsistentTopicID):
			// Said at every refresh, because the operator has to act (W15).
			p.log.Error("source topic is not mirrored", "topic", r.Name, "err", r.Err)
		case r.Err != nil:
			p.tell("discovery "+r.Name, fmt.Sprintf("source topic %s is not mirrored: %v", r.Name, r.Err)) // O18
		default:
			p.log.Info("source topic was discovered", "topic", r.Name)
		}
	}
	return nil
}

// stopExcluded stops what is excluded in the image of the given revision.
func (p *peer) stopExcluded(ctx context.Context, attached []*metadata.Topic, exclude *regexp.Regexp, revision int64) error {
	var names []string
	for _, t := range attached {
		if exclude.MatchString(t.Name) {
			names = append(names, t.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	results, err := p.m.o.Controller.SetMirrorTopics(ctx, controller.SetMirrorTopics{
		Mirror: p.name, Topics: names, Desired: metadata.DesiredStopped, Validation: revision,
	})
	if errors.Is(err, controller.ErrMirrorStates) {
		p.log.Debug("what is excluded is looked at again in the next round", "mirror", p.name, "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range results {
		if r.Err != nil {
			errs = append(errs, fmt.Errorf("stop excluded topic %s: %w", r.Name, r.Err))
		} else {
			p.log.Info("topic matches topics.exclude and is stopped", "topic", r.Name)
		}
	}
	return errors.Join(errs...)
}
