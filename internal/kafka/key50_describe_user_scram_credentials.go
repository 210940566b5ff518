package kafka

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// DescribeUserScramCredentials (v0)
//
// Behavior:
//   - Tells which mechanisms a user has a credential for, and with how many
//     iterations: never a salt or a key. No users named: all of them. Needs
//     Describe on the cluster.
//   - A user without credentials is RESOURCE_NOT_FOUND, one named twice
//     DUPLICATE_RESOURCE; the others are answered all the same.
//
// Version notes:
//   - v0: KIP-554, flexible
func (s *Server) registerDescribeUserScramCredentials() {
	s.register(50, 0, 0, s.describeUserScramCredentials)
}

func (s *Server) describeUserScramCredentials(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.DescribeUserSCRAMCredentialsRequest)
	resp := req.ResponseKind().(*kmsg.DescribeUserSCRAMCredentialsResponse)
	if !s.allowedCluster(r, authz.Describe) {
		resp.ErrorCode, resp.ErrorMessage = errorCode(errClusterDenied)
		return resp, nil
	}
	img := s.o.Controller.Image()
	if len(req.Users) == 0 {
		resp.Results = allScram(img)
		return resp, nil
	}
	named := map[string]int{}
	for _, u := range req.Users {
		named[u.Name]++
	}
	for _, u := range req.Users {
		n, first := named[u.Name]
		if !first {
			continue
		}
		delete(named, u.Name)
		out := kmsg.NewDescribeUserSCRAMCredentialsResponseResult()
		out.User = u.Name
		creds := img.ScramOf(u.Name)
		switch {
		case n > 1:
			out.ErrorCode, out.ErrorMessage = errorCode(fmt.Errorf("%w: user %q is named %d times", errDuplicate, u.Name, n))
		case len(creds) == 0:
			out.ErrorCode, out.ErrorMessage = errorCode(fmt.Errorf("%w: user %q", controller.ErrUnknownScram, u.Name))
		}
		if out.ErrorCode == 0 {
			for _, c := range creds {
				out.CredentialInfos = append(out.CredentialInfos, scramInfo(c))
			}
		}
		resp.Results = append(resp.Results, out)
	}
	return resp, nil
}

func allScram(img *metadata.Image) []kmsg.DescribeUserSCRAMCredentialsResponseResult {
	var results []kmsg.DescribeUserSCRAMCredentialsResponseResult
	for _, c := range img.ScramCredentials() {
		if n := len(results); n == 0 || results[n-1].User != c.User {
			r := kmsg.NewDescribeUserSCRAMCredentialsResponseResult()
			r.User = c.User
			results = append(results, r)
		}
		last := &results[len(results)-1]
		last.CredentialInfos = append(last.CredentialInfos, scramInfo(c))
	}
	return results
}

func scramInfo(c *metadata.ScramCredential) kmsg.DescribeUserSCRAMCredentialsResponseResultCredentialInfo {
	info := kmsg.NewDescribeUserSCRAMCredentialsResponseResultCredentialInfo()
	info.Mechanism, info.Iterations = int8(c.Mechanism), c.Iterations
	return info
}
