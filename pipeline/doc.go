// Package pipeline is the one path of record bytes: fetch, verify, append,
// replicate, ack, for one partition in one leader epoch.
package pipeline
