package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/clientconfig"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// clusterKeys are about clusters of several processes: who a process is, how
// brokers reach each other, and how they replicate.
var clusterKeys = []key{
	{name: "process.roles", kind: choice, def: "broker,controller", choices: "broker,controller|controller,broker|broker|controller", list: true, doc: "What this process is: a broker has records and clients, a controller has the cluster's metadata. Three processes that are both make the smallest cluster that survives the loss of one."},
	{name: "broker.rack", kind: text, def: "", doc: "Rack or zone of this broker. Replicas are spread over racks."},
	{name: "inter.broker.listener.name", kind: text, def: "", doc: "Listener that brokers use among themselves; it has the same name on all of them. Default: the first one."},
	{name: "security.inter.broker.protocol", kind: text, def: "", doc: "Protocol of the listener that brokers use among themselves, instead of inter.broker.listener.name."},
	{name: "sasl.mechanism.inter.broker.protocol", kind: text, def: "", doc: "Mechanism that brokers log in with among themselves, PLAIN or SCRAM: required in a cluster whose listener for that has SASL, and enabled there. Name and password are the username and password of its sasl.jaas.config."},

	{name: "broker.heartbeat.interval.ms", kind: milliseconds, def: "500", min: 10, max: 60000, doc: "Time between two heartbeats from this broker to the controller."},
	{name: "broker.session.timeout.ms", kind: milliseconds, def: "3000", min: 100, max: 600000, doc: "How long a broker may be silent before others lead what it led. Shorter fails over sooner, and also because of a pause that would have passed. The same on all nodes."},
	{name: "initial.broker.registration.timeout.ms", kind: milliseconds, def: "60000", min: 1000, doc: "How long a broker tries to register with the controller at its start before it gives up."},
	{name: "controlled.shutdown.enable", kind: boolean, def: "true", doc: "At a stop, let others lead first what this broker leads, so that clients move without an error."},
	{name: "controlled.shutdown.max.retries", kind: integer, def: "3", max: 1000, doc: "Times that the controller is asked for that again when it does not answer; then the broker stops all the same."},
	{name: "controlled.shutdown.retry.backoff.ms", kind: milliseconds, def: "5000", min: 1, doc: "Longest wait for each of those answers, and for the leaders to move; server.stop.timeout.ms bounds it all."},

	{name: "auto.leader.rebalance.enable", kind: boolean, def: "true", doc: "Give leaderships back to the brokers that come first in the lists of replicas, when those are in sync again."},
	{name: "leader.imbalance.check.interval.seconds", kind: integer, def: "300", min: 1, max: 1 << 30, doc: "Time between two looks of the controller for that."},
	{name: "leader.imbalance.per.broker.percentage", kind: integer, def: "10", max: 100, doc: "How many of a hundred partitions that a broker should lead others may lead before they are given back."},

	{name: "replica.lag.time.max.ms", kind: milliseconds, def: "30000", min: 10, doc: "A replica that has not caught up with its leader for so long is not in sync any more: writes with acks=all do not wait for it, and it cannot lead."},
	{name: "num.replica.fetchers", kind: integer, def: "1", min: 1, max: 64, doc: "Connections to each other broker that replicas are fetched over."},
	{name: "replica.fetch.min.bytes", kind: bytesize, def: "1", min: 1, max: 1 << 30, doc: "Bytes that a leader waits for before it answers a replica, up to replica.fetch.wait.max.ms."},
	{name: "replica.fetch.max.bytes", kind: bytesize, def: "1048576", min: 1, max: 1 << 30, doc: "Bytes per partition in one such answer; a larger first batch still comes whole."},
	{name: "replica.fetch.response.max.bytes", kind: bytesize, def: "10485760", min: 1, max: 1 << 30, doc: "Bytes of the whole answer, likewise."},
	{name: "replica.fetch.wait.max.ms", kind: milliseconds, def: "500", min: 1, max: 60000, doc: "Longest time a leader waits for records before it answers a replica; below replica.lag.time.max.ms, or idle replicas would fall out of sync."},
	{name: "replica.fetch.backoff.ms", kind: milliseconds, def: "1000", min: 1, max: 600000, doc: "Pause after a failed fetch before a replica asks its leader again."},
	{name: "replica.socket.timeout.ms", kind: milliseconds, def: "30000", min: 100, max: 600000, doc: "How long a broker waits for another one's answer; above replica.fetch.wait.max.ms."},
	{name: "leader.replication.throttled.rate", kind: bytesize, def: "9223372036854775807", max: math.MaxInt64, dynamic: true, doc: "Bytes per second that this broker gives to others' replicas for what it leads and leader.replication.throttled.replicas of the topics lists. kafka-reassign-partitions.sh --throttle sets it and --verify takes it away."},
	{name: "follower.replication.throttled.rate", kind: bytesize, def: "9223372036854775807", max: math.MaxInt64, dynamic: true, doc: "Bytes per second that this broker's replicas take together which are in follower.replication.throttled.replicas of their topics and not in sync; likewise."},
	{name: "mirror.replication.throttled.rate", kind: bytesize, def: "9223372036854775807", max: math.MaxInt64, dynamic: true, doc: "Bytes per second that this broker takes from the sources of mirrors for what it leads and mirror.replication.throttled.replicas of the topics lists, so that a mirror that catches up leaves something of the line. Replication between brokers is not bound by it."},
	{name: "replica.selector.class", kind: text, def: "", doc: "Empty, or org.apache.kafka.common.replica.LeaderSelector: everybody reads from the leader. org.apache.kafka.common.replica.RackAwareReplicaSelector: a consumer with client.rack reads from a replica whose broker.rack is the same, if there is one. The same on all brokers; another one is refused."},
}

