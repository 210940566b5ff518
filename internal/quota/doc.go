// Package quota tells how long a client has to wait because it was faster than its
// quota (KIP-13, KIP-124, KIP-546, KIP-599, KIP-612).
//
// What flows in: the quotas of the metadata image (Set), and what clients use
// (Record, Mutate, Connect), from any goroutine. What flows out: a duration. The
// limiter mutes nobody; internal/kafka does.
//
// A rate is measured over the last quota.window.num samples of
// quota.window.size.seconds each, as by Apache Kafka: a client may use what a whole
// window holds at once and then waits until the window is back under the quota.
// Mutations of metadata have a bucket of as many tokens.
//
// Which quota holds for a client is Kafka's order of precedence (precedence). Who
// shares a quota's window follows from where it was found: all clients of a user
// share the user's, and so on.
//
// State is bounded: an entity whose window is empty is forgotten, and beyond
// maxEntities the new ones share one window.
package quota
