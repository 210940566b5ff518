package main

import "strings"

const module = "github.com/lockstep-kafka/lockstep/"

// rules are the tables; tests have their own.
type rules struct {
	seamPackages []string
	// diskFree are packages that reach files through vfs.FS only; diskLayer are
	// the files of theirs that implement it.
	diskFree  []string
	diskLayer []string
	// stepFiles are the files that decide: "dir/" is all of a package.
	stepFiles  []string
	exceptions []exception
}

// exception allows the use of one name in one file, or loops over maps in one of
// its functions, for a reason that has to convince a reader.
type exception struct {
	file, name, reason string
}

var ours = rules{
	seamPackages: strings.Fields(`segment pipeline internal/partition internal/isr internal/mirror internal/group internal/txn
		internal/controller internal/metadata internal/producer internal/epoch internal/record internal/source internal/kafka internal/quota`),
	diskFree:  []string{"segment"},
	diskLayer: []string{"segment/files.go", "segment/sync_linux.go", "segment/sync_other.go", "segment/scrub_linux.go", "segment/wholefs_linux.go"},
	stepFiles: strings.Fields(`internal/quota/window.go internal/quota/rules.go internal/metadata/quota.go internal/controller/decide_quota.go
		internal/controller/codec_quota.go internal/authz/index.go internal/authz/principal.go internal/metadata/acl.go internal/controller/decide_acl.go internal/controller/codec_acl.go
		internal/isr/ internal/epoch/ internal/record/ internal/producer/
		internal/metadata/mirrorstate.go internal/metadata/epochbump.go internal/metadata/attachment.go internal/metadata/configdef.go
		internal/metadata/topicconfig.go internal/metadata/mirrorconfig.go internal/metadata/brokerconfig.go internal/metadata/names.go
		internal/metadata/topicid.go internal/mirror/gate.go internal/mirror/prepare.go internal/mirror/start.go
		internal/controller/decide.go internal/controller/decide_config.go internal/controller/decide_mirror.go
		internal/controller/decide_scram.go internal/controller/codec_scram.go internal/controller/decide_state.go internal/controller/decide_topic.go internal/controller/builder.go
		internal/controller/change.go internal/controller/codec.go internal/controller/commands.go
		internal/mirror/step.go internal/mirror/desired.go internal/mirror/align.go internal/mirror/policy.go
		internal/mirror/retry.go internal/mirror/clamp.go
		internal/group/machine.go internal/group/join.go internal/group/sync.go internal/group/leave.go
		internal/group/offsets.go internal/group/txnoffsets.go internal/group/member.go internal/group/effect.go
		internal/group/entry.go internal/group/state.go
		internal/group/consumer_assignor.go internal/group/consumer_classic.go internal/group/consumer_entry.go
		internal/group/consumer_group.go internal/group/consumer_heartbeat.go internal/group/consumer_journal.go
		internal/group/consumer_load.go internal/group/consumer_member.go internal/group/consumer_migrate.go
		internal/group/consumer_share.go internal/group/consumer_target.go
		internal/txn/machine.go internal/txn/init.go internal/txn/add.go internal/txn/end.go internal/txn/state.go
		internal/txn/effect.go internal/txn/entry.go`),
	exceptions: []exception{
		{"segment/ballast.go", "os.Create", "the kernel is asked for blocks by descriptor; file systems without one take the branch below"},
		{"segment/slots_linux.go", "golang.org/x/sys/unix.Mmap", "memory without a file, for the offset map of a compaction: the collector would keep it"},
		{"segment/slots_linux.go", "golang.org/x/sys/unix.Madvise", "the same memory"},
		{"segment/slots_linux.go", "golang.org/x/sys/unix.Munmap", "the same memory"},
		{"internal/kafka/conn.go", "time.Now", "deadlines of a socket are moments of the machine's clock, which the network poller compares them with"},
		{"internal/kafka/sasl.go", "time.Now", "deadline of a socket, as in conn.go"},
		{"internal/kafka/sendrecords.go", "time.Now", "deadline of a socket, as in conn.go"},
		{"internal/kafka/server.go", "time.After", "a pause after a failed accept on a real socket; nothing is decided by it"},
		{"internal/source/session.go", "time.Now", "deadlines of a socket, as in internal/kafka, and the throttle that a source asked of this connection"},
		{"internal/source/session.go", "time.NewTimer", "waits out that throttle; tests of it run in a synctest bubble"},
		{"internal/source/session.go", "time.Until", "as above"},
		{"internal/source/where.go", "time.Until", "shares out what a context leaves, whose deadline is a moment of the machine's clock"},
		{"internal/source/offsets.go", "time.NewTimer", "pause between two tries on a real connection; tests of it run in a synctest bubble"},
		{"internal/quota/rules.go", "range over a map in newRules", "each quota goes to a place of its own"},
		{"internal/kafka/fetchsession.go", "rand.Int32", "the id of a fetch session, told to one client; no decision depends on it"},
		{"internal/kafka/followerfetch.go", "rand.Int32N", "as in fetchsession.go: the id of a session, told to one broker"},
		{"internal/mirror/options.go", "rand.Uint64", "seeds the random source that fills the seam where no test does"},
		{"internal/authz/index.go", "range over a map in anyOf", "whichever comes first, the answer is that there is one"},
		{"internal/group/machine.go", "range over a map in onTick", "arm keeps the earliest moment, whichever comes first"},
		{"internal/group/consumer_assignor.go", "range over a map in uniform", "the share is sorted at its end"},
		{"internal/group/consumer_journal.go", "range over a map in merge", "from set to set"},
		{"internal/group/consumer_share.go", "range over a map in sorted", "each topic by itself"},
		{"internal/group/consumer_share.go", "range over a map in plus", "each topic by itself"},
		{"internal/group/txnoffsets.go", "range over a map in onEndTxn", "each partition by itself"},
		{"internal/group/txnoffsets.go", "range over a map in dropPending", "each transaction by itself"},
		{"internal/group/offsets.go", "range over a map in die", "tombstones sorts the keys"},
		{"internal/group/offsets.go", "range over a map in onSweep", "tombstones, or die, sorts the keys"},
		{"internal/group/offsets.go", "range over a map in onTopicsGone", "tombstones sorts the keys"},
	},
}
