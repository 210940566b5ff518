package metadata

import (
	"fmt"
	"regexp"
	"strings"
)

// ACLRules say which ACLs of its source a mirror copies (acls.include, C3). Those of
// mirrors never are, whatever the rules say (W56).
type ACLRules []aclRule

// aclRule is one rule. A field's zero value matches anything.
type aclRule struct {
	resource        ACLResourceType
	operation       ACLOperation
	permission      ACLPermission
	name, principal *regexp.Regexp
}

// ruleResources can stand in a rule.
var ruleResources = []ACLResourceType{ACLTopic, ACLGroup, ACLCluster, ACLTransactionalID, ACLDelegationToken, ACLUser}

// CompileACLRules reads a list of rules, divided by commas: up to five fields with
// semicolons between them, resource type, resource name, operation, permission,
// principal. Name and principal are patterns of the whole text; * or a field that is
// not there matches anything. Types, operations and permissions are spelled as the
// tools of Apache Kafka do it (TRANSACTIONAL_ID) or as ACLs print (TransactionalId).
func CompileACLRules(v string) (ACLRules, error) {
	var rules ACLRules
	for _, text := range SplitList(v) {
		r, err := compileACLRule(text)
		if err != nil {
			return nil, fmt.Errorf("rule %q %w", text, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

func compileACLRule(text string) (r aclRule, err error) {
	fields := strings.Split(text, ";")
	if len(fields) > 5 {
		return r, fmt.Errorf("has more than five fields")
	}
	for i, f := range fields {
		f = strings.TrimSpace(f)
		if f == ACLWildcard || f == "" {
			continue
		}
		switch i {
		case 0:
			r.resource, err = namedValue("resource type", f, ruleResources)
		case 1:
			r.name, err = wholePattern(f)
		case 2:
			r.operation, err = namedValue("operation", f, allOperations())
		case 3:
			r.permission, err = namedValue("permission", f, []ACLPermission{ACLAllow, ACLDeny})
		case 4:
			r.principal, err = wholePattern(f)
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

func allOperations() (all []ACLOperation) {
	for o := ACLAll; o.Valid(); o++ {
		all = append(all, o)
	}
	return all
}

func namedValue[T fmt.Stringer](field, text string, values []T) (v T, err error) {
	plain := strings.ReplaceAll(text, "_", "")
	var names []string
	for _, v := range values {
		if strings.EqualFold(plain, v.String()) {
			return v, nil
		}
		names = append(names, v.String())
	}
	return v, fmt.Errorf("has the %s %q, which is not one of %s", field, text, strings.Join(names, ", "))
}

func wholePattern(text string) (*regexp.Regexp, error) {
	if _, err := regexp.Compile(text); err != nil {
		return nil, err // of what was written, not of what we make of it
	}
	return regexp.Compile("^(?:" + text + ")$")
}

// Match tells whether some rule selects an ACL.
func (rules ACLRules) Match(a ACL) bool {
	if a.ResourceType == ACLClusterMirror {
		return false
	}
	for _, r := range rules {
		if (r.resource == 0 || r.resource == a.ResourceType) &&
			(r.operation == 0 || r.operation == a.Operation) &&
			(r.permission == 0 || r.permission == a.Permission) &&
			(r.name == nil || r.name.MatchString(a.ResourceName)) &&
			(r.principal == nil || r.principal.MatchString(a.Principal)) {
			return true
		}
	}
	return false
}
