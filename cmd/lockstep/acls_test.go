package main

import (
	"strings"
	"testing"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

func TestACLsOfFlags(t *testing.T) {
	f := aclsFlags{mirror: "m", pattern: "Prefixed", allow: []string{"User:a", "User:b"}, deny: []string{"User:c"},
		denyHosts: []string{"10.0.0.7", "10.0.0.8"}, operations: []string{"alter", "DescribeConfigs"}}
	acls, err := f.acls()
	if err != nil || len(acls) != 2*2+2*2 {
		t.Fatalf("%v, %v", acls, err)
	}
	var out strings.Builder
	for _, a := range acls {
		if a.ResourceType != metadata.ACLClusterMirror || a.Pattern != metadata.ACLPrefixed || a.ResourceName != "m" {
			t.Errorf("%+v", a)
		}
		printACL(&out, a)
	}
	for _, want := range []string{"ClusterMirror Prefixed m: Allow User:b DescribeConfigs from *\n", "ClusterMirror Prefixed m: Deny User:c Alter from 10.0.0.8\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, &out)
		}
	}

	// A filter is as narrow as the flags, and no narrower.
	f = aclsFlags{mirror: "m", pattern: "match", allow: []string{"User:a"}}
	acls, err = f.acls()
	filters := f.filters(acls)
	if err != nil || len(filters) != 1 || filters[0].Host != nil || filters[0].Operation != metadata.ACLAnyOperation || *filters[0].Principal != "User:a" || filters[0].Pattern != metadata.ACLMatch {
		t.Errorf("%+v, %v", filters, err)
	}
	f = aclsFlags{pattern: "literal"}
	if filters = f.filters(nil); len(filters) != 1 || filters[0].ResourceName != nil || filters[0].Pattern != metadata.ACLAnyPattern {
		t.Errorf("everything: %+v", filters)
	}
}

func TestACLsUsage(t *testing.T) {
	for args, text := range map[string]string{
		"--list":                             "--bootstrap-server",
		"--bootstrap-server :1":              "one of --add",
		"--bootstrap-server :1 --add --list": "one of --add",
		"--bootstrap-server :1 --add --cluster-mirror m":                                                        "--allow-principal",
		"--bootstrap-server :1 --add --allow-principal User:a":                                                  "--cluster-mirror",
		"--bootstrap-server :1 --remove":                                                                        "--cluster-mirror",
		"--bootstrap-server :1 --list --resource-pattern-type x":                                                "--resource-pattern-type",
		"--bootstrap-server :1 --list --operation Read":                                                         "--operation",
		"--bootstrap-server :1 --add --cluster-mirror m --allow-principal User:a --resource-pattern-type match": "--resource-pattern-type",
	} {
		cmd := newACLsCommand()
		cmd.SetArgs(strings.Fields(args))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
