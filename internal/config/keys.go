package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// kind is how a value is read and what is wrong with a bad one.
type kind int

const (
	text kind = iota
	boolean
	integer
	milliseconds
	bytesize
	decimal
	choice
)

// key is one line of the reference: what an operator may set, in which unit,
// and what it trades.
type key struct {
	name    string
	kind    kind
	def     string
	min     int64 // of numbers
	max     int64 // of numbers; 0 = no limit
	nonzero bool  // of numbers: the range has a hole at 0
	choices string
	secret  bool  // never printed
	scope   scope // prefixes it may stand behind
	list    bool  // a text of several values, separated by commas
	dynamic bool  // may change while the server runs (kafka-configs): a row of internal/metadata too
	doc     string
}

const unlimited = int64(1<<63 - 1)

// keys is every server option. Names without a prefix of ours are Kafka's, and
// mean what they mean there.
var keys = slices.Concat(serverKeys, quorumKeys, clusterKeys, securityKeys)

var serverKeys = []key{
	{name: "node.id", kind: integer, def: "1", max: 1 << 30, doc: "Number of this node, unique in the cluster. It cannot change once data exist."},
	{name: "listeners", kind: text, def: "PLAINTEXT://127.0.0.1:9092", list: true, doc: "NAME://HOST:PORT[,…] to listen on. An empty host listens on every address. Port 0 takes a free one."},
	{name: "advertised.listeners", kind: text, def: "", list: true, doc: "NAME://HOST:PORT[,…] that clients are told. Default: listeners, with this machine's name for an empty host."},
	{name: "listener.security.protocol.map", kind: text, def: "PLAINTEXT:PLAINTEXT", list: true, doc: "NAME:PROTOCOL[,…] of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL. A listener that is not named here has the protocol of its name."},
	{name: "log.dirs", kind: text, def: "./lockstep-data", list: true, doc: "Directories of the logs, separated by commas, one per disk. A new log goes where the fewest are. One that cannot be used is offline with its logs, and the others go on."},
	{name: "metadata.log.dir", kind: text, def: "", doc: "Directory of the cluster's metadata; the server does not start without it. Default: the first of log.dirs."},
	{name: "admin.listener", kind: text, def: "127.0.0.1:9644", doc: "HOST:PORT of /metrics, /livez and /readyz. Empty switches it off."},
	{name: "admin.pprof.enable", kind: boolean, def: "false", doc: "Serve /debug/pprof on the admin listener."},

	{name: "authorizer.class.name", kind: text, def: "", doc: "org.apache.kafka.metadata.authorizer.StandardAuthorizer makes clients need ACLs: what none allows is refused. Kafka's older name, kafka.security.authorizer.AclAuthorizer, is the same. Empty: every client may do everything."},
	{name: "super.users", kind: text, def: "", doc: "Principals that ACLs do not bind, divided by semicolons: User:admin;User:CN=ops,O=example. Without one nobody can create the first ACL."},
	{name: "allow.everyone.if.no.acl.found", kind: boolean, def: "false", doc: "Open resources that no ACL is about to everybody. Any ACL about a resource then closes it to all whom it does not name."},

	{name: "audit.log.path", kind: text, def: "", doc: "File that gets a line of JSON for each request that was refused a right or that changes the cluster. Empty: none is written."},
	{name: "audit.log.max.bytes", kind: bytesize, def: "104857600", min: 1 << 20, max: 1 << 40, doc: "Size at which that file is set aside, with the time in its name, and a new one begun; whole MiB."},
	{name: "audit.log.max.files", kind: integer, def: "10", min: 1, max: 10000, doc: "Files set aside that are kept."},
	{name: "audit.log.required", kind: boolean, def: "false", doc: "Stop the server when a line cannot be written. Otherwise the log says so and lockstep_audit_lines_lost_total counts it."},

	{name: "auto.create.topics.enable", kind: boolean, def: "true", doc: "Create a topic when a client asks for one that does not exist."},
	{name: "num.partitions", kind: integer, def: "1", min: 1, max: 100000, doc: "Partitions of topics created without a count."},
	{name: "default.replication.factor", kind: integer, def: "1", min: 1, max: 32767, doc: "Replicas of topics created without a factor."},
	{name: "socket.request.max.bytes", kind: bytesize, def: "104857600", min: 1024, max: 1 << 30, doc: "Largest produce request. Other requests have smaller limits of their own."},
	{name: "queued.max.request.bytes", kind: bytesize, def: "134217728", min: -1, doc: "Memory that requests being read or handled may take together; connections wait beyond it. At least socket.request.max.bytes, to which it is raised unless it is set. -1: no limit."},
	{name: "max.connections", kind: integer, def: "10000", min: 1, max: 1 << 30, dynamic: true, doc: "Client connections in all."},
	{name: "max.connections.per.ip", kind: integer, def: "2147483647", min: 1, max: 1<<31 - 1, dynamic: true, doc: "Client connections from one address."},
	{name: "max.connection.creation.rate", kind: integer, def: "2147483647", min: 1, max: 1<<31 - 1, dynamic: true, doc: "Client connections taken per second, of all listeners or, behind listener.name.NAME., of one; those beyond wait to be accepted. The largest number means any. For single addresses: kafka-configs --entity-type ips."},
	{name: "server.stop.timeout.ms", kind: milliseconds, def: "10000", min: 100, doc: "How long a stop (SIGTERM) may take to answer what is under way; then connections are closed. Long polls and joins are answered at once, new requests are left to the next start."},
	{name: "connections.max.idle.ms", kind: milliseconds, def: "600000", min: 1000, doc: "Close a connection that was idle for this long."},
	{name: "fetch.max.bytes", kind: bytesize, def: "57671680", min: 1024, max: 1 << 30, doc: "Largest fetch response, whatever the client asks for. A larger first batch is still returned whole."},
	{name: "max.incremental.fetch.session.cache.slots", kind: integer, def: "1000", max: 1 << 20, doc: "Fetch sessions kept. More save bytes per request with many consumers and cost memory."},

	{name: "quota.window.num", kind: integer, def: "11", min: 1, max: 64, doc: "Samples over which the rates of clients with a quota (kafka-configs --entity-type clients, users, ips) are measured."},
	{name: "quota.window.size.seconds", kind: integer, def: "1", min: 1, max: 3600, doc: "Length of one such sample. A client may use what a whole window holds at once."},

	{name: "durability", kind: choice, def: "fsync", choices: "fsync|replicated", dynamic: true, doc: "When a write with acks=all is answered: when it is on disk, or when the in-sync replicas have it in memory. The default for topics that do not say."},
	{name: "message.max.bytes", kind: bytesize, def: "1048588", max: 1<<31 - 1, dynamic: true, doc: "Default of max.message.bytes: largest record batch."},
	{name: "min.insync.replicas", kind: integer, def: "1", min: 1, max: 1<<31 - 1, dynamic: true, doc: "Default of min.insync.replicas for topics."},
	{name: "log.dir.reserve.bytes", kind: bytesize, def: "0", min: -1, doc: "Bytes of the disk that records never take, so that metadata and deletions have room when it is full; a quarter more (24 to 64 MiB) is held by a ballast file, also in metadata.log.dir. 0: a twentieth of the disk, 512 MiB at most; -1: none."},
	{name: "log.scrub.bytes.per.second", kind: bytesize, def: "8388608", doc: "How fast each log directory is read in the background to find damage, past the page cache; 0 switches it off."},
	{name: "log.scrub.interval.ms", kind: milliseconds, def: "604800000", min: 1, doc: "Time from the beginning of one pass over all logs to the next. A pass that takes longer is followed by the next one at once."},
	{name: "log.quarantine.bytes", kind: bytesize, def: "10737418240", min: 1, doc: "Bytes of damaged files, replaced by repaired ones, that are kept in quarantine/ of each log directory; the oldest go first, the newest stays."},
	{name: "log.quarantine.ms", kind: milliseconds, def: "604800000", min: 1, doc: "How long they are kept."},
	{name: "log.dir.stall.ms", kind: milliseconds, def: "10000", min: -1, doc: "How long one write or fsync may take before the log directory counts as slow; -1: never."},
	{name: "log.segment.bytes", kind: bytesize, def: "1073741824", min: 1 << 20, max: 1<<31 - 1, dynamic: true, doc: "Default of segment.bytes for topics."},
	{name: "log.roll.ms", kind: milliseconds, def: "604800000", min: 1, dynamic: true, doc: "Default of segment.ms for topics."},
	{name: "log.retention.ms", kind: milliseconds, def: "604800000", min: -1, dynamic: true, doc: "Default of retention.ms for topics; -1 keeps for ever."},
	{name: "log.retention.bytes", kind: bytesize, def: "-1", min: -1, dynamic: true, doc: "Default of retention.bytes for topics; -1 sets no limit."},
	{name: "log.cleanup.policy", kind: text, def: "delete", list: true, dynamic: true, doc: "Default of cleanup.policy for topics."},
	{name: "log.message.timestamp.type", kind: choice, def: "CreateTime", choices: "CreateTime|LogAppendTime", dynamic: true, doc: "Default of message.timestamp.type for topics: whose clock a record's timestamp comes from."},
	{name: "log.message.timestamp.before.max.ms", kind: milliseconds, def: "9223372036854775807", dynamic: true, doc: "Default of message.timestamp.before.max.ms for topics: how far a record's timestamp may be behind the broker's clock."},
	{name: "log.message.timestamp.after.max.ms", kind: milliseconds, def: "3600000", dynamic: true, doc: "Default of message.timestamp.after.max.ms for topics: how far it may be ahead."},
	{name: "compression.type", kind: choice, def: "producer", choices: "producer|uncompressed|gzip|snappy|lz4|zstd", dynamic: true, doc: "Default of compression.type for topics: producer keeps what clients chose, anything else compresses their batches anew, which costs processor time. Mirrored batches are never changed."},
	{name: "compression.gzip.level", kind: integer, def: "-1", min: -1, max: 9, nonzero: true, dynamic: true, doc: "Default of compression.gzip.level for topics: 1 to 9, or -1 for gzip's own default."},
	{name: "compression.lz4.level", kind: integer, def: "9", min: 1, max: 17, dynamic: true, doc: "Default of compression.lz4.level for topics."},
	{name: "compression.zstd.level", kind: integer, def: "3", min: -131072, max: 22, dynamic: true, doc: "Default of compression.zstd.level for topics."},
	{name: "unclean.leader.election.enable", kind: boolean, def: "false", dynamic: true, doc: "Default of unclean.leader.election.enable for topics. It has no effect while a partition has one replica."},
	{name: "log.retention.check.interval.ms", kind: milliseconds, def: "300000", min: 1, doc: "Time between two looks for segments to delete."},

	{name: "log.cleaner.enable", kind: boolean, def: "true", doc: "Compact the logs of topics whose cleanup.policy has compact in it."},
	{name: "log.cleaner.threads", kind: integer, def: "1", min: 1, max: 64, dynamic: true, doc: "Logs that are compacted at the same time."},
	{name: "log.cleaner.dedupe.buffer.size", kind: bytesize, def: "134217728", min: 1 << 20, max: 1 << 40, dynamic: true, doc: "Memory of all threads together for the keys of the logs being compacted. One key takes 24 bytes and a tenth more; a log with more keys is read several times."},
	{name: "log.cleaner.io.max.bytes.per.second", kind: decimal, def: "1.7976931348623157E308", min: 1, dynamic: true, doc: "Bytes that all threads together read and write per second. Less spares the disk and lets compaction fall behind."},
	{name: "log.cleaner.backoff.ms", kind: milliseconds, def: "15000", dynamic: true, doc: "Time between two looks for logs to compact, when there was nothing to do."},
	{name: "log.cleaner.min.cleanable.ratio", kind: decimal, def: "0.5", max: 1, dynamic: true, doc: "Default of min.cleanable.dirty.ratio for topics."},
	{name: "log.cleaner.delete.retention.ms", kind: milliseconds, def: "86400000", dynamic: true, doc: "Default of delete.retention.ms for topics: how long tombstones and transaction markers stay."},
	{name: "log.cleaner.min.compaction.lag.ms", kind: milliseconds, def: "0", dynamic: true, doc: "Default of min.compaction.lag.ms for topics."},
	{name: "log.cleaner.max.compaction.lag.ms", kind: milliseconds, def: "9223372036854775807", min: 1, dynamic: true, doc: "Default of max.compaction.lag.ms for topics; the largest number means never."},

	{name: "offsets.topic.num.partitions", kind: integer, def: "50", min: 1, max: 10000, doc: "Partitions of __consumer_offsets when it is created."},
	{name: "offsets.topic.replication.factor", kind: integer, def: "3", min: 1, max: 32767, doc: "Its replicas. While fewer brokers are alive it is not created, and groups get no coordinator; only a node that is alone and has no value here makes do with one."},
	{name: "offsets.topic.segment.bytes", kind: bytesize, def: "104857600", min: 1 << 20, max: 1<<31 - 1, doc: "Its segment size."},
	{name: "offsets.retention.minutes", kind: integer, def: "10080", min: 1, max: 1 << 30, doc: "How long offsets outlive the last member of their group."},
	{name: "offsets.retention.check.interval.ms", kind: milliseconds, def: "600000", min: 1, doc: "Time between two looks for expired offsets."},
	{name: "offsets.commit.timeout.ms", kind: milliseconds, def: "5000", min: 1, doc: "How long a request to a group waits until all replicas in sync have what it wrote. Then the client is told to ask again."},
	{name: "offset.metadata.max.bytes", kind: bytesize, def: "4096", max: 32767, doc: "Longest string beside a committed offset."},
	{name: "group.initial.rebalance.delay.ms", kind: milliseconds, def: "3000", doc: "How long the first rebalance of an empty group waits for more members."},
	{name: "group.min.session.timeout.ms", kind: milliseconds, def: "6000", min: 1, doc: "Shortest session timeout a member may ask for."},
	{name: "group.max.session.timeout.ms", kind: milliseconds, def: "1800000", min: 1, doc: "Longest session timeout a member may ask for."},
	{name: "transaction.partition.verification.enable", kind: boolean, def: "true", doc: "Ask the transaction coordinator before the first batch of a transaction in a partition. Without, a client of before transaction version 2 that loses track of its transaction can stop the readers of committed records for good."},
	{name: "group.max.size", kind: integer, def: "10000", min: 1, max: 1 << 24, doc: "Members of one group of the classic protocol."},
	{name: "group.consumer.assignors", kind: text, def: "uniform,range", list: true, doc: "Assignors that members of consumer groups (KIP-848) may choose from, the default first: uniform (balanced, moves little) and range (runs of partitions per topic). Java class names of Kafka's own two are understood."},
	{name: "group.consumer.session.timeout.ms", kind: milliseconds, def: "45000", min: 1, doc: "How long a member of a consumer group may be silent."},
	{name: "group.consumer.min.session.timeout.ms", kind: milliseconds, def: "45000", min: 1, doc: "Least value of group.consumer.session.timeout.ms."},
	{name: "group.consumer.max.session.timeout.ms", kind: milliseconds, def: "60000", min: 1, doc: "Greatest value of group.consumer.session.timeout.ms."},
	{name: "group.consumer.heartbeat.interval.ms", kind: milliseconds, def: "5000", min: 1, doc: "How often members of consumer groups are told to send a heartbeat. More often makes rebalances faster and costs requests."},
	{name: "group.consumer.min.heartbeat.interval.ms", kind: milliseconds, def: "5000", min: 1, doc: "Least value of group.consumer.heartbeat.interval.ms."},
	{name: "group.consumer.max.heartbeat.interval.ms", kind: milliseconds, def: "15000", min: 1, doc: "Greatest value of group.consumer.heartbeat.interval.ms."},
	{name: "group.consumer.assignment.interval.ms", kind: milliseconds, def: "1000", max: 1<<31 - 1, dynamic: true, doc: "Time from one assignment of a consumer group's partitions to the next; changes meanwhile are taken together."},
	{name: "group.consumer.min.assignment.interval.ms", kind: milliseconds, def: "0", max: 1<<31 - 1, doc: "Least value of group.consumer.assignment.interval.ms."},
	{name: "group.consumer.max.assignment.interval.ms", kind: milliseconds, def: "15000", max: 1<<31 - 1, doc: "Greatest value of group.consumer.assignment.interval.ms."},
	{name: "group.consumer.max.size", kind: integer, def: "10000", min: 1, max: 1 << 24, doc: "Members of one consumer group."},
	{name: "group.consumer.migration.policy", kind: choice, def: "bidirectional", choices: "bidirectional|upgrade|downgrade|disabled", doc: "Whether a group with members may change from the classic protocol to the consumer protocol (upgrade) and back (downgrade), as its members do. A group without members always may."},

	{name: "transaction.state.log.num.partitions", kind: integer, def: "50", min: 1, max: 10000, doc: "Partitions of __transaction_state when it is created."},
	{name: "transaction.state.log.replication.factor", kind: integer, def: "3", min: 1, max: 32767, doc: "Its replicas. While fewer brokers are alive it is not created, and transactions get no coordinator; only a node that is alone and has no value here makes do with one."},
	{name: "transaction.state.log.min.isr", kind: integer, def: "2", min: 1, max: 32767, doc: "Its min.insync.replicas; lowered to the number of its replicas."},
	{name: "transaction.state.log.segment.bytes", kind: bytesize, def: "104857600", min: 1 << 20, max: 1<<31 - 1, doc: "Its segment size."},
	{name: "transaction.max.timeout.ms", kind: milliseconds, def: "900000", min: 1, doc: "Longest transaction timeout a producer may ask for. An open transaction holds up every read_committed reader for that long when its producer dies."},
	{name: "transaction.abort.timed.out.transaction.cleanup.interval.ms", kind: milliseconds, def: "10000", min: 1, doc: "Time between two looks for transactions whose time is up."},
	{name: "transactional.id.expiration.ms", kind: milliseconds, def: "604800000", min: 1, doc: "How long a transactional id that nobody uses is kept."},
	{name: "producer.id.expiration.ms", kind: milliseconds, def: "86400000", min: 1, doc: "How long a log remembers a producer that writes nothing, to tell its repeated batches from new ones. One with an open transaction is not forgotten."},
	{name: "transaction.remove.expired.transaction.cleanup.interval.ms", kind: milliseconds, def: "3600000", min: 1, doc: "Time between two looks for such ids."},
	{name: "max.transactional.ids", kind: integer, def: "100000", min: 1, max: 1 << 30, doc: "Transactional ids that this broker keeps, half a KiB of memory each; a new one beyond them is refused with POLICY_VIOLATION. Not a key of Kafka."},
	{name: "max.transactional.ids.per.principal", kind: integer, def: "2147483647", min: 1, max: 1<<31 - 1, doc: "Of these, those that one principal made; more are refused in the same way. Counts ids that were used since the broker's start, and is of use where clients say who they are. Not a key of Kafka."},

	{name: "mirror.flush.ms", kind: milliseconds, def: "1000", min: 1, doc: "How often mirrored logs are flushed in the background. What a power cut takes is fetched again from the source."},
	{name: "mirror.metadata.refresh.interval.ms", kind: milliseconds, def: "60000", min: 100, dynamic: true, doc: "How often a source is described: new topics, growth, deletion, configs, group offsets."},
	{name: "mirror.num.replica.fetchers", kind: integer, def: "1", min: 1, max: 64, dynamic: true, doc: "Fetch connections per mirror and source broker."},
	{name: "mirror.failed.retry.initial.backoff.ms", kind: milliseconds, def: "100", min: 1, doc: "First delay before a FAILED partition is tried again; it doubles each time."},
	{name: "mirror.failed.retry.max.backoff.ms", kind: milliseconds, def: "300000", min: 1, doc: "Longest such delay. An unreachable source is tried again at this pace for ever."},
	{name: "mirror.failed.retry.max.attempts", kind: integer, def: "20", max: 32767, doc: "Tries before a FAILED partition waits for an operator; 0 switches automatic retry off."},
	{name: "mirror.truncation.keep.bytes", kind: bytesize, def: "1073741824", doc: "Before a mirror cuts records that its source does not have, they are copied to quarantine/ of the log directory: at most so many bytes per log directory, the oldest go first; 0 keeps nothing."},
	{name: "mirror.truncation.keep.ms", kind: milliseconds, def: "604800000", min: 1, doc: "How long such copies are kept."},
	{name: "mirror.truncation.keep.required", kind: boolean, def: "false", doc: "Whether the cut waits (the partition is FAILED and tries again) when the copy cannot be made, for want of room say. Otherwise it goes on and the log says what was not kept."},
	{name: "mirror.truncation.timeout.ms", kind: milliseconds, def: "300000", dynamic: true, doc: "Longest wait for replicas to truncate before a partition fails; 0 waits for ever."},

	{name: "plugin.truncation.policy", kind: text, def: "", doc: "Plugin that is asked before a mirrored log is cut. While it does not answer, nothing is cut and the partition waits. Default: the built-in rules."},
	{name: "plugin.unclean.election.policy", kind: text, def: "", doc: "Plugin that is asked when a source lost records in an unclean election. While it does not answer, the partition fails and is tried again. Default: the built-in rules."},
	{name: "log.level", kind: choice, def: "info", choices: "debug|info|warn|error", dynamic: true, doc: "What is logged to standard error."},
	{name: "log.format", kind: choice, def: "auto", choices: "auto|text|json", doc: "text on a terminal and JSON otherwise, unless set."},
}

