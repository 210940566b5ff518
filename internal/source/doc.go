// Package source is our side of a source cluster: its metadata, configs, groups
// and offsets, epoch ends, what it knows about mirrors, and the raw fetch.
package source
