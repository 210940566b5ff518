package main

import "runtime/debug"

// giveBack gives the operating system what a start needed and the server does not any
// more: with very many partitions half of the process's memory. Nobody else would for
// minutes, since a server that is idle makes no garbage that has the rest collected.
func giveBack() { debug.FreeOSMemory() }
