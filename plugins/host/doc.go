// Package host starts, watches and versions plugin processes, and shows them to
// the rest of the broker as what they stand for: a truncation policy, an
// unclean election policy, a way to dial the brokers of a source.
//
// What flows. Policies: one question and one answer per decision over gRPC,
// with a deadline; a plugin that is late, dead or talks nonsense is asked once,
// and the built-in policy that the caller passed in decides instead. Transports:
// one Open call per connection over gRPC; the bytes then flow through a unix
// socket of their own in a directory made for that connection, and the Kafka
// protocol (and TLS) is spoken by the broker over it.
//
//	Open ─▶ supervisor ─┬─ binary.go   opens the file, checks its SHA-256
//	        (1 goroutine│               and executes that open file
//	        and thread  ├─ runner.go   process, pipes, exit
//	        per plugin) └─ backoff.go  when to start again
//	TruncationPolicy, UncleanElectionPolicy ─▶ policy.go ─▶ gRPC
//	Dialer ─▶ dial.go ─▶ gRPC Open, then the socket
//
// Ownership. The supervisor goroutine of a plugin is the only one that starts
// and stops its process. It is bound to a thread, because the kernel sends the
// parent-death signal when the thread that forked ends. Close ends them all and
// waits.
//
// Failures. At Open every plugin must start, or Open fails and says why: a
// broker that silently ran with built-in decisions would cut what its operator
// wanted to keep. Afterwards nothing a plugin does stops the broker: an exit or
// three late answers in a row end the process, and it is started again with
// backoff; after several failures in a row the breaker opens and it is tried
// once per BreakerWait. Connections through a transport die with its process.
//
// What a plugin gets: its arguments, the environment in its configuration and
// nothing of the broker's, no standard input, one descriptor of its own file.
// It runs as the broker's user. On systems other than Linux the checksum is
// checked by path just before the start, the process at the other end of a
// socket is not checked (the directory's mode is), there is no parent-death
// signal (the SDK watches its parent instead) and directories of dead brokers
// are not swept.
package host