// aliases are other spellings that Kafka's files use.
var aliases = map[string]struct {
	name string
	mul  int64
}{
	"broker.id":             {"node.id", 0},
	"log.dir":               {"log.dirs", 0},
	"log.retention.hours":   {"log.retention.ms", 3600_000},
	"log.retention.minutes": {"log.retention.ms", 60_000},
	"log.roll.hours":        {"log.roll.ms", 3600_000},
}

// jvmOnly are keys of Kafka that mean nothing here; they warn, so that a file
// can be taken over as it is.
func jvmOnly(name string) bool {
	switch name {
	case "num.network.threads", "num.io.threads", "num.recovery.threads.per.data.dir", "background.threads", "log.cleaner.io.buffer.size", "log.cleaner.io.buffer.load.factor",
		"queued.max.requests", "socket.send.buffer.bytes", "socket.receive.buffer.bytes", "metric.reporters",
		"log.flush.interval.messages", "log.flush.interval.ms", "metrics.num.samples",
		"auto.include.jmx.reporter", "security.providers",
		"ssl.provider", "ssl.keymanager.algorithm", "ssl.trustmanager.algorithm", "ssl.secure.random.implementation",
		"replica.socket.receive.buffer.bytes", "replica.high.watermark.checkpoint.interval.ms", "ssl.allow.dn.changes", "ssl.allow.san.changes", "sasl.server.max.receive.size",
		"sasl.oauthbearer.scope.claim.name", "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", "sasl.oauthbearer.token.endpoint.url",
		"sasl.oauthbearer.header.urlencode":
		return true
	}
	return strings.HasSuffix(name, ".class") || strings.HasSuffix(name, ".class.name") ||
		strings.HasPrefix(name, "sasl.kerberos.") || strings.HasPrefix(name, "sasl.login.") ||
		strings.HasPrefix(name, "share.coordinator.")
}

