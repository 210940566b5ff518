package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/lockstep-kafka/lockstep/internal/authz"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// aclsFlags is one call of `lockstep acls`: the rights on mirrors, which Apache
// Kafka's own tool has no word for. Its words are used where it has some.
type aclsFlags struct {
	bootstrap, commandConfig string
	add, remove, list        bool
	mirror, pattern          string
	allow, deny              []string
	allowHosts, denyHosts    []string
	operations               []string
}

func newACLsCommand() *cobra.Command {
	var f aclsFlags
	cmd := &cobra.Command{
		Use:   "acls",
		Short: "Give and take rights on cluster mirrors",
		Long: `Give and take rights on cluster mirrors, the one kind of resource that kafka-acls.sh does not know. Everything else
is its business, and it works against Lockstep.

Operations: All, Create, Alter, Describe, Delete, DescribeConfigs, AlterConfigs. Start, stop, pause, resume and recover
need Alter on the mirror, and AlterConfigs on each topic.`,
		Example: `  lockstep acls --bootstrap-server :9092 --add --allow-principal User:ops --operation Alter --operation Describe --cluster-mirror my-mirror
  lockstep acls --bootstrap-server :9092 --list
  lockstep acls --bootstrap-server :9092 --remove --allow-principal User:ops --cluster-mirror my-mirror`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.bootstrap, "bootstrap-server", "", "cluster, `host:port[,host:port]` (required)")
	flags.StringVar(&f.commandConfig, "command-config", "", "client properties `file` (TLS, SASL)")
	flags.BoolVar(&f.add, "add", false, "add ACLs")
	flags.BoolVar(&f.remove, "remove", false, "remove the ACLs that all of the given flags fit")
	flags.BoolVar(&f.list, "list", false, "list the ACLs that all of the given flags fit")
	flags.StringVar(&f.mirror, "cluster-mirror", "", "`name` of the mirror, * for all, or a prefix")
	flags.StringVar(&f.pattern, "resource-pattern-type", "literal", "literal or prefixed; any or match with --list and --remove")
	flags.StringArrayVar(&f.allow, "allow-principal", nil, "`User:name` who may; repeatable")
	flags.StringArrayVar(&f.deny, "deny-principal", nil, "`User:name` who may not; repeatable")
	flags.StringArrayVar(&f.allowHosts, "allow-host", nil, "`address` from which --allow-principal may (default *); repeatable")
	flags.StringArrayVar(&f.denyHosts, "deny-host", nil, "`address` from which --deny-principal may not (default *); repeatable")
	flags.StringArrayVar(&f.operations, "operation", nil, "`operation` (default All); repeatable")
	return cmd
}

func (f *aclsFlags) run(cmd *cobra.Command) error {
	n := 0
	for _, given := range []bool{f.add, f.remove, f.list} {
		if given {
			n++
		}
	}
	acls, err := f.acls()
	switch {
	case err != nil:
	case f.bootstrap == "":
		err = errors.New("--bootstrap-server is required")
	case n != 1:
		err = errors.New("one of --add, --remove and --list is required")
	case f.add && (f.mirror == "" || len(f.allow)+len(f.deny) == 0):
		err = errors.New("--add needs --cluster-mirror, and --allow-principal or --deny-principal")
	case f.remove && f.mirror == "":
		err = errors.New("--remove needs --cluster-mirror")
	case f.add && !acls[0].Pattern.Valid():
		err = fmt.Errorf("--resource-pattern-type: %q is for --list and --remove", f.pattern)
	}
	if err != nil {
		return usageError{err}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), mirrorsTimeout)
	defer cancel()
	config, err := (&mirrorsFlags{bootstrap: f.bootstrap, commandConfig: f.commandConfig}).clientConfig()
	if err != nil {
		return usageError{err}
	}
	conn, err := dialAny(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close()
	c := &mirrorsClient{ctx: ctx, conn: conn, out: cmd.OutOrStdout(), err: cmd.ErrOrStderr()}
	switch {
	case f.add:
		return addACLs(c, acls)
	case f.remove:
		return removeACLs(c, f.filters(acls))
	}
	return listACLs(c, f.filters(acls))
}

// acls are the combinations of what was given: principals with hosts and
// operations.
func (f *aclsFlags) acls() ([]metadata.ACL, error) {
	patterns := map[string]metadata.ACLPatternType{
		"any": metadata.ACLAnyPattern, "match": metadata.ACLMatch, "literal": metadata.ACLLiteral, "prefixed": metadata.ACLPrefixed,
	}
	pattern, ok := patterns[strings.ToLower(f.pattern)]
	if !ok {
		return nil, fmt.Errorf("--resource-pattern-type: %q is not any, match, literal or prefixed", f.pattern)
	}
	ops := f.operations
	if len(ops) == 0 {
		ops = []string{authz.All.String()}
	}
	var out []metadata.ACL
	for _, name := range ops {
		op, err := mirrorOperation(name)
		if err != nil {
			return nil, err
		}
		for _, who := range []struct {
			permission metadata.ACLPermission
			names      []string
			hosts      []string
		}{{metadata.ACLAllow, f.allow, f.allowHosts}, {metadata.ACLDeny, f.deny, f.denyHosts}} {
			hosts := who.hosts
			if len(hosts) == 0 {
				hosts = []string{metadata.ACLWildcard}
			}
			for _, principal := range who.names {
				for _, host := range hosts {
					out = append(out, metadata.ACL{ResourceType: authz.ClusterMirror, ResourceName: f.mirror, Pattern: pattern,
						Principal: principal, Host: host, Operation: op, Permission: who.permission})
				}
			}
		}
	}
	return out, nil
}

