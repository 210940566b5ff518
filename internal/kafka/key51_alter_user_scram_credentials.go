package kafka

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// AlterUserScramCredentials (v0)
//
// Behavior:
//   - The client hashes: it sends salt, iterations and the salted password, from
//     which the two keys are derived here. The salted password is as good as the
//     password and is forgotten at once.
//   - Needs Alter on the cluster.
//   - All changes of one user or none. The same user and mechanism twice in a
//     request is DUPLICATE_RESOURCE; deleting what is not there
//     RESOURCE_NOT_FOUND; an empty user, too few or too many iterations
//     UNACCEPTABLE_CREDENTIAL; another mechanism UNSUPPORTED_SASL_MECHANISM.
//   - A changed or deleted credential counts from the next login on; connections
//     stay until they have to authenticate again (connections.max.reauth.ms).
//
// Version notes:
//   - v0: KIP-554, flexible
func (s *Server) registerAlterUserScramCredentials() {
	s.register(51, 0, 0, s.alterUserScramCredentials)
}

func (s *Server) alterUserScramCredentials(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.AlterUserSCRAMCredentialsRequest)
	resp := req.ResponseKind().(*kmsg.AlterUserSCRAMCredentialsResponse)
	asked := scramChanges(req)
	if !s.allowedCluster(r, authz.Alter) {
		for _, c := range asked {
			c.err = errClusterDenied
		}
	}
	var users []controller.AlterScram
	var at []int
	for i := range asked {
		out := kmsg.NewAlterUserSCRAMCredentialsResponseResult()
		out.User = asked[i].change.User
		if asked[i].err == nil {
			users, at = append(users, asked[i].change), append(at, i)
		}
		out.ErrorCode, out.ErrorMessage = errorCode(asked[i].err)
		resp.Results = append(resp.Results, out)
	}
	for i, err := range s.o.Controller.AlterScram(r.ctx, users) {
		out := &resp.Results[at[i]]
		out.ErrorCode, out.ErrorMessage = errorCode(err)
	}
	return resp, nil
}

// scramChange is what a request wants of one user; err is the first fault.
type scramChange struct {
	change controller.AlterScram
	err    error
	seen   []metadata.ScramMechanism
}

// scramChanges sorts a request by user, in the order of first mention.
func scramChanges(req *kmsg.AlterUserSCRAMCredentialsRequest) []*scramChange {
	var list []*scramChange
	byUser := map[string]*scramChange{}
	of := func(user string, m metadata.ScramMechanism) *scramChange {
		c := byUser[user]
		if c == nil {
			c = &scramChange{change: controller.AlterScram{User: user}}
			byUser[user] = c
			list = append(list, c)
		}
		switch {
		case c.err != nil:
		case m.String() == "":
			c.err = fmt.Errorf("%w: number %d", errMechanism, int8(m))
		case slices.Contains(c.seen, m):
			c.err = fmt.Errorf("%w: user %q and mechanism %v stand twice in the request", errDuplicate, user, m)
		}
		c.seen = append(c.seen, m)
		return c
	}
	for _, d := range req.Deletions {
		m := metadata.ScramMechanism(d.Mechanism)
		c := of(d.Name, m)
		c.change.Deletes = append(c.change.Deletes, m)
	}
	for _, u := range req.Upsertions {
		m := metadata.ScramMechanism(u.Mechanism)
		c := of(u.Name, m)
		if c.err == nil && len(u.SaltedPassword) != m.Size() {
			c.err = fmt.Errorf("%w: a salted password of %v has %d bytes, not %d", controller.ErrUnacceptableCredential, m, m.Size(), len(u.SaltedPassword))
		}
		if c.err == nil {
			c.change.Puts = append(c.change.Puts, metadata.NewScramCredential(u.Name, m, u.Iterations, u.Salt, u.SaltedPassword))
		}
	}
	return list
}
