package proto

import "github.com/hashicorp/go-plugin"

// Service is the one name that is dispensed; which kinds stand behind it, the
// plugin tells in Describe.
const Service = "lockstep"

// Handshake tells a plugin process that it was started by a broker and not by
// a curious hand. It is no secret.
var Handshake = plugin.HandshakeConfig{
	MagicCookieKey:   "LOCKSTEP_PLUGIN",
	MagicCookieValue: "c93cc4a4-0f3a-4f0e-9d5d-7e1b9a3b8f52",
}

// Versions are the protocol versions that this code speaks, on either side. The
// largest common one is used; a new one is added beside its predecessor, which
// stays for at least one release.
//
//	1: Plugin, TruncationPolicy, UncleanElectionPolicy, Transport
var Versions = []int{1}

// Limits of one message. A question's largest part is the epoch history, about
// 12 bytes an entry; an answer is a few numbers and a line of text.
const (
	MaxQuestion = 16 << 20
	MaxAnswer   = 1 << 20
)

// SocketPathMax is the longest path that a unix socket may have on the systems
// we know (104 bytes on BSD and macOS, 108 on Linux, with the closing zero).
const SocketPathMax = 103
