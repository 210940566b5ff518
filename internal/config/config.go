// Package config reads the server's options: Kafka-style properties with
// Kafka's own names where the meaning is Kafka's, from a file and from
// overrides on the command line, the later winning over the earlier. Every
// fault is named at once, with the key; an unknown key is an error, because a
// mistyped durability setting must not pass in silence. Keys that only make
// sense inside a Java process are taken with a warning.
package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/magiconair/properties"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Config is the effective configuration. The zero value is not usable: Load.
type Config struct {
	values map[string]string
	origin map[string]string // key → file or override it came from

	plugins    map[string]*Plugin
	transports map[string]string // mirror → plugin
	listener   map[string]listenerValue

	Warnings []string
}

// Load reads file (empty: none) and then overrides ("key=value", in order).
func Load(file string, overrides []string) (*Config, error) {
	c := &Config{
		values: map[string]string{}, origin: map[string]string{},
		plugins: map[string]*Plugin{}, transports: map[string]string{},
		listener: map[string]listenerValue{},
	}
	for i := range keys {
		c.values[keys[i].name] = keys[i].def
		c.origin[keys[i].name] = "default"
	}
	var errs []error
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("configuration file: %w", err)
		}
		// Expansion of ${…} is off: Kafka has none, and passwords contain it.
		l := properties.Loader{Encoding: properties.UTF8, DisableExpansion: true}
		p, err := l.LoadBytes(text)
		if err != nil {
			return nil, fmt.Errorf("configuration file %s: %w", file, err)
		}
		for _, k := range p.Keys() {
			v, _ := p.Get(k)
			errs = append(errs, c.set(k, strings.TrimSpace(v), file))
		}
	}
	for i, o := range overrides {
		k, v, ok := strings.Cut(o, "=")
		if !ok {
			// Not what it says: it may be a password whose key was forgotten.
			errs = append(errs, fmt.Errorf("--override number %d is not key=value", i+1))
			continue
		}
		errs = append(errs, c.set(strings.TrimSpace(k), strings.TrimSpace(v), "--override"))
	}
	errs = append(errs, c.checkTogether()...)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) set(name, value, origin string) error {
	given := name
	if a, ok := aliases[name]; ok {
		name = a.name
		if a.mul > 0 {
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return fmt.Errorf("%s: %q is not a number", given, value)
			}
			if n >= 0 {
				n *= a.mul
			}
			value = strconv.FormatInt(n, 10)
		}
	}
	if taken, err := c.setListener(name, value, origin); taken {
		return err
	}
	k := find(name)
	if k == nil {
		if taken, err := c.setPlugin(name, value, origin); taken {
			return err
		}
		if jvmOnly(name) {
			c.Warnings = append(c.Warnings, fmt.Sprintf("%s has no meaning here and is ignored (%s)", given, origin))
			return nil
		}
		return fmt.Errorf("%s: unknown key (%s); `lockstep server --print-reference` lists all", given, origin)
	}
	if err := k.check(value); err != nil {
		return fmt.Errorf("%w (%s)", err, origin)
	}
	c.values[name], c.origin[name] = value, origin
	return nil
}

// checkTogether finds faults that no single key shows, and what this version
// does not do.
func (c *Config) checkTogether() []error {
	var errs []error
	errs = append(errs, c.checkLogDirs(), c.checkQuorum())
	if c.Int("group.min.session.timeout.ms") > c.Int("group.max.session.timeout.ms") {
		errs = append(errs, errors.New("group.min.session.timeout.ms is above group.max.session.timeout.ms"))
	}
	if c.Int("log.cleaner.min.compaction.lag.ms") > c.Int("log.cleaner.max.compaction.lag.ms") {
		errs = append(errs, errors.New("log.cleaner.min.compaction.lag.ms is above log.cleaner.max.compaction.lag.ms"))
	}
	if per := c.Int("log.cleaner.dedupe.buffer.size") / c.Int("log.cleaner.threads"); per < 1<<20 {
		errs = append(errs, fmt.Errorf("log.cleaner.dedupe.buffer.size: %d bytes for each of log.cleaner.threads, at least 1048576 are needed", per))
	}
	errs = append(errs, c.checkCluster()...)
	errs = append(errs, c.checkGroups()...)
	errs = append(errs, c.checkPlugins()...)
	errs = append(errs, c.checkAuthorizer())
	listeners, err := c.Listeners()
	if err != nil {
		return append(errs, err)
	}
	errs = append(errs, c.checkSecurity(listeners)...)
	return errs
}

