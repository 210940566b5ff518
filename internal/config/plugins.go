package config

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Plugin is one plugin process: plugin.NAME.path, plugin.NAME.sha256 and
// plugin.NAME.args.
type Plugin struct {
	Name   string
	Path   string
	SHA256 string
	Args   []string
}

// transportPrefix begins the keys that give a mirror its transport:
// plugin.transport.MIRROR=NAME.
const transportPrefix = "plugin.transport."

var pluginKey = regexp.MustCompile(`^plugin\.([a-z0-9][a-z0-9-]{0,31})\.(path|sha256|args)$`)

// setPlugin takes the keys whose names the operator makes up. It tells whether
// name is one of them.
func (c *Config) setPlugin(name, value, origin string) (taken bool, err error) {
	if mirror, ok := strings.CutPrefix(name, transportPrefix); ok {
		if mirror == "" || value == "" {
			return true, fmt.Errorf("%s: want %sMIRROR=PLUGIN (%s)", name, transportPrefix, origin)
		}
		c.transports[mirror] = value
		return true, nil
	}
	m := pluginKey.FindStringSubmatch(name)
	if m == nil {
		return false, nil
	}
	p := c.plugins[m[1]]
	if p == nil {
		p = &Plugin{Name: m[1]}
		c.plugins[m[1]] = p
	}
	switch m[2] {
	case "path":
		p.Path = value
	case "sha256":
		p.SHA256 = value
	case "args":
		p.Args = strings.Fields(value)
	}
	return true, nil
}

// checkPlugins finds plugins that are used and not there, and the other way
// round: a plugin that nothing uses is a policy that an operator believes in.
func (c *Config) checkPlugins() []error {
	var errs []error
	used := map[string]bool{}
	use := func(key, name string) {
		if name == "" {
			return
		}
		used[name] = true
		if p := c.plugins[name]; p == nil || p.Path == "" {
			errs = append(errs, fmt.Errorf("%s=%s: plugin.%s.path is not set", key, name, name))
		}
	}
	for _, key := range []string{"plugin.truncation.policy", "plugin.unclean.election.policy"} {
		use(key, c.String(key))
	}
	for mirror, name := range c.Transports() {
		use(transportPrefix+mirror, name)
	}
	for _, p := range c.Plugins() {
		if !used[p.Name] {
			errs = append(errs, fmt.Errorf("plugin.%s.path: nothing uses this plugin; set plugin.truncation.policy, plugin.unclean.election.policy or %sMIRROR", p.Name, transportPrefix))
		}
	}
	return errs
}

// Plugins are the plugin processes by name.
func (c *Config) Plugins() []Plugin {
	var out []Plugin
	for _, name := range slices.Sorted(maps.Keys(c.plugins)) {
		out = append(out, *c.plugins[name])
	}
	return out
}

// Transports are the plugins that reach a mirror's source, by mirror name.
func (c *Config) Transports() map[string]string { return maps.Clone(c.transports) }
