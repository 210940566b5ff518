// Package lossyfs makes kill -9 a power cut (H5). It is a vfs.FS that keeps in
// the process what was written and not synced, and gives it to the real file
// system when a sync asks for it. Only harnesses use it: a server takes it in
// builds with the tag "torture".
//
//	unsynced bytes       blocks of 4 KiB in memory, until the file's Sync or SyncData
//	unsynced names       a journal per directory, until the directory's Sync
//	synced               a plain file at its place below the root
//	synced, no name yet  a file in the stash, <root>/.lossyfs, which New empties
//
// A directory's journal is handed over in the order in which it was written,
// each step by one system call: a kill in the middle of a Sync leaves a prefix,
// as a journalling file system does. Bytes have no order: a kill may leave any
// of the blocks that were being synced.
//
// A kernel may also write early, and in any order. Options.Early makes that
// happen: each block and each journal is handed over at once with that
// probability, so a cut takes a random part of what was unsynced, with zeros
// where a later block got ahead of an earlier one.
//
// Whatever the real file system holds is never synced by us: a killed process
// takes nothing from the page cache.
package lossyfs
