// Package kafka is the wire server: what ordinary Kafka clients and tools talk
// to. It turns frames into calls of the packages below and their answers and
// errors into Kafka's.
//
// What flows
//
//	accept → conn.serve → wire.ReadRequestFrame → dispatch → keyNN handler → answer
//	                                                  └ Produce → partition.Produce … done → outbox → writer
//	                                                  └ Fetch → partition.Read → header bytes + file ranges → sendfile
//
// Goroutines. One accept loop per listener; one goroutine per connection reads,
// handles and answers its requests in order. A connection that produces gets a
// second one, the writer: it sends the answers of produce requests whose
// acknowledgement came later, so that many requests of one connection share a
// group-committed fsync. Server.Close stops and waits for all of them.
//
// Memory. A frame gets memory as its bytes arrive, from a pool and against a
// budget that all connections share. Decoding multiplies a body, so it is
// measured first (wire.Measure): what would become more than four times its size
// is refused, the rest is decoded against a second budget. Subjects that a
// request repeats are answered once (repeats.go). Large answers have a third
// budget, and give way when their peers do not read (answers.go). Record bytes of a fetch never enter the process when they go from
// file to socket.
//
// What may fail. A frame, header or body that cannot be read ends its
// connection and nothing else; so does a panic of a handler, which is logged
// with its stack. Everything a client can understand is an error code in an
// answer, chosen in errors.go and nowhere else.
//
// What it refuses: follower fetches from other brokers.
package kafka