// String is a value as text.
func (c *Config) String(name string) string {
	v, ok := c.values[name]
	if !ok {
		panic("config: no such key: " + name)
	}
	return v
}

// IsSet tells whether the operator gave the key a value.
func (c *Config) IsSet(name string) bool { return c.origin[name] != "default" }

// Int is a number; its range was checked by Load.
func (c *Config) Int(name string) int64 {
	n, _ := strconv.ParseInt(c.String(name), 10, 64)
	return n
}

// Float is a decimal; its range was checked by Load.
func (c *Config) Float(name string) float64 {
	f, _ := strconv.ParseFloat(c.String(name), 64)
	return f
}

// Bool is a switch.
func (c *Config) Bool(name string) bool { return c.String(name) == "true" }

// Duration is a number of milliseconds.
func (c *Config) Duration(name string) time.Duration {
	return time.Duration(c.Int(name)) * time.Millisecond
}

// Entry is one effective option, for DescribeConfigs and for printing.
type Entry struct {
	Name, Value, Default, Doc, Origin string

	Type    metadata.ConfigType
	Set     bool // the operator gave it a value
	Dynamic bool // it may change while the server runs
	Secret  bool // its value is left out
}

// Entries lists the effective configuration by name.
func (c *Config) Entries() []Entry {
	out := make([]Entry, 0, len(keys))
	for i := range keys {
		k := &keys[i]
		e := Entry{
			Name: k.name, Value: c.values[k.name], Default: k.def, Doc: k.doc, Origin: c.origin[k.name],
			Type: k.configType(), Set: c.IsSet(k.name), Dynamic: k.dynamic, Secret: k.secret,
		}
		if e.Secret {
			e.Value = ""
		}
		out = append(out, e)
	}
	for name, v := range c.listener {
		e := Entry{Name: name, Value: v.value, Doc: v.key.doc, Origin: v.origin, Type: v.key.configType(), Set: true, Secret: v.key.secret}
		if e.Secret {
			e.Value = ""
		}
		out = append(out, e)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out
}

// Print writes the effective configuration with the origin of each value.
func (c *Config) Print(w io.Writer) {
	for _, e := range c.Entries() {
		if e.Secret && e.Set {
			e.Value = "[hidden]"
		}
		fmt.Fprintf(w, "%s=%s  # %s\n", e.Name, e.Value, e.Origin)
	}
}

// PrintReference writes a commented template of every key with its default.
func PrintReference(w io.Writer) {
	for i := range keys {
		k := &keys[i]
		fmt.Fprintf(w, "# %s\n", k.doc)
		if k.kind == choice {
			fmt.Fprintf(w, "# One of: %s\n", strings.ReplaceAll(k.choices, "|", " | "))
		}
		fmt.Fprintf(w, "#%s=%s\n\n", k.name, k.def)
	}
	fmt.Fprint(w, `# Keys that begin with ssl. and sasl., connections.max.reauth.ms, max.connections
# and max.connection.creation.rate may stand for one listener, and those of SASL for one of its mechanisms:
#listener.name.NAME.ssl.keystore.location=/etc/lockstep/server.pem
#listener.name.NAME.MECHANISM.sasl.jaas.config=

# A plugin process: its executable, the file's SHA-256, and its arguments.
#plugin.NAME.path=/usr/local/lib/lockstep/policy
#plugin.NAME.sha256=
#plugin.NAME.args=

# The plugin that reaches the source of one mirror, instead of TCP.
#plugin.transport.MIRROR=NAME
`)
}
