package kafka

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// SaslAuthenticate (v0-v2)
//
// Behavior:
//   - Carries the tokens of the mechanism that SaslHandshake chose. What they
//     prove is the connection's principal from then on.
//   - A refused login is SASL_AUTHENTICATION_FAILED, after a delay that grows with
//     the failures of the address and of the name, and then the connection closes.
//     An unknown user and a wrong password are answered the same.
//   - A session ends with its credential or after connections.max.reauth.ms: the
//     next request that does not renew it finds the connection closed. Renewing
//     takes the same mechanism and the same principal.
//
// Version notes:
//   - v1: session lifetime in the answer (KIP-368)
//   - v2: flexible
func (s *Server) registerSaslAuthenticate() {
	s.register(keySaslAuthenticate, 0, 2, s.saslAuthenticate)
}

func (s *Server) saslAuthenticate(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.SASLAuthenticateRequest)
	resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
	answer, lifetime, err := r.conn.stepLogin(req.SASLAuthBytes, r.received)
	if err != nil {
		resp.ErrorCode, resp.ErrorMessage = kerr.SaslAuthenticationFailed.Code, kmsg.StringPtr(err.Error())
		return resp, nil
	}
	resp.SASLAuthBytes = answer
	resp.SessionLifetimeMillis = lifetime.Milliseconds()
	return resp, nil
}
