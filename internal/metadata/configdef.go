package metadata

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ErrInvalidConfig is a config key that is not known, or a value that its key
// does not allow.
var ErrInvalidConfig = errors.New("invalid config")

// ConfigType says how a value is written, and which operations make sense on
// it: only lists can be appended to.
type ConfigType int8

const (
	TypeString ConfigType = iota
	TypeBoolean
	TypeInt
	TypeShort
	TypeLong
	TypeDouble
	TypeList
	TypePassword
)

// ConfigDef is one row of a config table.
type ConfigDef struct {
	Name    string
	Type    ConfigType
	Default string
	// NoDefault marks a key that has no value unless it is set.
	NoDefault bool
	// Secret values never leave the broker and are never logged (C6).
	Secret bool
	// ReadOnly keys are set by the broker, never by a user.
	ReadOnly bool
	// Ignored keys are accepted because Kafka clients have them, and mean
	// nothing here: they configure the Java runtime.
	Ignored bool
	Doc     string
	// check validates a value of the right type; nil allows all.
	check func(value string) error
}

// Validate checks a value against the definition. The value of a secret is not
// repeated in the error.
func (d *ConfigDef) Validate(value string) error {
	err := d.checkType(value)
	if err == nil && d.check != nil {
		err = d.check(value)
	}
	switch {
	case err == nil:
		return nil
	case d.Secret:
		return fmt.Errorf("%w: %s: the value is refused (not shown, it is a secret)", ErrInvalidConfig, d.Name)
	}
	return fmt.Errorf("%w: %s=%q: %w", ErrInvalidConfig, d.Name, value, err)
}

func (d *ConfigDef) checkType(value string) error {
	v := strings.TrimSpace(value)
	var err error
	switch d.Type {
	case TypeBoolean:
		if !strings.EqualFold(v, "true") && !strings.EqualFold(v, "false") {
			err = errors.New("must be true or false")
		}
	case TypeShort:
		if _, e := strconv.ParseInt(v, 10, 16); e != nil {
			err = errors.New("must be a 16-bit integer")
		}
	case TypeInt:
		if _, e := strconv.ParseInt(v, 10, 32); e != nil {
			err = errors.New("must be a 32-bit integer")
		}
	case TypeLong:
		if _, e := strconv.ParseInt(v, 10, 64); e != nil {
			err = errors.New("must be a 64-bit integer")
		}
	case TypeDouble:
		if f, e := strconv.ParseFloat(v, 64); e != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			err = errors.New("must be a number")
		}
	}
	return err
}

// table is a config table with its index.
type table struct {
	defs   []*ConfigDef // by name
	byName map[string]*ConfigDef
}

func newTable(defs []*ConfigDef) *table {
	t := &table{defs: defs, byName: make(map[string]*ConfigDef, len(defs))}
	slices.SortFunc(t.defs, func(a, b *ConfigDef) int { return strings.Compare(a.Name, b.Name) })
	for _, d := range t.defs {
		t.byName[d.Name] = d
	}
	return t
}

// Lists are comma separated, trimmed, without empty members, as Kafka reads them.

// SplitList reads a list value.
func SplitList(value string) []string {
	var list []string
	for _, s := range strings.Split(value, ",") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	return list
}

// JoinList writes a list value.
func JoinList(list []string) string { return strings.Join(list, ",") }

func atLeast(limit int64) func(string) error { return between(limit, math.MaxInt64) }

func between(lo, hi int64) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
		if err != nil {
			return errors.New("must be an integer")
		}
		switch {
		case n < lo:
			return fmt.Errorf("must be at least %d", lo)
		case n > hi:
			return fmt.Errorf("must be at most %d", hi)
		}
		return nil
	}
}

func betweenFloat(lo, hi float64) func(string) error {
	return func(v string) error {
		f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
		if err != nil || f < lo || f > hi {
			return fmt.Errorf("must be between %g and %g", lo, hi)
		}
		return nil
	}
}

func atLeastFloat(limit float64) func(string) error {
	return func(v string) error {
		f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
		if err != nil || f < limit {
			return fmt.Errorf("must be at least %g", limit)
		}
		return nil
	}
}

func oneOf(allowed ...string) func(string) error {
	return func(v string) error {
		if slices.Contains(allowed, v) {
			return nil
		}
		return fmt.Errorf("must be one of %s", strings.Join(allowed, ", "))
	}
}

func listOf(allowed ...string) func(string) error {
	return func(v string) error {
		seen := make(map[string]bool)
		for _, s := range SplitList(v) {
			if !slices.Contains(allowed, s) {
				return fmt.Errorf("%q is not one of %s", s, strings.Join(allowed, ", "))
			}
			if seen[s] {
				return fmt.Errorf("%q stands twice", s)
			}
			seen[s] = true
		}
		return nil
	}
}
