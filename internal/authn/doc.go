// Package authn proves who a client of our own listeners is.
//
// [Open] makes of a listener's keys (ssl.*, sasl.*) its TLS configuration, whose
// certificates are read again when their files change, the rules that make a name
// of a client's certificate, and the server side of its SASL mechanisms. The wire
// is internal/kafka's: tokens come in through [Exchange.Step], answers go out.
//
// What may fail: a fault in the keys is an error of Open that names the key and
// never a secret. A client that is refused gets a [Refusal], whose text may be
// sent to it: it is the same for an unknown user and a wrong password, and so is
// the work done before. The caller holds the answer back for as long as [Delays]
// says.
//
// Goroutines: [Listener.Watch] runs on its caller's. Everything else may be called
// from any connection's.
//
// What it refuses to do: store passwords (SCRAM credentials come from the cluster's
// metadata, PLAIN's from the server's own configuration), read JKS stores, speak
// TLS below 1.2, take a token that is not signed with a public key, or fetch keys
// over plain HTTP.
package authn
