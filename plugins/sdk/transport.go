package sdk

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// PartitionKey names one partition of one topic. TopicID is zero where the
// cluster that is read has no topic ids; then the name alone identifies it.
type PartitionKey struct {
	Topic     string
	TopicID   [16]byte
	Partition int32
}

// String is the name a reader of logs expects: topic-partition.
func (k PartitionKey) String() string {
	return k.Topic + "-" + strconv.Itoa(int(k.Partition))
}

// EpochEnd is the answer to "where does leader epoch Epoch end?": the largest
// epoch not above the one asked for, and the offset after its last record.
// -1, -1 means undefined: no such epoch is known.
type EpochEnd struct {
	Epoch int32
	End   int64
}

// Undefined is the EpochEnd that says nothing.
var Undefined = EpochEnd{Epoch: -1, End: -1}

// Defined reports whether e carries an answer.
func (e EpochEnd) Defined() bool { return e.Epoch >= 0 && e.End >= 0 }

// FetchPartition asks for the batches of one partition from Offset on.
type FetchPartition struct {
	PartitionKey
	Offset int64 // log end of the asking side; first offset wanted

	// CurrentLeaderEpoch is the leader epoch at the source that the asking side
	// believes in; -1 skips the check. LastFetchedEpoch is the leader epoch of
	// the last batch the asking side has, -1 for an empty log; the source
	// compares it with its own history and answers with a diverging epoch when
	// the histories part below Offset.
	CurrentLeaderEpoch int32
	LastFetchedEpoch   int32

	LogStart int64 // first offset of the asking side, -1 if it does not matter
	// DurableEnd is the end of what the asking side has on disk, -1 if it does not
	// matter: it does between the brokers of one cluster only.
	DurableEnd int64
	MaxBytes   int32 // a first batch above it is returned whole all the same
}

// FetchRequest is one long poll over the partitions of a session. The session
// reads it during Fetch and keeps no part of it.
type FetchRequest struct {
	Partitions []FetchPartition
	MaxWait    time.Duration // how long the source may wait for MinBytes
	MinBytes   int32
	MaxBytes   int32 // whole response; the first batch is returned whole all the same
}

// PartitionHeader is everything a response says about one partition beside its
// records. It is valid until the call it is passed to returns.
type PartitionHeader struct {
	Key       PartitionKey
	ErrorCode int16 // Kafka protocol error code, 0 for none

	HighWatermark int64 // of the source, exclusive; -1 unknown
	LastStable    int64
	LogStart      int64

	// Diverging is set when the source's history and the asking side's part:
	// the largest epoch of the source not above the last fetched one, and where
	// it ends. There are no records then.
	Diverging EpochEnd

	// LeaderID and LeaderEpoch name the partition's leader as the source knows
	// it, when it says so (-1 otherwise).
	LeaderID    int32
	LeaderEpoch int32

	RecordBytes int // size of the records that follow
}

// FetchHandler receives a response while it is still arriving.
//
// Partition is called once per partition that the response mentions, in the
// response's order. A session may leave out partitions of which there is
// nothing new: no records, no error, the same offsets as the last time. records yields exactly h.RecordBytes bytes: whole batches, of which
// only the last may be cut short. What the handler leaves unread the session
// discards. An error from Partition ends the Fetch, which returns it; the
// session is then unusable and must be closed.
//
// When h.RecordBytes is greater than zero, Diverging, LeaderID and LeaderEpoch
// may be left undefined, because a response may carry them after the records.
type FetchHandler interface {
	Partition(h *PartitionHeader, records io.Reader) error
}

// Session is one connection to one broker of a source.
//
// Fetch sends one request and hands the response to h. It returns when the
// response has been read whole, when ctx ends, or with the first error; after
// an error other than a [*ResponseError] the session must be closed. No data
// above the source's high watermark is ever delivered. When the source asks
// for slowing down, the next Fetch waits before it sends.
//
// Only one Fetch may run at a time. Close may be called at any time, also
// during a Fetch, which then fails.
type Session interface {
	Fetch(ctx context.Context, req *FetchRequest, h FetchHandler) error
	Close() error
}

// Transport opens sessions to the brokers of one source. It is safe for use by
// several goroutines.
type Transport interface {
	Name() string
	Open(ctx context.Context, broker BrokerAddr) (Session, error)
}

// BrokerAddr is where one broker of a source listens.
type BrokerAddr struct {
	ID   int32
	Host string
	Port int32
}

// Addr is host:port as net.Dial takes it.
func (b BrokerAddr) Addr() string {
	return net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
}

// ResponseError is an error code that covers a whole response. The session
// stays usable.
type ResponseError struct {
	Code int16 // Kafka protocol error code
}

func (e *ResponseError) Error() string {
	return fmt.Sprintf("source refused the fetch with error code %d", e.Code)
}
