package config

import (
	"strings"
	"testing"
)

func TestAuthorizer(t *testing.T) {
	const standard = "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"
	load := func(overrides ...string) (*Config, error) { return Load("", overrides) }

	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if o, err := c.Authorizer(); o != nil || err != nil {
		t.Errorf("without a name: %v, %v", o, err)
	}
	for _, name := range []string{standard, "authorizer.class.name=kafka.security.authorizer.AclAuthorizer"} {
		if c, err = load(name, "super.users=User:CN=a,O=b;User:root"); err != nil {
			t.Fatal(err)
		}
		if o, err := c.Authorizer(); err != nil || len(o.SuperUsers) != 2 || o.AllowIfNoACL {
			t.Errorf("%s: %+v, %v", name, o, err)
		}
	}
	if c, err = load(standard, "allow.everyone.if.no.acl.found=true"); err != nil {
		t.Fatal(err)
	}
	if o, _ := c.Authorizer(); !o.AllowIfNoACL {
		t.Error("allow.everyone.if.no.acl.found is lost")
	}
	if c, err = load("super.users=User:root"); err != nil || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "super.users") {
		t.Errorf("super users without an authorizer: %v, %v", c, err)
	}
	for override, text := range map[string]string{
		"authorizer.class.name=com.example.Mine": "authorizer.class.name",
		"super.users=root":                       "super.users",
	} {
		if _, err := load(override); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", override, err)
		}
	}
}
