package metadata

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/RaduBerinde/btreemap"
)

// Configs of single groups, for those of the consumer protocol (KIP-848). Kafka has
// more, for share and streams groups, which are left out here.
const (
	GroupSessionTimeout     = "consumer.session.timeout.ms"
	GroupHeartbeatInterval  = "consumer.heartbeat.interval.ms"
	GroupAssignmentInterval = "consumer.assignment.interval.ms"
)

// MaxGroupConfigs bounds the groups with configs of their own: every broker keeps
// them all in memory.
const MaxGroupConfigs = 50_000

// MaxGroupConfigName bounds the id of such a group, in bytes.
const MaxGroupConfigName = 1024

var groupTable = newTable([]*ConfigDef{
	{Name: GroupSessionTimeout, Type: TypeInt, Default: "45000", check: atLeast(1),
		Doc: "How long a member of the group may be silent."},
	{Name: GroupHeartbeatInterval, Type: TypeInt, Default: "5000", check: atLeast(1),
		Doc: "How often members of the group are told to send a heartbeat."},
	{Name: GroupAssignmentInterval, Type: TypeInt, Default: "1000", check: atLeast(0),
		Doc: "Time from one assignment of the group's partitions to the next. Changes meanwhile are taken together."},
})

// GroupConfigDefs is the table of group configs by name. Shared.
func GroupConfigDefs() []*ConfigDef { return groupTable.defs }

// GroupConfigDef is one row, or nil.
func GroupConfigDef(name string) *ConfigDef { return groupTable.byName[name] }

// GroupDefaultKey is the broker config that a group config takes its default from.
func GroupDefaultKey(groupConfig string) string { return "group." + groupConfig }

// groupBounds names the broker configs that a group config lies between.
func groupBounds(groupConfig string) (least, greatest string) {
	rest := strings.TrimPrefix(groupConfig, "consumer.")
	return "group.consumer.min." + rest, "group.consumer.max." + rest
}

// ValidateGroupConfigs checks all configs of one group against the broker's, by
// name with the values in force: the bounds of each, and a session must be longer
// than the interval of heartbeats. A bound that broker does not have is none.
func ValidateGroupConfigs(configs, broker map[string]string) error {
	for _, name := range sortedKeys(configs) {
		d := groupTable.byName[name]
		if d == nil {
			return fmt.Errorf("%w: %s: no such config of a group", ErrInvalidConfig, name)
		}
		if err := d.Validate(configs[name]); err != nil {
			return err
		}
		n := groupNumber(configs[name])
		least, greatest := groupBounds(name)
		if lo, ok := broker[least]; ok && n < groupNumber(lo) {
			return fmt.Errorf("%w: %s=%d is below %s=%s", ErrInvalidConfig, name, n, least, lo)
		}
		if hi, ok := broker[greatest]; ok && n > groupNumber(hi) {
			return fmt.Errorf("%w: %s=%d is above %s=%s", ErrInvalidConfig, name, n, greatest, hi)
		}
	}
	inForce := func(name string) int64 {
		for _, v := range []string{configs[name], broker[GroupDefaultKey(name)], groupTable.byName[name].Default} {
			if v != "" {
				return groupNumber(v)
			}
		}
		return 0
	}
	if s, h := inForce(GroupSessionTimeout), inForce(GroupHeartbeatInterval); s <= h {
		return fmt.Errorf("%w: %s=%d is not above %s=%d", ErrInvalidConfig, GroupSessionTimeout, s, GroupHeartbeatInterval, h)
	}
	return nil
}

// groupNumber reads a value that was checked.
func groupNumber(v string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
	return n
}

// GroupSettings are the configs in force of a group, in milliseconds.
type GroupSettings struct{ SessionTimeout, HeartbeatInterval, AssignmentInterval int64 }

// GroupSettings answers them for a group on a broker whose values in force are
// broker's: the group's own, held to the broker's bounds, which may have changed
// since it was set, else the broker's. What does not go together any more is the
// broker's as a whole.
func (img *Image) GroupSettings(group string, broker func(name string) string) GroupSettings {
	own := img.GroupConfigs(group)
	get := func(name string) int64 {
		v, set := own[name]
		if !set {
			v = broker(GroupDefaultKey(name))
		}
		least, greatest := groupBounds(name)
		return min(max(groupNumber(v), groupNumber(broker(least))), groupNumber(broker(greatest)))
	}
	s := GroupSettings{get(GroupSessionTimeout), get(GroupHeartbeatInterval), get(GroupAssignmentInterval)}
	if s.SessionTimeout <= s.HeartbeatInterval {
		own = nil
		s.SessionTimeout, s.HeartbeatInterval = get(GroupSessionTimeout), get(GroupHeartbeatInterval)
	}
	return s
}

// GroupConfigs returns the configs of a group, nil if it has none of its own.
func (img *Image) GroupConfigs(group string) map[string]string {
	_, c, _ := img.groupConfigs.Get(group)
	return c
}

// ConfiguredGroups are the groups with configs of their own, by name.
func (img *Image) ConfiguredGroups() []string {
	names := make([]string, 0, img.groupConfigs.Len())
	for name := range img.groupConfigs.Ascend(btreemap.Min[string](), btreemap.Max[string]()) {
		names = append(names, name)
	}
	return names
}

// NumGroupConfigs counts them.
func (img *Image) NumGroupConfigs() int { return img.groupConfigs.Len() }

// SetGroupConfigs replaces the configs of a group; empty removes them.
func (e *Editor) SetGroupConfigs(group string, configs map[string]string) {
	if len(configs) == 0 {
		e.next.groupConfigs.Delete(group)
		return
	}
	e.next.groupConfigs.ReplaceOrInsert(group, configs)
}