// mirrorOperation reads an operation in any case, as kafka-acls.sh does.
func mirrorOperation(name string) (authz.Operation, error) {
	for op := authz.All; op.Valid(); op++ {
		if strings.EqualFold(op.String(), name) && (op == authz.All || authz.ClusterMirror.Operations().Has(op)) {
			return op, nil
		}
	}
	return 0, fmt.Errorf("--operation: %q is none of a mirror", name)
}

// filters select what the flags say; what was not given selects anything.
func (f *aclsFlags) filters(acls []metadata.ACL) []metadata.ACLFilter {
	every := metadata.ACLFilter{ResourceType: authz.ClusterMirror, Pattern: metadata.ACLAnyPattern,
		Operation: metadata.ACLAnyOperation, Permission: metadata.ACLAnyPermission}
	if f.mirror != "" {
		every.ResourceName = &f.mirror
	}
	if len(acls) == 0 {
		return []metadata.ACLFilter{every}
	}
	var out []metadata.ACLFilter
	for i := range acls {
		a, one := &acls[i], every
		one.Pattern, one.Principal, one.Permission = a.Pattern, &a.Principal, a.Permission
		if len(f.operations) > 0 {
			one.Operation = a.Operation
		}
		if len(f.allowHosts)+len(f.denyHosts) > 0 {
			one.Host = &a.Host
		}
		out = append(out, one)
	}
	return out
}

func addACLs(c *mirrorsClient, acls []metadata.ACL) error {
	req := kmsg.NewPtrCreateACLsRequest()
	for _, a := range acls {
		req.Creations = append(req.Creations, kmsg.CreateACLsRequestCreation{
			ResourceType: kmsg.ACLResourceType(a.ResourceType), ResourceName: a.ResourceName,
			ResourcePatternType: kmsg.ACLResourcePatternType(a.Pattern), Principal: a.Principal, Host: a.Host,
			Operation: kmsg.ACLOperation(a.Operation), PermissionType: kmsg.ACLPermissionType(a.Permission),
		})
	}
	resp, err := c.request(req)
	if err != nil {
		return err
	}
	var errs []error
	for i, r := range resp.(*kmsg.CreateACLsResponse).Results {
		if err := aclError(r.ErrorCode, r.ErrorMessage); err != nil {
			errs = append(errs, err)
			continue
		}
		printACL(c.out, acls[i])
	}
	return errors.Join(errs...)
}

func removeACLs(c *mirrorsClient, filters []metadata.ACLFilter) error {
	req := kmsg.NewPtrDeleteACLsRequest()
	for _, f := range filters {
		req.Filters = append(req.Filters, kmsg.DeleteACLsRequestFilter{
			ResourceType: kmsg.ACLResourceType(f.ResourceType), ResourceName: f.ResourceName,
			ResourcePatternType: kmsg.ACLResourcePatternType(f.Pattern), Principal: f.Principal, Host: f.Host,
			Operation: kmsg.ACLOperation(f.Operation), PermissionType: kmsg.ACLPermissionType(f.Permission),
		})
	}
	resp, err := c.request(req)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range resp.(*kmsg.DeleteACLsResponse).Results {
		errs = append(errs, aclError(r.ErrorCode, r.ErrorMessage))
		for _, m := range r.MatchingACLs {
			printACL(c.out, metadata.ACL{ResourceType: metadata.ACLResourceType(m.ResourceType), ResourceName: m.ResourceName,
				Pattern: metadata.ACLPatternType(m.ResourcePatternType), Principal: m.Principal, Host: m.Host,
				Operation: metadata.ACLOperation(m.Operation), Permission: metadata.ACLPermission(m.PermissionType)})
		}
	}
	return errors.Join(errs...)
}

func listACLs(c *mirrorsClient, filters []metadata.ACLFilter) error {
	for _, f := range filters {
		req := kmsg.NewPtrDescribeACLsRequest()
		req.ResourceType, req.ResourceName, req.ResourcePatternType = kmsg.ACLResourceType(f.ResourceType), f.ResourceName, kmsg.ACLResourcePatternType(f.Pattern)
		req.Principal, req.Host = f.Principal, f.Host
		req.Operation, req.PermissionType = kmsg.ACLOperation(f.Operation), kmsg.ACLPermissionType(f.Permission)
		resp, err := c.request(req)
		if err != nil {
			return err
		}
		found := resp.(*kmsg.DescribeACLsResponse)
		if err := aclError(found.ErrorCode, found.ErrorMessage); err != nil {
			return err
		}
		for _, r := range found.Resources {
			for _, a := range r.ACLs {
				printACL(c.out, metadata.ACL{ResourceType: metadata.ACLResourceType(r.ResourceType), ResourceName: r.ResourceName,
					Pattern: metadata.ACLPatternType(r.ResourcePatternType), Principal: a.Principal, Host: a.Host,
					Operation: metadata.ACLOperation(a.Operation), Permission: metadata.ACLPermission(a.PermissionType)})
			}
		}
	}
	return nil
}

func aclError(code int16, message *string) error {
	if code == 0 {
		return nil
	}
	if message == nil {
		message = new(string)
	}
	return codeError(code, *message)
}

func printACL(w io.Writer, a metadata.ACL) {
	fmt.Fprintf(w, "%s %s %s: %s %s %s from %s\n", a.ResourceType, a.Pattern, a.ResourceName, a.Permission, a.Principal, a.Operation, a.Host)
}
