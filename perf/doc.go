// Package perf generates load and measures what becomes of it.
//
// Produce is an open-loop generator: a schedule fixes beforehand when each record
// is due, and its latency counts from that moment, whether or not the client was
// free to send it then. A server that stalls for a second therefore shows a second
// of latency in every record that was due meanwhile, as its users would feel it.
// The planned time travels in the record, and Consume measures from it to the
// arrival, from end to end, through a mirror too.
//
// NullMirror is the measure for the mirror path: our own fetch session reading a
// source as fast as it can, checking CRCs, and writing the same bytes into one file
// with 1 MiB writes, and nothing else.
//
// Each of the three is bounded by a number of records or a time, holds a bounded
// amount of memory, and has ended all its goroutines when it returns. A record that
// cannot be written is counted; an unreachable cluster is an error.
package perf
