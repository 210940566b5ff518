// Command stepvet guards what makes the server testable (reliability rules 1
// and 2). It runs in `make lint`.
//
// Seams: in the packages of table seamPackages time, chance and files come in
// through the seams (clock.Clock, a random source, vfs.FS), so that a test can
// put its own there. Reading the machine's clock, the global random source, or
// a file past them is an error, unless table exceptions has a line for it.
//
// Step functions: what decides (table stepFiles) is a function of its state and
// its input, or it cannot be replayed. There, goroutines, channels, locks,
// clocks, chance, files and sockets are errors, and so is the order of a map
// where it can leak into a result.
//
// Both tables are in rules.go. A line there that no longer holds is an error too.
package main
