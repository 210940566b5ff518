package metadata

import (
	"strings"
	"testing"
)

// TestACLRules is the grammar of acls.include (C3). MIR-372.
func TestACLRules(t *testing.T) {
	acls := map[string]ACL{
		"read":     {ACLTopic, ACLLiteral, "my-topic-1", "User:alice", "*", ACLRead, ACLAllow},
		"prefix":   {ACLTopic, ACLPrefixed, "my-topic-", "User:bob", "*", ACLDescribeConfigs, ACLAllow},
		"deny":     {ACLTopic, ACLLiteral, "my-topic-1", "User:alice", "10.0.0.1", ACLWrite, ACLDeny},
		"wildcard": {ACLTopic, ACLLiteral, "*", "User:*", "*", ACLDescribe, ACLAllow},
		"group":    {ACLGroup, ACLLiteral, "my-group", "User:alice", "*", ACLRead, ACLAllow},
		"txn":      {ACLTransactionalID, ACLLiteral, "my-topic-1", "User:CN=ops;O=x", "*", ACLWrite, ACLAllow},
		"mirror":   {ACLClusterMirror, ACLLiteral, "m", "User:alice", "*", ACLAlter, ACLAllow},
	}
	order := []string{"read", "prefix", "deny", "wildcard", "group", "txn", "mirror"}
	for _, tc := range []struct{ rules, want string }{
		{"*", "read prefix deny wildcard group txn"},
		{"", ""},
		{";;;;", "read prefix deny wildcard group txn"},
		{"TOPIC", "read prefix deny wildcard"},
		{"topic;*;*;*;*", "read prefix deny wildcard"},
		{"TOPIC;my-topic-.*", "read prefix deny"},
		{"TOPIC;my-topic", ""},
		{"TOPIC;a|my-topic-.", "read deny"},
		{"TOPIC;my-topic-.*,GROUP;my-group", "read prefix deny group"},
		{"*;*;READ", "read group"},
		{"*;*;DESCRIBE_CONFIGS", "prefix"},
		{"*;*;describeconfigs", "prefix"},
		{"*;*;*;DENY", "deny"},
		{"*;*;*;allow", "read prefix wildcard group txn"},
		{"*;*;*;*;User:alice", "read deny group"},
		{"*;*;*;*;User:.*", "read prefix deny wildcard group txn"},
		{"*;*;*;*;alice", ""},
		{"TRANSACTIONAL_ID", "txn"},
		{"TransactionalId", "txn"},
	} {
		rules, err := CompileACLRules(tc.rules)
		if err != nil {
			t.Errorf("%q: %v", tc.rules, err)
			continue
		}
		var got []string
		for _, name := range order {
			if rules.Match(acls[name]) {
				got = append(got, name)
			}
		}
		if g := strings.Join(got, " "); g != tc.want {
			t.Errorf("%q selects %q, want %q", tc.rules, g, tc.want)
		}
	}
	for rules, want := range map[string]string{
		"TOPIC;a;READ;ALLOW;User:a;more": "more than five",
		"CLUSTER_MIRROR":                 `resource type "CLUSTER_MIRROR"`,
		"QUEUE":                          "Topic, Group",
		"TOPIC;(":                        "missing closing",
		"TOPIC;a;EAT":                    `operation "EAT"`,
		"TOPIC;a;ANY":                    `operation "ANY"`,
		"TOPIC;a;READ;MAYBE":             `permission "MAYBE"`,
		"TOPIC;a;READ;ALLOW;[":           "missing closing",
	} {
		if _, err := CompileACLRules(rules); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", rules, err, want)
		}
	}
}
