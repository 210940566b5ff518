package config

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Keys of the security of listeners. Each may stand for all listeners, or behind
// listener.name.NAME. for one, which comes first; some also behind
// listener.name.NAME.MECHANISM. for one mechanism there.
const listenerPrefix = "listener.name."

// jaasConfig only makes sense for one mechanism of one listener, as in Kafka.
const jaasConfig = "sasl.jaas.config"

// mechanismNames are what may stand between a listener and a key.
var mechanismNames = []string{"plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi"}

// scope says behind which prefixes a key may stand.
type scope int

const (
	brokerOnly scope = iota
	ofListener
	ofMechanism // of a listener too
)

// securityKeys are part of the reference, in this order.
var securityKeys = []key{
	{name: "ssl.keystore.type", kind: text, def: "", scope: ofListener, doc: "PEM or PKCS12. Default: what the file is. JKS is refused: convert it."},
	{name: "ssl.keystore.location", kind: text, def: "", scope: ofListener, doc: "File with the listener's private key and certificate chain. Read again within seconds when it changes; connections stay."},
	{name: "ssl.keystore.password", kind: text, def: "", secret: true, scope: ofListener, doc: "Password of a PKCS12 file."},
	{name: "ssl.keystore.certificate.chain", kind: text, def: "", secret: true, scope: ofListener, doc: "Certificate chain in PEM form, instead of a file."},
	{name: "ssl.keystore.key", kind: text, def: "", secret: true, scope: ofListener, doc: "Private key in PEM form (PKCS#8), instead of a file."},
	{name: "ssl.key.password", kind: text, def: "", secret: true, scope: ofListener, doc: "Password of an encrypted private key in PEM form."},
	{name: "ssl.truststore.type", kind: text, def: "", scope: ofMechanism, doc: "PEM or PKCS12. Default: what the file is."},
	{name: "ssl.truststore.location", kind: text, def: "", scope: ofMechanism, doc: "File with the authorities that issue clients' certificates. Read again when it changes. Behind listener.name.NAME.oauthbearer. this and the next two: those of the https:// address of the keys of tokens, instead of the system's."},
	{name: "ssl.truststore.password", kind: text, def: "", secret: true, scope: ofMechanism, doc: "Password of a PKCS12 file."},
	{name: "ssl.truststore.certificates", kind: text, def: "", secret: true, scope: ofMechanism, doc: "Those authorities in PEM form, instead of a file."},
	{name: "ssl.client.auth", kind: choice, def: "none", choices: "none|requested|required", scope: ofListener, doc: "Whether clients show a certificate. For all listeners it means those of SSL; one of SASL_SSL is asked by name only."},
	{name: "ssl.enabled.protocols", kind: text, def: "TLSv1.2,TLSv1.3", list: true, scope: ofListener, doc: "TLSv1.2, TLSv1.3, or both."},
	{name: "ssl.protocol", kind: text, def: "TLSv1.3", scope: ofListener, doc: "Highest version, where ssl.enabled.protocols is not set."},
	{name: "ssl.cipher.suites", kind: text, def: "", list: true, scope: ofListener, doc: "Cipher suites by their standard names. Default: Go's secure ones. Those of TLS 1.3 cannot be chosen."},
	{name: "ssl.principal.mapping.rules", kind: text, def: "DEFAULT", scope: ofListener, doc: "RULE:pattern/replacement/[LU] and DEFAULT, separated by commas: the first that matches the whole subject of a client's certificate makes the principal's name of it."},
	{name: "sasl.enabled.mechanisms", kind: text, def: "", list: true, scope: ofListener, doc: "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER. Required by listeners with SASL. PLAIN wants listener.name.NAME.plain.sasl.jaas.config with a PlainLoginModule and user_NAME=\"password\" for each user."},
	{name: "sasl.plaintext.passwords.allow", kind: boolean, def: "false", doc: "Allow PLAIN and OAUTHBEARER on a SASL_PLAINTEXT listener that other machines reach, where everybody on the way sees passwords and tokens."},
	{name: "sasl.oauthbearer.jwks.endpoint.url", kind: text, def: "", scope: ofMechanism, doc: "https:// or file:// address of the keys that tokens are signed with."},
	{name: "sasl.oauthbearer.expected.issuer", kind: text, def: "", scope: ofMechanism, doc: "Issuer that a token has to name."},
	{name: "sasl.oauthbearer.expected.audience", kind: text, def: "", list: true, scope: ofMechanism, doc: "Audiences of which a token has to name one."},
	{name: "sasl.oauthbearer.clock.skew.seconds", kind: integer, def: "30", max: 3600, scope: ofMechanism, doc: "How far the issuer's clock may be from ours."},
	{name: "sasl.oauthbearer.sub.claim.name", kind: text, def: "sub", scope: ofMechanism, doc: "Claim with the principal's name."},
	{name: "sasl.oauthbearer.jwks.endpoint.refresh.ms", kind: milliseconds, def: "3600000", min: 1000, scope: ofMechanism, doc: "How old the keys may get. A token with an unknown key has them asked for at once."},
	{name: "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", kind: milliseconds, def: "10000", min: 100, scope: ofMechanism, doc: "Least time between two questions for the keys."},
	{name: "connections.max.reauth.ms", kind: milliseconds, def: "0", scope: ofMechanism, doc: "How long a login lasts before the client has to renew it (clients do that by themselves); a connection that does not is closed. 0: for ever, or until its token ends."},
	{name: "connection.failed.authentication.delay.ms", kind: milliseconds, def: "100", max: 5000, doc: "How long the answer to a failed login waits; twice as long with each further failure of the address or the name, 5 s at most."},
	{name: "max.connections.per.ip.overrides", kind: text, def: "", list: true, doc: "HOST:NUMBER[,…]: other limits than max.connections.per.ip for single addresses."},
	{name: "max.connections.per.principal", kind: integer, def: "2147483647", min: 1, max: 1<<31 - 1, doc: "Connections of one principal, where clients say who they are."},
	{name: "ssl.endpoint.identification.algorithm", kind: choice, def: "https", choices: "https|", scope: ofListener, doc: "Whether brokers compare the host in each other's certificates with the one they connect to. Empty: they do not, but the certificate has to be of a trusted issuer all the same."},
}

