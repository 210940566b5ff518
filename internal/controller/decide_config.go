package controller

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// applyOps answers configs with the operations applied. effective gives the value
// that append and subtract start from where nothing is stored; nil takes the
// default of the table, as Kafka does.
func applyOps(cur map[string]string, ops []ConfigOp, def func(string) *metadata.ConfigDef, effective func(string) string) (map[string]string, error) {
	next := maps.Clone(cur)
	if next == nil {
		next = make(map[string]string, len(ops))
	}
	seen := make(map[string]bool, len(ops))
	for _, op := range ops {
		if seen[op.Name] {
			return nil, fmt.Errorf("%w: %s stands twice", ErrInvalidRequest, op.Name)
		}
		seen[op.Name] = true
		if op.Op == ConfigDelete {
			// Deleting what was never valid must stay possible: an older
			// version may have stored it.
			delete(next, op.Name)
			continue
		}
		d := def(op.Name)
		if d == nil {
			return nil, fmt.Errorf("%w: %s: no such config", ErrInvalidConfig, op.Name)
		}
		if op.Value == nil {
			return nil, fmt.Errorf("%w: %s: needs a value", ErrInvalidRequest, op.Name)
		}
		switch op.Op {
		case ConfigSet:
			next[op.Name] = *op.Value
		case ConfigAppend, ConfigSubtract:
			if d.Type != metadata.TypeList {
				return nil, fmt.Errorf("%w: %s: is not a list, so nothing can be appended or subtracted", ErrInvalidConfig, op.Name)
			}
			value, ok := next[op.Name]
			if !ok {
				value = d.Default
				if effective != nil {
					value = effective(op.Name)
				}
			}
			next[op.Name] = alterList(value, *op.Value, op.Op)
		default:
			return nil, fmt.Errorf("%w: %s: operation %d", ErrInvalidRequest, op.Name, op.Op)
		}
	}
	return next, nil
}

// alterList appends what is not there, or takes out what is.
func alterList(list, members string, op ConfigOpType) string {
	cur := metadata.SplitList(list)
	for _, m := range metadata.SplitList(members) {
		i := slices.Index(cur, m)
		switch {
		case op == ConfigAppend && i < 0:
			cur = append(cur, m)
		case op == ConfigSubtract && i >= 0:
			cur = slices.Delete(cur, i, i+1)
		}
	}
	return metadata.JoinList(cur)
}

// brokerResource reads the name of a broker resource.
func brokerResource(img *metadata.Image, name string) (int32, error) {
	if name == "" {
		return metadata.DefaultBroker, nil
	}
	id, err := strconv.ParseInt(name, 10, 32)
	if err != nil || id < 0 {
		return 0, fmt.Errorf("%w: %q is not a broker id", ErrInvalidRequest, name)
	}
	if img.Broker(int32(id)) == nil {
		return 0, fmt.Errorf("%w: %d", ErrUnknownBroker, id)
	}
	return int32(id), nil
}

// checkBroker checks what no single config shows. A change of a number of threads
// or connections stays within half to double, so that a slip of the finger does
// not open a thousand of them (spec 4.1; Kafka does the same for its threads).
func checkBroker(img *metadata.Image, id int32, static, next map[string]string) error {
	before := img.BrokerSettings(id, static)
	after := before
	if id == metadata.DefaultBroker {
		before.Own, after.Own, after.All = nil, nil, next
	} else {
		after.Own = next
	}
	for _, name := range []string{"log.cleaner.threads", "mirror.num.replica.fetchers"} {
		old, n := intConfig(before, name), intConfig(after, name)
		if n != old && (n*2 < old || n > old*2) {
			return fmt.Errorf("%w: %s=%d: must stay within half to double of %d", ErrInvalidConfig, name, n, old)
		}
	}
	const least, longest = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
	if lo, hi := intConfig(after, least), intConfig(after, longest); lo > hi {
		return fmt.Errorf("%w: %s=%d is above %s=%d", ErrInvalidConfig, least, lo, longest, hi)
	}
	const memory, threads = "log.cleaner.dedupe.buffer.size", "log.cleaner.threads"
	if per := intConfig(after, memory) / max(intConfig(after, threads), 1); per < 1<<20 {
		return fmt.Errorf("%w: %s: %d bytes for each of %s, at least %d are needed", ErrInvalidConfig, memory, per, threads, 1<<20)
	}
	return nil
}

func intConfig(s metadata.BrokerSettings, name string) int64 {
	v, ok := s.Get(name)
	if !ok {
		v = metadata.BrokerConfigDef(name).Default
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
	return n
}

// sourceConfigs sorts a source topic's overrides into those to take and those to
// leave: unknown here, of a value we refuse, or the source's own attachment.
// Leaving one out must not keep the topic from being mirrored (9.10).
func sourceConfigs(configs map[string]string) (take map[string]string, skipped []string) {
	take = make(map[string]string, len(configs))
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		if metadata.ValidateTopicConfig(name, configs[name]) != nil {
			skipped = append(skipped, name)
			continue
		}
		take[name] = configs[name]
	}
	if metadata.ValidateTopicConfigs(take) != nil {
		for _, name := range []string{"min.compaction.lag.ms", "max.compaction.lag.ms"} {
			if _, ok := take[name]; ok {
				delete(take, name)
				skipped = append(skipped, name)
			}
		}
	}
	return take, skipped
}
