package clientconfig

import (
	"strings"

	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const (
	plainModule = "org.apache.kafka.common.security.plain.PlainLoginModule"
	scramModule = "org.apache.kafka.common.security.scram.ScramLoginModule"
)

// sasl builds the mechanism from sasl.mechanism and the login module of
// sasl.jaas.config.
func (p *parser) sasl() error {
	mechanism := strings.ToUpper(p.get(keyMechanism))
	module := scramModule
	switch mechanism {
	case "", "PLAIN":
		mechanism, module = "PLAIN", plainModule
	case "SCRAM-SHA-256", "SCRAM-SHA-512":
	case "GSSAPI", "OAUTHBEARER":
		return keyErrorf(keyMechanism, "%s is not supported; use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", mechanism)
	default:
		return keyErrorf(keyMechanism, "%q is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512", p.get(keyMechanism))
	}
	if p.get(keyJAAS) == "" {
		return keyErrorf(keyJAAS, "is required by security.protocol %s", p.c.Protocol)
	}
	login, err := parseJAAS(p.props[keyJAAS])
	if err != nil {
		return &KeyError{Key: keyJAAS, Err: err}
	}
	if login.module != module {
		return keyErrorf(keyJAAS, "names login module %s, but mechanism %s needs %s", login.module, mechanism, module)
	}
	user, password := login.options["username"], login.options["password"]
	if user == "" {
		return keyErrorf(keyJAAS, "option username is missing")
	}
	if _, ok := login.options["password"]; !ok {
		return keyErrorf(keyJAAS, "option password is missing")
	}
	if mechanism == "PLAIN" {
		p.c.SASL = plain.Auth{User: user.Reveal(), Pass: password.Reveal()}.AsMechanism()
		return nil
	}
	auth := scram.Auth{User: user.Reveal(), Pass: password.Reveal(), IsToken: login.options["tokenauth"] == "true"}
	if mechanism == "SCRAM-SHA-256" {
		p.c.SASL = auth.AsSha256Mechanism()
	} else {
		p.c.SASL = auth.AsSha512Mechanism()
	}
	return nil
}
