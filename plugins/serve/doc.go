// Package serve is what the main of a plugin process calls: fill a [Plugin],
// call [Run]. It speaks the messages of plugins/proto with the broker that
// started the process, writes the process's log where the broker reads it, and
// ends the process when its broker is gone.
//
// It stands beside plugins/sdk, which has the seams themselves, so that the
// broker's byte path, which imports the seams, links none of this.
package serve
