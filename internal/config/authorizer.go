package config

import (
	"fmt"

	"github.com/lockstep-kafka/lockstep/internal/authz"
)

// authorizerNames are Kafka's authorizers whose rules ours follows, so that a
// file of either generation can be taken over.
var authorizerNames = map[string]bool{
	"org.apache.kafka.metadata.authorizer.StandardAuthorizer": true,
	"kafka.security.authorizer.AclAuthorizer":                 true,
}

// Authorizer is how clients' rights are decided; nil: everybody may do everything.
func (c *Config) Authorizer() (*authz.Options, error) {
	super, err := authz.ParseSuperUsers(c.String("super.users"))
	if err != nil {
		return nil, err
	}
	name := c.String("authorizer.class.name")
	if name == "" {
		return nil, nil
	}
	if !authorizerNames[name] {
		return nil, fmt.Errorf("authorizer.class.name: %q: there is one authorizer here; name it org.apache.kafka.metadata.authorizer.StandardAuthorizer, or leave it empty for none", name)
	}
	return &authz.Options{SuperUsers: super, AllowIfNoACL: c.Bool("allow.everyone.if.no.acl.found")}, nil
}

// checkAuthorizer finds faults, and settings that protect nothing.
func (c *Config) checkAuthorizer() error {
	o, err := c.Authorizer()
	if err == nil && o == nil && c.IsSet("super.users") {
		c.Warnings = append(c.Warnings, "super.users has no effect without authorizer.class.name: every client may do everything")
	}
	return err
}
