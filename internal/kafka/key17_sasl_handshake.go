package kafka

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// SaslHandshake (v0-v1)
//
// Behavior:
//   - Chooses the mechanism of a login. One that the listener does not have is
//     UNSUPPORTED_SASL_MECHANISM with those that it has, and the connection closes.
//   - On a connection that is logged in it begins to renew the session (KIP-368),
//     if that has an end; otherwise, and on listeners without SASL, it is
//     ILLEGAL_SASL_STATE, and the connection stays as it is.
//
// Version notes:
//   - v0: the tokens follow without a Kafka header; clients before Kafka 1.0
//   - v1: the tokens are SaslAuthenticate requests (KIP-152)
func (s *Server) registerSaslHandshake() {
	s.register(keySaslHandshake, 0, 1, s.saslHandshake)
}

func (s *Server) saslHandshake(r *request, body kmsg.Request) (kmsg.Response, error) {
	req := body.(*kmsg.SASLHandshakeRequest)
	resp := req.ResponseKind().(*kmsg.SASLHandshakeResponse)
	resp.SupportedMechanisms = r.conn.listener.SASL.Mechanisms()
	if !r.conn.beginLogin(req.Mechanism, req.Version == 0, r.received) {
		resp.ErrorCode = kerr.UnsupportedSaslMechanism.Code
	}
	return resp, nil
}
