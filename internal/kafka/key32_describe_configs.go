package kafka

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// DescribeConfigs (v1-v4)
//
// Behavior:
//   - Topics (2), brokers (4; this one or the empty name for all), this broker's
//     loggers (8), groups (32; any name, also of one that does not exist) and
//     mirrors (64). The internal mirror.name of a topic is not shown (spec M4).
//   - Needs DescribeConfigs on the topic, the group, the mirror (spec 5.6), or for
//     brokers and their loggers the cluster.
//   - Secrets have no value and the sensitive flag (C6).
//   - Where a value came from is its source; where it could have come from are
//     its synonyms, the one in force first: a topic's own, then those of the
//     broker, of all brokers, of the broker's file, and the default. A topic's
//     synonyms below its own have the broker's name of the config, as in Kafka, and
//     so have a group's.
//   - A config that is not read-only can be changed while the broker runs.
//
// Version notes:
//   - v1: sources and synonyms (KIP-226)
//   - v3: types and documentation (KIP-569)
//   - v4: flexible
//
// Not done: client metrics: INVALID_REQUEST. Configs of share and streams groups
// are not among those of a group.
func (s *Server) registerDescribeConfigs() {
	s.register(32, 1, 4, s.describeConfigs)
}

func (s *Server) describeConfigs(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DescribeConfigsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
	for i := range req.Resources {
		in := &req.Resources[i]
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = in.ResourceType, in.ResourceName
		kind := controller.ConfigResource(in.ResourceType)
		var entries []configEntry
		err := s.mayConfigure(r, authz.DescribeConfigs, kind, in.ResourceName)
		if err == nil {
			entries, err = s.configsOf(kind, in.ResourceName)
		}
		out.ErrorCode, out.ErrorMessage = errorCode(err)
		for _, e := range entries {
			if in.ConfigNames == nil || slices.Contains(in.ConfigNames, e.name) {
				out.Configs = append(out.Configs, e.encode(req))
			}
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp, nil
}

// mayConfigure checks a right on a resource's configs: brokers are of the
// cluster. A type that is not served needs none.
func (s *Server) mayConfigure(r *request, op authz.Operation, kind controller.ConfigResource, name string) error {
	switch kind {
	case controller.ResourceTopic:
		if !s.allowedTopic(r, op, name) {
			return errTopicDenied
		}
	case controller.ResourceMirror:
		if !s.allowed(r, op, authz.ClusterMirror, name) {
			return errMirrorDenied
		}
	case controller.ResourceGroup:
		if !s.allowed(r, op, authz.Group, name) {
			return errGroupDenied
		}
	case controller.ResourceBroker, resourceLogger:
		if !s.allowedCluster(r, op) {
			return errClusterDenied
		}
	}
	return nil
}

// configsOf is every config of a resource, by name.
func (s *Server) configsOf(kind controller.ConfigResource, name string) ([]configEntry, error) {
	img := s.o.Controller.Image()
	var out []configEntry
	switch kind {
	case controller.ResourceTopic:
		t := img.Topic(name)
		if t == nil {
			return nil, fmt.Errorf("%w: %q", errUnknownPartition, name)
		}
		settings := s.settings(img)
		for _, d := range metadata.TopicConfigDefs() {
			out = append(out, topicConfig(t, d, settings))
		}
	case controller.ResourceMirror:
		m := img.Mirror(name)
		if m == nil {
			return nil, fmt.Errorf("%w: %q", controller.ErrUnknownMirror, name)
		}
		for _, d := range metadata.MirrorConfigDefs() {
			if _, set := m.Configs[d.Name]; d.Ignored && !set {
				continue // only a Java client has a use for it
			}
			out = append(out, mirrorConfig(m, d))
		}
	case controller.ResourceGroup:
		if name == "" {
			return nil, fmt.Errorf("%w: a group's name is needed", controller.ErrInvalidRequest)
		}
		configs, settings := img.GroupConfigs(name), s.settings(img)
		for _, d := range metadata.GroupConfigDefs() {
			out = append(out, groupConfig(configs, d, settings))
		}
	case controller.ResourceBroker:
		return s.brokerConfigs(img, name)
	case resourceLogger:
		return s.loggers(name)
	default:
		return nil, fmt.Errorf("%w: configs of resource type %d are not served", controller.ErrInvalidRequest, kind)
	}
	return out, nil
}

// configEntry is one config of one resource.
type configEntry struct {
	name     string
	value    *string
	source   kmsg.ConfigSource
	readOnly bool
	secret   bool
	kind     metadata.ConfigType
	doc      string
	synonyms []configSynonym // the one in force first
}

type configSynonym struct {
	name, value string
	source      kmsg.ConfigSource
}

// settle takes value and source from the first synonym.
func (e *configEntry) settle() configEntry {
	if len(e.synonyms) == 0 {
		e.source = kmsg.ConfigSourceDefaultConfig
		return *e
	}
	e.source = e.synonyms[0].source
	if !e.secret {
		e.value = &e.synonyms[0].value
	}
	return *e
}

func (e *configEntry) encode(req *kmsg.DescribeConfigsRequest) kmsg.DescribeConfigsResponseResourceConfig {
	out := kmsg.NewDescribeConfigsResponseResourceConfig()
	out.Name, out.Value, out.Source = e.name, e.value, e.source
	out.ReadOnly, out.IsSensitive = e.readOnly, e.secret
	out.IsDefault = e.source == kmsg.ConfigSourceDefaultConfig
	out.ConfigType = wireConfigType(e.kind)
	if req.IncludeDocumentation && e.doc != "" {
		out.Documentation = &e.doc
	}
	if req.IncludeSynonyms {
		for i := range e.synonyms {
			y := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
			y.Name, y.Source = e.synonyms[i].name, e.synonyms[i].source
			if !e.secret {
				y.Value = &e.synonyms[i].value
			}
			out.ConfigSynonyms = append(out.ConfigSynonyms, y)
		}
	}
	return out
}

func wireConfigType(t metadata.ConfigType) kmsg.ConfigType {
	switch t {
	case metadata.TypeBoolean:
		return kmsg.ConfigTypeBoolean
	case metadata.TypeInt:
		return kmsg.ConfigTypeInt
	case metadata.TypeShort:
		return kmsg.ConfigTypeShort
	case metadata.TypeLong:
		return kmsg.ConfigTypeLong
	case metadata.TypeDouble:
		return kmsg.ConfigTypeDouble
	case metadata.TypeList:
		return kmsg.ConfigTypeList
	case metadata.TypePassword:
		return kmsg.ConfigTypePassword
	}
	return kmsg.ConfigTypeString
}

// topicConfig is one row of the topic table for t: the override, else what this
// broker has as its default, else Kafka's. Synonyms have the broker's name of it.
func topicConfig(t *metadata.Topic, d *metadata.ConfigDef, settings metadata.BrokerSettings) configEntry {
	e := configEntry{name: d.Name, readOnly: d.ReadOnly, secret: d.Secret, kind: d.Type, doc: d.Doc}
	if v, ok := t.Configs[d.Name]; ok {
		e.synonyms = append(e.synonyms, configSynonym{d.Name, v, kmsg.ConfigSourceDynamicTopicConfig})
	}
	name := metadata.TopicDefaultKey(d.Name)
	if name == "" {
		name = d.Name // no broker has a default of its own for it
	} else {
		e.addLayers(name, settings)
	}
	if !d.NoDefault {
		e.synonyms = append(e.synonyms, configSynonym{name, d.Default, kmsg.ConfigSourceDefaultConfig})
	}
	return e.settle()
}

// addLayers appends what is set for this broker, dynamically, for all brokers
// dynamically, and in its own file.
func (e *configEntry) addLayers(name string, settings metadata.BrokerSettings) {
	for _, l := range []struct {
		values map[string]string
		source kmsg.ConfigSource
	}{
		{settings.Own, kmsg.ConfigSourceDynamicBrokerConfig},
		{settings.All, kmsg.ConfigSourceDynamicDefaultBrokerConfig},
		{settings.Static, kmsg.ConfigSourceStaticBrokerConfig},
	} {
		if v, ok := l.values[name]; ok {
			e.synonyms = append(e.synonyms, configSynonym{name, v, l.source})
		}
	}
}

// groupConfig is one row of the group table for a group: its own, else the broker's.
func groupConfig(configs map[string]string, d *metadata.ConfigDef, settings metadata.BrokerSettings) configEntry {
	e := configEntry{name: d.Name, kind: d.Type, doc: d.Doc}
	if v, ok := configs[d.Name]; ok {
		e.synonyms = append(e.synonyms, configSynonym{d.Name, v, kmsg.ConfigSourceGroupConfig})
	}
	name := metadata.GroupDefaultKey(d.Name)
	e.addLayers(name, settings)
	e.synonyms = append(e.synonyms, configSynonym{name, d.Default, kmsg.ConfigSourceDefaultConfig})
	return e.settle()
}

// mirrorConfig is one row of the mirror table for m. Kafka's list of sources
// has none for a mirror, so a value that was set has the unknown one.
func mirrorConfig(m *metadata.Mirror, d *metadata.ConfigDef) configEntry {
	e := configEntry{name: d.Name, readOnly: d.ReadOnly, secret: d.Secret, kind: d.Type, doc: d.Doc}
	if v, ok := m.Configs[d.Name]; ok {
		e.synonyms = append(e.synonyms, configSynonym{d.Name, v, kmsg.ConfigSourceUnknown})
	}
	if !d.NoDefault {
		e.synonyms = append(e.synonyms, configSynonym{d.Name, d.Default, kmsg.ConfigSourceDefaultConfig})
	}
	return e.settle()
}

// settings is what holds for this broker.
func (s *Server) settings(img *metadata.Image) metadata.BrokerSettings {
	return img.BrokerSettings(s.o.NodeID, s.static)
}

// staticConfigs are the configs that the broker's file or command line sets.
func staticConfigs(configs []metadata.BrokerConfig) map[string]string {
	static := make(map[string]string)
	for i := range configs {
		if c := &configs[i]; c.Set {
			static[c.Name] = c.Value
		}
	}
	return static
}

// brokerConfigs is every config of this broker. The empty name asks for what is
// set dynamically for all brokers, and only that.
func (s *Server) brokerConfigs(img *metadata.Image, name string) ([]configEntry, error) {
	var out []configEntry
	if name == "" {
		all := metadata.BrokerSettings{All: img.BrokerConfigs(metadata.DefaultBroker)}
		for _, name := range slices.Sorted(maps.Keys(all.All)) {
			e := configEntry{name: name, secret: secretName(name)}
			if d := metadata.BrokerConfigDef(name); d != nil {
				e.kind, e.doc = d.Type, d.Doc
			}
			e.addLayers(name, all)
			out = append(out, e.settle())
		}
		return out, nil
	}
	id, err := strconv.ParseInt(name, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%w: broker %q is not a number", controller.ErrInvalidRequest, name)
	}
	if int32(id) != s.o.NodeID {
		return nil, fmt.Errorf("%w: broker %d; this is broker %d", controller.ErrInvalidRequest, id, s.o.NodeID)
	}
	settings := s.settings(img)
	for i := range s.o.BrokerConfigs {
		c := &s.o.BrokerConfigs[i]
		e := configEntry{name: c.Name, secret: c.Secret || secretName(c.Name), kind: c.Type, doc: c.Doc, readOnly: true}
		if d := metadata.BrokerConfigDef(c.Name); d != nil {
			e.kind, e.readOnly = d.Type, false
		}
		e.addLayers(c.Name, settings)
		if !c.NoDefault {
			e.synonyms = append(e.synonyms, configSynonym{c.Name, c.Default, kmsg.ConfigSourceDefaultConfig})
		}
		out = append(out, e.settle())
	}
	return out, nil
}

// secretName tells whether a broker setting of this name holds a secret. Too
// many hidden is an inconvenience, one too few is a leak.
func secretName(name string) bool {
	for _, part := range []string{"password", "jaas", "secret", "keystore.key", "credential"} {
		if strings.Contains(name, part) {
			return true
		}
	}
	return false
}
