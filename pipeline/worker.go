package pipeline

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// WorkerOptions make a Worker.
type WorkerOptions struct {
	// Open makes the connection to the source broker.
	Open func(ctx context.Context) (sdk.Session, error)

	MaxWait           time.Duration // fetch.wait.max.ms
	MinBytes          int32         // fetch.min.bytes
	MaxBytes          int32         // fetch.response.max.bytes
	PartitionMaxBytes int32         // fetch.max.bytes
	Backoff           time.Duration // fetch.backoff.ms

	Budget *Budget // shared bound of bytes in flight; nil: none

	Logger *slog.Logger
	Clock  clock.Clock
}

// Budget bounds the bytes that all workers hold in buffers.
type Budget struct{}

// NewBudget makes a budget of so many bytes.
func NewBudget(bytes int64) *Budget { return &Budget{} }

// Worker owns one connection to a source broker and moves the bytes of its
// partitions on one goroutine.
type Worker struct{}

// NewWorker starts the goroutine; nothing is dialled before the first Add.
func NewWorker(o WorkerOptions) *Worker { return &Worker{} }

// Add attaches p from the next fetch on. It does nothing after Close.
func (w *Worker) Add(p *Pipeline) {}

// Remove detaches p; when it returns no append of p runs or will run. Ended is
// not called.
func (w *Worker) Remove(p *Pipeline) {}

// SetEpochs changes the leader epochs of p from the next append on.
func (w *Worker) SetEpochs(p *Pipeline, leaderEpoch, sourceEpoch int32) {}

// Close detaches all partitions, ends the connection and waits for the
// goroutine. Ended is not called.
func (w *Worker) Close() {}
