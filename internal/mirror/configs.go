package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
	"github.com/lockstep-kafka/lockstep/internal/source"
)

// skippedConfig is a config of the source that cannot be copied, and why.
type skippedConfig struct {
	name string
	why  error
}

// copiedConfigs are the configs of a source topic that belong here too: those
// set on the topic itself, without what topic.properties.exclude names (W47).
// Configs that we do not know, or whose value we refuse, are named in skipped.
func copiedConfigs(entries []source.ConfigEntry, exclude *regexp.Regexp) (copied map[string]string, skipped []skippedConfig) {
	copied = make(map[string]string)
	for _, e := range entries {
		if !e.Dynamic || e.Value == nil || e.Name == metadata.MirrorNameConfig || exclude.MatchString(e.Name) {
			continue
		}
		if err := metadata.ValidateTopicConfig(e.Name, *e.Value); err != nil {
			skipped = append(skipped, skippedConfig{e.Name, err})
			continue
		}
		copied[e.Name] = *e.Value
	}
	return copied, skipped
}

// configOps are the changes that bring a destination topic's overrides to the
// source's. Only keys that the sync has set itself are deleted (W48); a key that
// an operator set stays, unless the source sets it too (W49). It returns the
// keys that the sync answers for from now on.
//
// ours is nil in the first round of a coordinator: then every key that has the
// source's value counts as set by the sync.
func configOps(have, want map[string]string, ours map[string]struct{}) (ops []controller.ConfigOp, now map[string]struct{}) {
	now = make(map[string]struct{}, len(want))
	for _, name := range slices.Sorted(maps.Keys(want)) {
		now[name] = struct{}{}
		if value, ok := have[name]; !ok || value != want[name] {
			value := want[name]
			ops = append(ops, controller.ConfigOp{Name: name, Value: &value, Op: controller.ConfigSet})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		_, wanted := want[name]
		if _, set := have[name]; set && !wanted {
			ops = append(ops, controller.ConfigOp{Name: name, Op: controller.ConfigDelete})
		}
	}
	return ops, now
}

// syncConfigs copies topic configs (9.10). Paused topics are left as they are.
func (p *peer) syncConfigs(ctx context.Context, cluster Source, mirror *metadata.Mirror, attached []*metadata.Topic) error {
	exclude, err := metadata.CompileRegexList(mirror.Config(metadata.MirrorTopicPropsExclude))
	if err != nil {
		return err
	}
	topics := make(map[string]*metadata.Topic)
	for _, t := range attached {
		if t.Attachment().Desired == metadata.DesiredMirroring {
			topics[t.Name] = t
			p.warnUnclean(t)
		}
	}
	for name := range p.sync.configs {
		if topics[name] == nil {
			delete(p.sync.configs, name)
		}
	}
	if len(topics) == 0 {
		return nil
	}
	names := slices.Sorted(maps.Keys(topics))
	ctx, cancel := p.m.sched.within(ctx, p.timeout())
	defer cancel()
	found, err := cluster.TopicConfigs(ctx, names)
	if err != nil {
		return err
	}
	var errs []error
	var changes []controller.AlterConfigs
	settled := make(map[string]map[string]struct{})
	for _, name := range names {
		tc, ok := found[name]
		if !ok {
			continue // deleted between two requests; the next round knows
		}
		if tc.Err != nil {
			errs = append(errs, fmt.Errorf("source configs of %s: %w", name, tc.Err))
			continue
		}
		want, skipped := copiedConfigs(tc.Entries, exclude)
		for _, s := range skipped {
			err := fmt.Errorf("config of source topic %s is not copied: %w", name, s.why)
			p.tell("config "+name+" "+s.name, err.Error())
			if metadata.TopicConfigDef(s.name) != nil { // what nobody here knows is no fault of anybody's
				errs = append(errs, err)
			}
		}
		ops, now := configOps(topics[name].Configs, want, p.sync.configs[name])
		settled[name] = now
		if len(ops) > 0 {
			changes = append(changes, controller.AlterConfigs{Type: controller.ResourceTopic, Name: name, Ops: ops})
		}
	}
	if len(changes) > 0 {
		for i, err := range p.m.o.Controller.AlterConfigs(ctx, changes, false) {
			if err != nil {
				delete(settled, changes[i].Name)
				errs = append(errs, fmt.Errorf("configs of %s: %w", changes[i].Name, err))
				continue
			}
			p.log.Info("topic configs follow the source", "topic", changes[i].Name, "changes", len(changes[i].Ops))
		}
	}
	maps.Copy(p.sync.configs, settled)
	return errors.Join(errs...)
}

// warnUnclean says that unclean elections here could lose what was mirrored
// without anybody noticing (C9).
func (p *peer) warnUnclean(t *metadata.Topic) {
	if t.ConfigBool("unclean.leader.election.enable") && !t.ConfigBool(metadata.MirrorULEConfig) {
		p.log.Warn("topic allows unclean leader elections, but "+metadata.MirrorULEConfig+" is false: records may differ from the source's unnoticed",
			"topic", t.Name)
	}
}
