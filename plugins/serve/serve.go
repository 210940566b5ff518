package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/lockstep-kafka/lockstep/plugins/proto"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// Plugin is what one plugin process offers. Fields left nil are kinds that it
// does not offer.
type Plugin struct {
	Name    string // for logs; the operator's name for the plugin may differ
	Version string // of the plugin, for logs

	// Truncation and UncleanElection are asked once per decision. They may be
	// called from several goroutines, and must answer before ctx ends: a late
	// answer is dropped, and the broker's default decides.
	Truncation      sdk.TruncationPolicy
	UncleanElection sdk.UncleanElectionPolicy

	// Dial makes the process a transport.
	Dial sdk.DialFunc
}

func (p *Plugin) kinds() []string {
	var kinds []string
	if p.Truncation != nil {
		kinds = append(kinds, string(sdk.KindTruncation))
	}
	if p.UncleanElection != nil {
		kinds = append(kinds, string(sdk.KindUncleanElection))
	}
	if p.Dial != nil {
		kinds = append(kinds, string(sdk.KindTransport))
	}
	return kinds
}

// Run is the body of a plugin's main. It returns when the broker has stopped
// the plugin; the process should then exit. It ends the process itself when the
// broker is gone, or when the process was not started by one.
//
// Nothing may be printed to standard output before Serve: the first line there
// is the handshake. Later output, and standard error at any time, end in the
// broker's log; [Logger] keeps levels and attributes.
func Run(p Plugin) {
	if len(p.kinds()) == 0 {
		fmt.Fprintln(os.Stderr, "this plugin offers nothing: set Truncation, UncleanElection or Dial")
		os.Exit(2)
	}
	parent := os.Getppid()
	nameProcess()
	if asked := os.Getenv("PLUGIN_PROTOCOL_VERSIONS"); asked != "" {
		// go-plugin reports one version of ours when none fits; the host shows
		// this line beside it.
		Logger().Debug(fmt.Sprintf("protocol versions: the plugin speaks %v, the host %s", proto.Versions, asked))
	}
	go exitWithParent(parent)

	served := &grpcPlugin{plugin: p, parent: parent}
	versions := map[int]plugin.PluginSet{}
	for _, v := range proto.Versions {
		versions[v] = plugin.PluginSet{proto.Service: served}
	}
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  proto.Handshake,
		VersionedPlugins: versions,
		Logger:           quietLogger(),
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(proto.MaxQuestion), grpc.MaxSendMsgSize(proto.MaxAnswer))...)
		},
	})
}

// exitWithParent ends the process when its parent changes, which means that the
// broker died without a word: a plugin that lives on would hold its connections
// and answer nobody. On Linux the broker also sets a parent-death signal, which
// is faster but gets lost when the binary is setuid or has capabilities.
func exitWithParent(parent int) {
	for range time.Tick(time.Second) {
		if os.Getppid() != parent {
			os.Exit(1)
		}
	}
}

// nameProcess makes tools like ps show the program's name: a process executed
// from a descriptor is named after the descriptor's number.
func nameProcess() {
	if runtime.GOOS == "linux" {
		// Nothing but a name is lost when this fails.
		_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0)
	}
}

// grpcPlugin is the process as go-plugin sees it.
type grpcPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	plugin Plugin
	parent int
}

func (g *grpcPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	proto.RegisterPluginServer(s, &describer{plugin: &g.plugin})
	if g.plugin.Truncation != nil {
		proto.RegisterTruncationPolicyServer(s, &truncationServer{policy: g.plugin.Truncation})
	}
	if g.plugin.UncleanElection != nil {
		proto.RegisterUncleanElectionPolicyServer(s, &uncleanServer{policy: g.plugin.UncleanElection})
	}
	if g.plugin.Dial != nil {
		proto.RegisterTransportServer(s, &relayServer{dial: g.plugin.Dial, parent: g.parent})
	}
	return nil
}

func (g *grpcPlugin) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, errors.New("this side serves")
}

type describer struct {
	proto.UnimplementedPluginServer
	plugin *Plugin
}

func (d *describer) Describe(context.Context, *proto.DescribeRequest) (*proto.DescribeResponse, error) {
	r := &proto.DescribeResponse{Name: d.plugin.Name, Version: d.plugin.Version, Kinds: d.plugin.kinds()}
	for _, v := range proto.Versions {
		r.Protocols = append(r.Protocols, int32(v))
	}
	return r, nil
}
