// Package wire is Kafka's framing, both ways round: size-prefixed frames,
// request and response headers, and a plain client. The messages themselves
// are kmsg's; the ones of KIP-1279, which kmsg does not know, live beside this
// file in mirror_*.go.
//
// What flows in and out
//
//	server: conn → ReadFrame → ParseRequestHeader → NewRequest(key).ReadFrom
//	        kmsg.Response → AppendResponse → conn
//	client: Dialer.Dial (resolve, connect, TLS, ApiVersions, SASL) → Client.Request
//
// Nothing here starts a goroutine. A Client serves one request at a time and
// is safe for several callers, who wait for each other.
//
// What may fail: bytes from a peer are hostile. A frame's stated size is held
// against a limit before anything is read and its memory grows with the bytes
// that arrive, never ahead of them. A header or body that does not parse is an
// error with the peer's name in it; no input makes this package panic.
//
// What it refuses: to know addresses, retries or which broker leads what. That
// is the business of internal/source.
package wire
