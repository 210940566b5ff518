package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/group"
)

// assignorClasses are the names under which Kafka's configuration files may
// write its assignors.
var assignorClasses = map[string]string{
	"org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
	"org.apache.kafka.coordinator.group.assignor.RangeAssignor":   "range",
}

// Assignors are the names in group.consumer.assignors, the default first.
func (c *Config) Assignors() []string {
	var names []string
	for name := range strings.SplitSeq(c.String("group.consumer.assignors"), ",") {
		name = strings.TrimSpace(name)
		if known, ok := assignorClasses[name]; ok {
			name = known
		}
		names = append(names, name)
	}
	return names
}

// checkGroups holds what the keys of groups say against each other.
func (c *Config) checkGroups() []error {
	var errs []error
	for _, what := range []string{"session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"} {
		value, least, greatest := "group.consumer."+what, "group.consumer.min."+what, "group.consumer.max."+what
		if v := c.Int(value); v < c.Int(least) || v > c.Int(greatest) {
			errs = append(errs, fmt.Errorf("%s: %d is not between %s=%d and %s=%d", value, v, least, c.Int(least), greatest, c.Int(greatest)))
		}
	}
	if c.Int("group.consumer.heartbeat.interval.ms") >= c.Int("group.consumer.session.timeout.ms") {
		errs = append(errs, fmt.Errorf("group.consumer.heartbeat.interval.ms: %d is not below group.consumer.session.timeout.ms=%d",
			c.Int("group.consumer.heartbeat.interval.ms"), c.Int("group.consumer.session.timeout.ms")))
	}
	seen := map[string]bool{}
	for _, name := range c.Assignors() {
		if !slices.Contains(group.Assignors(), name) || seen[name] {
			errs = append(errs, fmt.Errorf("group.consumer.assignors: %q is not one of %s, or is there twice", name, strings.Join(group.Assignors(), ", ")))
		}
		seen[name] = true
	}
	return errs
}