// listenerValue is a key that was set for one listener.
type listenerValue struct {
	listener  string // in lower case
	mechanism string // in lower case; "" for all
	key       *key
	value     string
	origin    string
}

// setListener takes the keys behind listener.name. It tells whether name is one.
func (c *Config) setListener(name, value, origin string) (taken bool, err error) {
	rest, ok := strings.CutPrefix(name, listenerPrefix)
	if !ok {
		return false, nil
	}
	v := listenerValue{value: value, origin: origin}
	v.listener, rest, _ = strings.Cut(rest, ".")
	v.listener = strings.ToLower(v.listener)
	if m, after, ok := strings.Cut(rest, "."); ok && slices.Contains(mechanismNames, strings.ToLower(m)) {
		v.mechanism, rest = strings.ToLower(m), after
	}
	v.key = find(rest)
	switch {
	case rest == jaasConfig && v.mechanism == "":
		return true, fmt.Errorf("%s: belongs to one mechanism: listener.name.%s.MECHANISM.%s (%s)", name, v.listener, jaasConfig, origin)
	case rest == jaasConfig:
		v.key = &key{name: jaasConfig, secret: true}
	case v.key == nil && jvmOnly(rest):
		c.Warnings = append(c.Warnings, fmt.Sprintf("%s has no meaning here and is ignored (%s)", name, origin))
		return true, nil
	case v.mechanism != "" && v.mechanism != "oauthbearer" && strings.HasPrefix(rest, "ssl."):
		return true, fmt.Errorf("%s: only OAUTHBEARER asks anybody over TLS (%s)", name, origin)
	case v.key == nil, v.mechanism == "" && v.key.scope == brokerOnly && !slices.Contains([]string{"max.connections", connectionRate}, rest), v.mechanism != "" && v.key.scope != ofMechanism:
		return true, fmt.Errorf("%s: unknown key for a listener or a mechanism (%s)", name, origin)
	}
	if err := v.key.check(value); err != nil {
		return true, fmt.Errorf("%s: %w (%s)", strings.TrimSuffix(name, rest), err, origin)
	}
	c.listener[name] = v
	return true, nil
}

// security is what holds for one listener: keys without a prefix, and those of one
// mechanism behind its name in lower case.
func (c *Config) security(listener, protocol string) map[string]string {
	props := map[string]string{}
	for i := range keys {
		k := &keys[i]
		// As in Kafka: SASL says who a client is, and a certificate besides is not
		// asked for by accident.
		skip := k.name == clientconfig.KeyClientAuth && strings.HasPrefix(protocol, "SASL")
		if k.scope != brokerOnly && c.IsSet(k.name) && !skip {
			props[k.name] = c.values[k.name]
		}
	}
	for _, v := range c.listener {
		if v.listener != strings.ToLower(listener) {
			continue
		}
		name := v.key.name
		if v.mechanism != "" {
			name = v.mechanism + "." + name
		}
		props[name] = v.value
	}
	return props
}

// checkSecurity finds keys of listeners that are not there, and what brokers use
// among themselves.
func (c *Config) checkSecurity(listeners []Listener) []error {
	var errs []error
	has := func(match func(Listener) bool) bool { return slices.ContainsFunc(listeners, match) }
	for _, name := range slices.Sorted(maps.Keys(c.listener)) {
		v := c.listener[name]
		known := has(func(l Listener) bool { return strings.ToLower(l.Name) == v.listener }) || c.isControllerListener(v.listener)
		if !known {
			errs = append(errs, fmt.Errorf("%s: no listener of that name in listeners", name))
		}
	}
	if c.IsBroker() {
		switch ib, err := c.InterBroker(listeners); {
		case err != nil:
			errs = append(errs, err)
		case ib.Incomplete != nil && c.ManyNodes():
			errs = append(errs, ib.Incomplete)
		}
	}
	if _, err := c.PerIPOverrides(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// PerIPOverrides parses max.connections.per.ip.overrides: limits by host.
func (c *Config) PerIPOverrides() (map[string]int, error) {
	out := map[string]int{}
	for _, item := range metadata.SplitList(c.String("max.connections.per.ip.overrides")) {
		i := strings.LastIndexByte(item, ':')
		n, err := strconv.Atoi(item[i+1:])
		if i < 1 || err != nil || n < 0 {
			return nil, fmt.Errorf("max.connections.per.ip.overrides: %q is not HOST:NUMBER", item)
		}
		out[strings.Trim(item[:i], "[]")] = n
	}
	return out, nil
}

// loopback tells whether only this machine reaches a host. Names other than
// localhost are not resolved: what they stand for may change.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
