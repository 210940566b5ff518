package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/internal/wire"
)

// registerMirrors adds the keys of cluster mirroring (KIP-1279). Keys 100, 101
// and 105 are calls of the controller here and are not served.
func (s *Server) registerMirrors() {
	if s.o.Mirrors == nil {
		return // no mirroring in this process: P4 says not to advertise it
	}
	s.registerCreateClusterMirror()
	s.registerStartMirrorTopics()
	s.registerRemoveTopicsFromMirror()
	s.registerLastMirroredEpochs()
	s.registerListClusterMirrors()
	s.registerDescribeClusterMirrors()
	s.registerPauseMirrorTopics()
	s.registerResumeMirrorTopics()
	s.registerDeleteClusterMirror()
	s.registerRecoverMirrorTopics()
	s.registerReadMirrorOffsets()
}

// mirrorErrorCode is errorCode for errors that only mirroring knows.
func mirrorErrorCode(err error) (code int16, message string) {
	if err == nil {
		return 0, ""
	}
	if errors.Is(err, mirror.ErrSourceUnreachable) {
		return kerr.RequestTimedOut.Code, err.Error()
	}
	code, text := errorCode(err)
	return code, *text
}

// mirrorResponse is what the responses of mirror commands have in common.
type mirrorResponse interface {
	SetStatus(code int16, message string)
}

// mirrorTopicsResponse is a mirrorResponse with an outcome per topic (P16).
type mirrorTopicsResponse interface {
	mirrorResponse
	SetResults([]wire.MirrorTopicResult)
}

func setMirrorStatus(resp mirrorResponse, err error) { resp.SetStatus(mirrorErrorCode(err)) }

// setMirrorOutcomes answers a command over topics. An error is of the request as
// a whole; then no topic is named.
func setMirrorOutcomes(resp mirrorTopicsResponse, outcomes []mirror.TopicOutcome, err error) {
	setMirrorStatus(resp, err)
	if err != nil {
		return
	}
	results := make([]wire.MirrorTopicResult, len(outcomes))
	for i, o := range outcomes {
		results[i].Name = o.Name
		if o.Err != nil {
			code, text := mirrorErrorCode(o.Err)
			results[i].ErrorCode, results[i].ErrorMessage = code, &text
		}
	}
	resp.SetResults(results)
}

// mirrorsFor is the coordinator for commands of r's client, who needs a right on
// every topic that a command is about, once its patterns are topics (spec 5.6).
func (s *Server) mirrorsFor(r *request) *mirror.Coordinator {
	return s.o.Mirrors.For(func(topics []string) error {
		for _, t := range topics {
			if !s.allowedTopic(r, authz.AlterConfigs, t) {
				return fmt.Errorf("%w: %s needs AlterConfigs", errTopicDenied, t)
			}
		}
		return nil
	})
}

// mayTellEpochs tells whether a client may learn how far we mirrored a source:
// it needs Describe on every mirror of that source, or where there is none, on
// the one it names.
func (s *Server) mayTellEpochs(r *request, source *string, name string) bool {
	found := false
	for _, m := range s.o.Controller.Image().Mirrors() {
		if source == nil || m.SourceClusterID() != *source {
			continue
		}
		if found = true; !s.allowed(r, authz.Describe, authz.ClusterMirror, m.Name) {
			return false
		}
	}
	return found || s.allowed(r, authz.Describe, authz.ClusterMirror, name)
}
