package clientconfig

import (
	"fmt"
	"strings"
)

// KeyError is a fault in one property. Its text never holds a secret value.
type KeyError struct {
	Key string
	Err error
}

func (e *KeyError) Error() string { return e.Key + ": " + e.Err.Error() }
func (e *KeyError) Unwrap() error { return e.Err }

func keyErrorf(key, format string, args ...any) error {
	return &KeyError{Key: key, Err: fmt.Errorf(format, args...)}
}

// The keys that have an effect here.
const (
	keyBootstrap      = "bootstrap.servers"
	keyProtocol       = "security.protocol"
	keyMechanism      = "sasl.mechanism"
	keyJAAS           = "sasl.jaas.config"
	keyRequestTimeout = "request.timeout.ms"
	keyDialTimeout    = "socket.connection.setup.timeout.ms"
	keyIdleTimeout    = "connections.max.idle.ms"

	keyTLSProtocol       = "ssl.protocol"
	keyTLSEnabled        = "ssl.enabled.protocols"
	keyTLSCiphers        = "ssl.cipher.suites"
	keyTLSIdentification = "ssl.endpoint.identification.algorithm"

	keyTrustType     = "ssl.truststore.type"
	keyTrustLocation = "ssl.truststore.location"
	keyTrustPassword = "ssl.truststore.password"
	keyTrustPEM      = "ssl.truststore.certificates"

	keyStoreType     = "ssl.keystore.type"
	keyStoreLocation = "ssl.keystore.location"
	keyStorePassword = "ssl.keystore.password"
	keyStoreChain    = "ssl.keystore.certificate.chain"
	keyStoreKey      = "ssl.keystore.key"
	keyKeyPassword   = "ssl.key.password"
)

// IsSecret tells whether a property's value must never be shown (C6).
func IsSecret(key string) bool {
	switch key {
	case keyJAAS, keyStoreKey, keyStoreChain, keyTrustPEM:
		return true
	}
	return strings.HasSuffix(key, ".password") || strings.HasPrefix(key, "sasl.oauthbearer.") && strings.Contains(key, "secret")
}

var effective = set(
	keyBootstrap, keyProtocol, keyMechanism, keyJAAS, keyRequestTimeout, keyDialTimeout, keyIdleTimeout,
	keyTLSProtocol, keyTLSEnabled, keyTLSCiphers, keyTLSIdentification,
	keyTrustType, keyTrustLocation, keyTrustPassword, keyTrustPEM,
	keyStoreType, keyStoreLocation, keyStorePassword, keyStoreChain, keyStoreKey, keyKeyPassword,
)

// jvmOnly exist for a Java runtime: accepted with a warning (spec 4.2).
var jvmOnly = set(
	"ssl.provider", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm",
	"ssl.secure.random.implementation", "security.providers",
	"ssl.engine.factory.class", "sasl.client.callback.handler.class",
	"sasl.login.callback.handler.class", "sasl.login.class",
	"metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
	"auto.include.jmx.reporter", "enable.metrics.push",
	"sasl.kerberos.kinit.cmd", "sasl.kerberos.ticket.renew.jitter",
	"sasl.kerberos.ticket.renew.window.factor", "sasl.kerberos.min.time.before.relogin",
	"key.serializer", "value.serializer", "key.deserializer", "value.deserializer",
	"interceptor.classes", "partitioner.class", "partition.assignment.strategy",
)

// ordinary are keys of Kafka's clients that say how to produce, consume or
// administer, not how to reach the cluster. A shared client.properties may
// carry them; they are accepted in silence.
var ordinary = set(
	"client.id", "client.dns.lookup", "client.rack", "group.id", "group.instance.id", "group.protocol",
	"acks", "batch.size", "linger.ms", "buffer.memory", "compression.type", "max.request.size",
	"max.in.flight.requests.per.connection", "enable.idempotence", "transactional.id",
	"transaction.timeout.ms", "delivery.timeout.ms", "max.block.ms", "retries", "retry.backoff.ms",
	"retry.backoff.max.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms", "default.api.timeout.ms",
	"socket.connection.setup.timeout.max.ms", "send.buffer.bytes", "receive.buffer.bytes",
	"metadata.max.age.ms", "metadata.max.idle.ms", "metadata.recovery.strategy",
	"auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms", "fetch.min.bytes",
	"fetch.max.bytes", "fetch.max.wait.ms", "max.partition.fetch.bytes", "max.poll.records",
	"max.poll.interval.ms", "session.timeout.ms", "heartbeat.interval.ms", "isolation.level",
	"check.crcs", "exclude.internal.topics", "allow.auto.create.topics",
	"sasl.kerberos.service.name",
)

func set(keys ...string) map[string]bool {
	m := make(map[string]bool, len(keys))
	for _, k := range keys {
		m[k] = true
	}
	return m
}
