// Package metadata is the picture of the cluster that every broker works from:
// an immutable [Image] per revision of the metadata store, and the tables that
// say what may stand in it (topic configs, mirror configs, mirror states).
//
// Into it flow changes, already committed, in revision order: an [Editor] takes
// an image and puts, deletes and finally seals the next one. Out of it flow
// pointers that nobody may write through: two images share every topic and
// every partition that did not change between them, so that a change to one
// partition copies that topic's pointer slice and a few tree nodes, and a
// reader can compare by pointer what changed.
//
// Nothing here starts a goroutine, reads a clock or touches a file. An Image is
// safe for any number of readers; an Editor belongs to one goroutine. What may
// fail is validation, and its errors name the key and the value (values of
// secrets excepted).
package metadata
