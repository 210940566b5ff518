package mirror

import (
	"context"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Controller decides about the metadata of this cluster: a [controller.Controller],
// or one of a simulation. What its methods do is written there.
type Controller interface {
	Image() *metadata.Image
	Watch(fn func(prev, next *metadata.Image)) (stop func())

	CreateMirror(ctx context.Context, name string, configs map[string]string) error
	DeleteMirror(ctx context.Context, name string, validation int64) error
	StartMirrorTopics(ctx context.Context, r controller.StartMirrorTopics) ([]controller.TopicResult, error)
	SetMirrorTopics(ctx context.Context, r controller.SetMirrorTopics) ([]controller.TopicResult, error)
	RecoverMirrorTopics(ctx context.Context, mirror string, topics []string) ([]controller.TopicResult, error)

	WriteMirrorStates(ctx context.Context, mirror string, writes []controller.MirrorStateWrite) []controller.MirrorStateResult
	BumpLeaderEpochs(ctx context.Context, bumps []controller.Bump) []error
	CreatePartitions(ctx context.Context, topics []controller.CreatePartitions, validateOnly bool) []controller.TopicResult
	AlterConfigs(ctx context.Context, resources []controller.AlterConfigs, validateOnly bool) []error
	CopyACLs(ctx context.Context, acls []controller.CopyACL) []error
}

var _ Controller = (*controller.Controller)(nil)
