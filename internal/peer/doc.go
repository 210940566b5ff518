// Package peer keeps the connections of this broker to the others of its
// cluster.
//
// A [Pool] finds a broker's address in the metadata image, on the listener that
// brokers use among themselves, and sends plain requests there: markers of
// transactions, verifications, epoch ends. It holds a few connections per
// broker, each with one request in flight, so that a request that waits for
// replicas does not hold up the others. Whoever keeps a stream of its own, as a
// replica fetcher does, takes a connection with [Pool.Dial].
//
// A connection belongs to one incarnation of a broker. When the image shows
// another one, or none, its connections are closed, and with them the requests
// that wait for an answer of a process that is gone. A broker that cannot be
// reached is dialled again no faster than the backoff allows, whoever asks.
//
// Bounds: connections and waiting requests per broker, bytes per answer, time
// per request. Goroutines: none of our own.
//
// What may fail: every error is an [*Error] that names the broker. Requests
// among brokers can be repeated, and one whose kept connection turns out to be
// dead is, once.
package peer
