package metadata

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Keys of mirror configs that code elsewhere asks for by name (spec 4.2).
const (
	MirrorBootstrapServers      = "bootstrap.servers"
	MirrorSourceClusterID       = "mirror.source.cluster.id"
	MirrorTopicsInclude         = "topics.include"
	MirrorTopicsExclude         = "topics.exclude"
	MirrorGroupsInclude         = "groups.include"
	MirrorGroupsExclude         = "groups.exclude"
	MirrorACLsInclude           = "acls.include"
	MirrorTopicPropsExclude     = "topic.properties.exclude"
	MirrorStartRequiresEmptyLME = "start.requires.empty.or.lme"
)

// filterKeys may change without touching the source connections (C5).
var filterKeys = []string{
	MirrorTopicsInclude, MirrorTopicsExclude, MirrorGroupsInclude, MirrorGroupsExclude,
	MirrorACLsInclude, MirrorTopicPropsExclude,
}

// defaultTopicPropsExclude: what is local to a cluster, and what would give the
// destination's safety away to the source's operators.
var defaultTopicPropsExclude = JoinList([]string{
	"follower.replication.throttled.replicas", "leader.replication.throttled.replicas",
	"message.timestamp.difference.max.ms", "log.message.timestamp.before.max.ms",
	"log.message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms",
	"message.timestamp.type", "unclean.leader.election.enable", "min.insync.replicas",
	MirrorThrottledReplicasConfig, MirrorULEConfig,
})

