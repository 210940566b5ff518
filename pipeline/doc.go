// Package pipeline is the one path of record bytes into a log: fetch, verify,
// append, replicate, ack.
//
// A [Pipeline] is one mirrored partition in one leader epoch of ours. A
// [Worker] owns one connection to a source broker and the pipelines of the
// partitions that broker leads. Its single goroutine runs each piece of a
// response to completion before it reads the next one:
//
//	fetch     ask for bytes from the log ends of all partitions; read the
//	          answer from the socket in pieces of up to 1 MiB
//	verify    walk the batches of the piece where they lie: lengths, format,
//	          CRC, offsets, epochs (verify.go, W35)
//	append    hand all good batches of the piece to the [Target] in one call
//	replicate followers, and consumers, read the log, not the piece
//	ack       the target moves its high watermark; the observer hears the
//	          new position
//
// A piece stays in the processor's cache from the socket to the file. Stages
// joined by channels, or a whole response in memory, were measured at half to
// three quarters of this speed. Producers enter at verify ([VerifyProduce]).
//
// Ownership. The worker's goroutine alone touches the session, the piece and
// the fetch state of its pipelines. Other goroutines add and remove pipelines
// and change epochs; they meet the worker at two small locks: Worker.mu, the
// list of pipelines, and Pipeline.gate, held during each append. Neither is
// held while an observer runs. After [Worker.Remove] returned, no append of
// that pipeline runs or will run (S10, S12).
//
// Memory. Per worker one pooled piece while data flows, and a larger buffer
// only while a batch above 1 MiB passes, bounded by MaxBatchBytes; both count
// against the [Budget]. Nothing is allocated per batch or per partition of a
// response.
//
// What may fail. Whatever concerns one partition ends or delays that partition
// alone (W42): the observer gets an [End] with a [Reason], by the table of spec
// 9.7. A broken connection is opened once more; if that fails too, all
// partitions of the worker end as [Unreachable]. Bytes that fail verification
// are never appended.
//
// What this package refuses to do: decide about truncation, states or leaders
// (the observer does), rewrite a byte of a mirrored batch (D13), append in an
// epoch that is not the target's.
package pipeline