// Values of replica.selector.class.
const (
	leaderSelector    = "org.apache.kafka.common.replica.LeaderSelector"
	rackAwareSelector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
)

// RackAware tells whether consumers are sent to replicas in their rack.
func (c *Config) RackAware() bool { return c.String("replica.selector.class") == rackAwareSelector }

// IsBroker tells whether this process has the role of a broker.
func (c *Config) IsBroker() bool { return c.hasRole("broker") }

// IsController tells whether this process has the role of a controller.
func (c *Config) IsController() bool { return c.hasRole("controller") }

func (c *Config) hasRole(role string) bool {
	return slices.Contains(metadata.SplitList(c.String("process.roles")), role)
}

// InterBroker is how brokers reach each other: the listener's name, and Kafka's
// client properties for it, secrets in clear.
type InterBroker struct {
	Listener string
	Client   map[string]string
	// Incomplete says why brokers could not log in there, nil if they can. A
	// cluster of one broker never has to.
	Incomplete error
}

// InterBroker finds the listener that brokers use among themselves, and what they
// connect with: its own certificate and trust store, and the user of its
// mechanism's login module, as in Kafka.
func (c *Config) InterBroker(listeners []Listener) (*InterBroker, error) {
	name, protocol := strings.ToUpper(c.String("inter.broker.listener.name")), strings.ToUpper(c.String("security.inter.broker.protocol"))
	i := 0
	switch {
	case name != "" && protocol != "":
		return nil, errors.New("inter.broker.listener.name and security.inter.broker.protocol are both set; set one")
	case name != "":
		if i = slices.IndexFunc(listeners, func(l Listener) bool { return l.Name == name }); i < 0 {
			return nil, fmt.Errorf("inter.broker.listener.name: %s is not in listeners", name)
		}
	case protocol != "":
		if i = slices.IndexFunc(listeners, func(l Listener) bool { return l.Protocol == protocol }); i < 0 {
			return nil, fmt.Errorf("security.inter.broker.protocol: no listener speaks %s", protocol)
		}
	}
	l := listeners[i]
	props := map[string]string{"security.protocol": l.Protocol}
	for key, value := range l.Security {
		if strings.HasPrefix(key, "ssl.") {
			props[key] = value
		}
	}
	out := &InterBroker{Listener: l.Name, Client: props}
	mechanism := strings.ToUpper(c.String("sasl.mechanism.inter.broker.protocol"))
	if mechanism != "" && !slices.ContainsFunc(listeners, func(l Listener) bool {
		return slices.Contains(metadata.SplitList(strings.ToUpper(l.Security["sasl.enabled.mechanisms"])), mechanism)
	}) {
		return nil, fmt.Errorf("sasl.mechanism.inter.broker.protocol: %s is not enabled on any listener", mechanism)
	}
	if l.Protocol == clientconfig.SASLPlaintext || l.Protocol == clientconfig.SASLSSL {
		if mechanism == "" {
			out.Incomplete = fmt.Errorf("sasl.mechanism.inter.broker.protocol: is required by listener %s, which brokers use among themselves", l.Name)
			return out, nil
		}
		props["sasl.mechanism"] = mechanism
		props[jaasConfig] = l.Security[strings.ToLower(mechanism)+"."+jaasConfig]
	}
	if _, err := clientconfig.Parse(props, clientconfig.AllowUnknown()); err != nil {
		out.Incomplete = fmt.Errorf("listener.name.%s: brokers cannot connect to each other: %w", strings.ToLower(l.Name), err)
	}
	return out, nil
}

// checkCluster finds faults of a process among others.
func (c *Config) checkCluster() []error {
	var errs []error
	below := func(low, high string) {
		if c.Int(low) >= c.Int(high) {
			errs = append(errs, fmt.Errorf("%s: %d is not below %s=%d", low, c.Int(low), high, c.Int(high)))
		}
	}
	below("broker.heartbeat.interval.ms", "broker.session.timeout.ms")
	below("replica.fetch.wait.max.ms", "replica.lag.time.max.ms")
	below("replica.fetch.wait.max.ms", "replica.socket.timeout.ms")
	switch v := c.String("replica.selector.class"); v {
	case "", leaderSelector, rackAwareSelector:
	default:
		errs = append(errs, fmt.Errorf("replica.selector.class: %q is neither %s nor %s", v, leaderSelector, rackAwareSelector))
	}
	return errs
}

// ManyNodes tells whether this process is one of several.
func (c *Config) ManyNodes() bool {
	return strings.Contains(c.String("controller.quorum.voters"), ",") || !c.IsBroker() || !c.IsController() || c.String("metadata.etcd.endpoints") != ""
}