var mirrorTable = newTable(append([]*ConfigDef{
	{Name: MirrorBootstrapServers, Type: TypeList, NoDefault: true, check: bootstrapServers,
		Doc: "Addresses of the source, host:port; an empty host is localhost."},
	{Name: MirrorSourceClusterID, Type: TypeString, NoDefault: true, ReadOnly: true,
		Doc: "Id of the source, learnt at creation and compared at every refresh (W9)."},
	{Name: "request.timeout.ms", Type: TypeInt, Default: "30000", check: atLeast(1), Doc: "Timeout of requests to the source."},
	{Name: "socket.connection.setup.timeout.ms", Type: TypeLong, Default: "10000", check: atLeast(1), Doc: "First limit for connecting."},
	{Name: "socket.connection.setup.timeout.max.ms", Type: TypeLong, Default: "30000", check: atLeast(1), Doc: "Greatest limit for connecting."},
	{Name: "connections.max.idle.ms", Type: TypeLong, Default: "600000", check: atLeast(0), Doc: "Idle connections are closed after this time."},
	{Name: "fetch.wait.max.ms", Type: TypeInt, Default: "1000", check: atLeast(0), Doc: "How long the source may hold a fetch."},
	{Name: "fetch.backoff.ms", Type: TypeLong, Default: "1000", check: atLeast(0), Doc: "Delay after an error of one partition."},
	{Name: "fetch.min.bytes", Type: TypeInt, Default: "1", check: atLeast(0), Doc: "Bytes for which the source holds a fetch."},
	{Name: "fetch.response.max.bytes", Type: TypeInt, Default: "10485760", check: atLeast(1024), Doc: "Size of one fetch answer; one oversized first batch is still returned."},
	{Name: "fetch.max.bytes", Type: TypeInt, Default: "1048576", check: atLeast(1024), Doc: "Size per partition in one fetch answer."},
	{Name: "socket.timeout.ms", Type: TypeInt, Default: "30000", check: atLeast(1), Doc: "Limit for one read or write on a fetch connection."},
	{Name: "socket.receive.buffer.bytes", Type: TypeInt, Default: "65536", check: atLeast(-1), Doc: "Receive buffer; -1 leaves it to the system."},
	{Name: MirrorTopicPropsExclude, Type: TypeList, Default: defaultTopicPropsExclude, check: regexList, Doc: "Topic configs that are never copied."},
	{Name: MirrorTopicsInclude, Type: TypeList, Default: "", check: regexList, Doc: "Topics of the source that are mirrored as they appear."},
	{Name: MirrorTopicsExclude, Type: TypeList, Default: "__.*", check: regexList, Doc: "Topics that are never mirrored; beats topics.include."},
	{Name: MirrorGroupsInclude, Type: TypeList, Default: ".*", check: regexList, Doc: "Groups whose offsets are copied."},
	{Name: MirrorGroupsExclude, Type: TypeList, Default: "", check: regexList, Doc: "Groups whose offsets are not copied."},
	{Name: MirrorACLsInclude, Type: TypeList, Default: "*", check: aclRules, Doc: "ACL bindings to copy: resourceType;resourceName;operation;permission;principal."},
	{Name: MirrorStartRequiresEmptyLME, Type: TypeBoolean, Default: "false",
		Doc: "Refuse to mirror over a non-empty topic of which the source knows no last mirrored epoch, instead of starting from zero (guard against a mistyped address)."},
	{Name: "security.protocol", Type: TypeString, Default: "PLAINTEXT", check: oneOf("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"), Doc: "How to talk to the source."},
	{Name: "sasl.mechanism", Type: TypeString, Default: "PLAIN", check: oneOf("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), Doc: "SASL mechanism. OAUTHBEARER and GSSAPI are not supported."},
	{Name: "sasl.jaas.config", Type: TypePassword, NoDefault: true, Secret: true, Doc: "Credentials in Kafka's JAAS form."},
	{Name: "ssl.protocol", Type: TypeString, Default: "TLSv1.3", check: oneOf("TLSv1.2", "TLSv1.3", "TLS"), Doc: "Highest TLS version."},
	{Name: "ssl.enabled.protocols", Type: TypeList, Default: "TLSv1.2,TLSv1.3", check: listOf("TLSv1.2", "TLSv1.3"), Doc: "TLS versions that may be used."},
	{Name: "ssl.cipher.suites", Type: TypeList, Default: "", Doc: "Cipher suites that may be used; empty leaves it to the library."},
	{Name: "ssl.endpoint.identification.algorithm", Type: TypeString, Default: "https", check: oneOf("https", ""), Doc: "Empty switches the check of the server's name off."},
	{Name: "ssl.keystore.type", Type: TypeString, Default: "PEM", check: storeType, Doc: "PEM or PKCS12."},
	{Name: "ssl.keystore.location", Type: TypeString, NoDefault: true, Doc: "File with our certificate and key."},
	{Name: "ssl.keystore.password", Type: TypePassword, NoDefault: true, Secret: true, Doc: "Password of the key store."},
	{Name: "ssl.keystore.key", Type: TypePassword, NoDefault: true, Secret: true, Doc: "Our private key as PEM."},
	{Name: "ssl.keystore.certificate.chain", Type: TypeString, NoDefault: true, Doc: "Our certificate chain as PEM."},
	{Name: "ssl.key.password", Type: TypePassword, NoDefault: true, Secret: true, Doc: "Password of the private key."},
	{Name: "ssl.truststore.type", Type: TypeString, Default: "PEM", check: storeType, Doc: "PEM or PKCS12."},
	{Name: "ssl.truststore.location", Type: TypeString, NoDefault: true, Doc: "File with the authorities we trust."},
	{Name: "ssl.truststore.password", Type: TypePassword, NoDefault: true, Secret: true, Doc: "Password of the trust store."},
	{Name: "ssl.truststore.certificates", Type: TypeString, NoDefault: true, Doc: "The authorities we trust as PEM."},
}, ignoredKeys(
	// Java runtime, and mechanisms that are not ours: accepted with a warning,
	// so that a properties file of a Java client can be used as it is.
	"security.providers", "ssl.provider", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm",
	"ssl.secure.random.implementation", "ssl.engine.factory.class",
	"sasl.client.callback.handler.class", "sasl.login.class", "sasl.login.callback.handler.class",
	"sasl.kerberos.service.name", "sasl.kerberos.kinit.cmd", "sasl.kerberos.ticket.renew.window.factor",
	"sasl.kerberos.ticket.renew.jitter", "sasl.kerberos.min.time.before.relogin",
)...))

func ignoredKeys(names ...string) []*ConfigDef {
	defs := make([]*ConfigDef, len(names))
	for i, n := range names {
		defs[i] = &ConfigDef{Name: n, Type: TypeString, NoDefault: true, Ignored: true, Doc: "Accepted and ignored."}
	}
	return defs
}

// MirrorConfigDefs is the table of mirror configs by name. Shared.
func MirrorConfigDefs() []*ConfigDef { return mirrorTable.defs }

// MirrorConfigDef is one row, or nil. It takes canonical names.
func MirrorConfigDef(name string) *ConfigDef { return mirrorTable.byName[name] }

// CanonicalMirrorConfig turns the older spellings into ours (C1): a mirror.
// prefix before fetch, socket and filter keys, and acl.include.
func CanonicalMirrorConfig(name string) string {
	if mirrorTable.byName[name] != nil {
		return name
	}
	if name = strings.TrimPrefix(name, "mirror."); name == "acl.include" {
		return MirrorACLsInclude
	}
	return name
}

// ValidateMirrorConfigs checks a whole set of mirror configs and returns it under
// canonical names, with the keys that mean nothing here. bootstrap.servers must
// be there (M1). Nothing of it is to be stored if there is an error (C4).
func ValidateMirrorConfigs(configs map[string]string) (canonical map[string]string, ignored []string, err error) {
	canonical = make(map[string]string, len(configs))
	for _, name := range sortedKeys(configs) {
		c := CanonicalMirrorConfig(name)
		if prev, ok := canonical[c]; ok && prev != configs[name] {
			return nil, nil, fmt.Errorf("%w: %s: given under two spellings with different values", ErrInvalidConfig, c)
		}
		if err := ValidateMirrorConfig(c, configs[name]); err != nil {
			return nil, nil, err
		}
		canonical[c] = configs[name]
		if mirrorTable.byName[c].Ignored {
			ignored = append(ignored, c)
		}
	}
	if strings.TrimSpace(canonical[MirrorBootstrapServers]) == "" {
		return nil, nil, fmt.Errorf("%w: %s: required", ErrInvalidConfig, MirrorBootstrapServers)
	}
	return canonical, ignored, nil
}

// ValidateMirrorConfig checks one value under its canonical name.
func ValidateMirrorConfig(name, value string) error {
	d := mirrorTable.byName[name]
	if d == nil {
		return fmt.Errorf("%w: %s: no such mirror config", ErrInvalidConfig, name)
	}
	return d.Validate(value)
}

// ConnectionConfigsEqual reports whether a and b differ at most in filters, which
// take effect without reconnecting to the source (C5).
func ConnectionConfigsEqual(a, b map[string]string) bool {
	strip := func(m map[string]string) map[string]string {
		c := maps.Clone(m)
		for _, k := range filterKeys {
			delete(c, k)
		}
		return c
	}
	return maps.Equal(strip(a), strip(b))
}

// Config is the value in force: the stored one, or the default of the table.
func (m *Mirror) Config(name string) string {
	if v, ok := m.Configs[name]; ok {
		return v
	}
	if d := mirrorTable.byName[name]; d != nil {
		return d.Default
	}
	return ""
}

// SourceClusterID is the id of the source, empty if it was never learnt.
func (m *Mirror) SourceClusterID() string { return m.Configs[MirrorSourceClusterID] }

// Redacted is the configs with stars for secrets.
func (m *Mirror) Redacted() map[string]string {
	c := maps.Clone(m.Configs)
	for k := range c {
		if d := mirrorTable.byName[k]; d == nil || d.Secret {
			c[k] = "***"
		}
	}
	return c
}

// String shows no secret.
func (m *Mirror) String() string { return fmt.Sprintf("mirror %s %v", m.Name, m.Redacted()) }

// GoString shows no secret, so that %#v does not either.
func (m *Mirror) GoString() string { return m.String() }

// LogValue shows no secret.
func (m *Mirror) LogValue() slog.Value { return slog.StringValue(m.String()) }

// CompileRegexList makes one expression of a list: split at commas, trimmed,
// joined with |, anchored at both ends (C2). Hence a pattern cannot contain a
// comma. An empty list matches nothing.
func CompileRegexList(list string) (*regexp.Regexp, error) {
	patterns := SplitList(list)
	if len(patterns) == 0 {
		return matchNothing, nil
	}
	// Each pattern is tried alone first: joined, "a)|(b" would slip through
	// and mean something else.
	for _, p := range patterns {
		if _, err := regexp.Compile(p); err != nil {
			return nil, fmt.Errorf("%w: pattern %q: %w", ErrInvalidConfig, p, err)
		}
	}
	re, err := regexp.Compile("^(?:" + strings.Join(patterns, "|") + ")$")
	if err != nil {
		return nil, fmt.Errorf("%w: patterns %q: %w", ErrInvalidConfig, list, err)
	}
	return re, nil
}

// matchNothing needs a character beyond the end of the text.
var matchNothing = regexp.MustCompile(`\z.`)

// LiteralPattern is the pattern that matches exactly this name (W5).
func LiteralPattern(name string) string { return regexp.QuoteMeta(name) }

func regexList(v string) error {
	_, err := CompileRegexList(v)
	return err
}

func bootstrapServers(v string) error {
	servers := SplitList(v)
	if len(servers) == 0 {
		return fmt.Errorf("needs at least one host:port")
	}
	for _, s := range servers {
		_, port, err := net.SplitHostPort(s)
		if err != nil {
			return fmt.Errorf("%q is not host:port", s)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("%q: port must be 1 to 65535", s)
		}
	}
	return nil
}

func storeType(v string) error {
	if strings.EqualFold(v, "JKS") {
		return fmt.Errorf("JKS is not supported; convert with keytool to PKCS12, or use PEM")
	}
	return oneOf("PEM", "PKCS12")(v)
}

func aclRules(v string) error {
	_, err := CompileACLRules(v)
	return err
}

func sortedKeys[V any](m map[string]V) []string {
	return slices.Sorted(maps.Keys(m))
}
