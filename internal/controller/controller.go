package controller

import (
	"context"
	"errors"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

var errSkeleton = errors.New("controller: not built yet")

// Controller is the only writer of cluster metadata.
type Controller struct{}

// Open starts the embedded etcd, reads the image and wins the election.
func Open(ctx context.Context, o Options) (*Controller, error) { return nil, errSkeleton }

// Close gives the office up and stops etcd.
func (c *Controller) Close() error { return errSkeleton }

// Image is the latest image.
func (c *Controller) Image() *metadata.Image { return metadata.NewImage() }

// Watch calls fn with every new image, in order; see the package.
func (c *Controller) Watch(fn func(prev, next *metadata.Image)) (cancel func()) { return func() {} }

func (c *Controller) RegisterBroker(ctx context.Context, r RegisterBroker) (brokerEpoch int64, err error) {
	return 0, errSkeleton
}
func (c *Controller) CreateTopics(ctx context.Context, topics []CreateTopic, validateOnly bool) []TopicResult {
	return nil
}
func (c *Controller) DeleteTopics(ctx context.Context, ids []metadata.TopicID) []TopicResult {
	return nil
}
func (c *Controller) CreatePartitions(ctx context.Context, topics []CreatePartitions, validateOnly bool) []TopicResult {
	return nil
}
func (c *Controller) AlterConfigs(ctx context.Context, resources []AlterConfigs, validateOnly bool) []error {
	return nil
}
func (c *Controller) AllocateProducerIDs(ctx context.Context, n int32) (first int64, err error) {
	return 0, errSkeleton
}
func (c *Controller) CreateMirror(ctx context.Context, name string, configs map[string]string) error {
	return errSkeleton
}
func (c *Controller) DeleteMirror(ctx context.Context, name string, validation int64) error {
	return errSkeleton
}
func (c *Controller) StartMirrorTopics(ctx context.Context, r StartMirrorTopics) ([]TopicResult, error) {
	return nil, errSkeleton
}
func (c *Controller) SetMirrorTopics(ctx context.Context, r SetMirrorTopics) ([]TopicResult, error) {
	return nil, errSkeleton
}

// RecoverMirrorTopics takes FAILED partitions out of FAILED; no topics: all of the mirror.
func (c *Controller) RecoverMirrorTopics(ctx context.Context, mirror string, topics []string) ([]TopicResult, error) {
	return nil, errSkeleton
}
func (c *Controller) WriteMirrorStates(ctx context.Context, mirror string, writes []MirrorStateWrite) []MirrorStateResult {
	return nil
}
func (c *Controller) BumpLeaderEpochs(ctx context.Context, bumps []Bump) []error { return nil }