func find(name string) *key {
	for i := range keys {
		if keys[i].name == name {
			return &keys[i]
		}
	}
	return nil
}

// configType is the type that Kafka's tools are told.
func (k *key) configType() metadata.ConfigType {
	if k.secret {
		return metadata.TypePassword
	}
	switch k.kind {
	case boolean:
		return metadata.TypeBoolean
	case integer:
		return metadata.TypeInt
	case milliseconds:
		return metadata.TypeLong
	case bytesize:
		if k.max > 0 && k.max <= math.MaxInt32 {
			return metadata.TypeInt
		}
		return metadata.TypeLong
	case decimal:
		return metadata.TypeDouble
	}
	if k.list {
		return metadata.TypeList
	}
	return metadata.TypeString
}

// check tells what is wrong with a value, naming the key.
func (k *key) check(v string) error {
	switch k.kind {
	case boolean:
		if v != "true" && v != "false" {
			return fmt.Errorf("%s: %q is neither true nor false", k.name, v)
		}
	case integer, milliseconds, bytesize:
		n, err := strconv.ParseInt(v, 10, 64)
		high := k.max
		if high == 0 {
			high = unlimited
		}
		if err != nil || n < k.min || n > high || k.nonzero && n == 0 {
			unit := map[kind]string{integer: "number", milliseconds: "number of milliseconds", bytesize: "number of bytes"}[k.kind]
			if high == unlimited {
				return fmt.Errorf("%s: %q is not a %s of at least %d", k.name, v, unit, k.min)
			}
			return fmt.Errorf("%s: %q is not a %s from %d to %d", k.name, v, unit, k.min, high)
		}
	case decimal:
		f, err := strconv.ParseFloat(v, 64)
		high := float64(k.max)
		if k.max == 0 {
			high = math.MaxFloat64
		}
		if err != nil || !(f >= float64(k.min) && f <= high) { // also not a number
			return fmt.Errorf("%s: %q is not a decimal from %d to %g", k.name, v, k.min, high)
		}
	case choice:
		for c := range strings.SplitSeq(k.choices, "|") {
			if v == c {
				return nil
			}
		}
		return fmt.Errorf("%s: %q is not one of %s", k.name, v, strings.ReplaceAll(k.choices, "|", ", "))
	}
	return nil
}
