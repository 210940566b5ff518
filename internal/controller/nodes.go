package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// Nodes call each other with gRPC, because etcd brings it along, with messages in
// JSON. The connections are those of the controller listener: encrypted, and
// between nodes that know the cluster's key.
const (
	serviceName = "lockstep.Controller"
	// maxMessageBytes bounds a call and its answer. The largest is a creation of
	// topics with thousands of partitions, and its changes.
	maxMessageBytes = 64 << 20
	// maxCalls bounds the calls of one connection that are under way.
	maxCalls = 256
)

// jsonCodec writes the messages.
type jsonCodec struct{}

func (jsonCodec) Marshal(v any) ([]byte, error)      { return json.Marshal(v) }
func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }
func (jsonCodec) Name() string                       { return "json" }

// unary is one call as gRPC wants it. What goes wrong in it is said in the answer:
// an error of gRPC means that the other node was not reached.
func unary[In, Out any](name string, fn func(*Controller, context.Context, *In) *Out) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new(In)
		if err := decode(in); err != nil {
			return nil, err
		}
		return fn(srv.(*Controller), ctx, in), nil
	}}
}

// service is what a node answers to others.
var service = grpc.ServiceDesc{
	ServiceName: serviceName, HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		unary("Submit", (*Controller).answerSubmit),
		unary("Identify", (*Controller).answerIdentify),
		unary("Join", (*Controller).answerJoin),
		unary("Members", (*Controller).answerMembers),
		unary("Remove", (*Controller).answerRemove),
		unary("Quorum", (*Controller).answerQuorum),
	},
	Streams: []grpc.StreamDesc{{StreamName: "Stay", ServerStreams: true, Handler: func(srv any, stream grpc.ServerStream) error {
		in := new(stayCall)
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
		return srv.(*Controller).answerStay(in, stream)
	}}},
}

func (c *Controller) startCalls(l net.Listener) {
	c.calls = grpc.NewServer(
		grpc.ForceServerCodec(jsonCodec{}), grpc.MaxRecvMsgSize(maxMessageBytes), grpc.MaxConcurrentStreams(maxCalls),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepAlive / 2, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepAlive, Timeout: keepAlive}),
		grpc.WaitForHandlers(true),
	)
	c.calls.RegisterService(&service, c)
	c.callsWG.Go(func() { _ = c.calls.Serve(l) }) // until stopped
}

// nodes are connections to the controller listeners of other nodes, one each.
type nodes struct {
	id *identity
	mu struct {
		sync.Mutex
		conns  map[string]*grpc.ClientConn // by address
		closed bool
	}
}

// maxNodes bounds the connections that are kept: there are a few controllers, and
// addresses that nobody has any more are of no use.
const maxNodes = 16

func newNodes(id *identity) *nodes {
	n := &nodes{id: id}
	n.mu.conns = make(map[string]*grpc.ClientConn)
	return n
}

func (n *nodes) conn(addr string) (*grpc.ClientConn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.closed {
		return nil, ErrClosed
	}
	if cc := n.mu.conns[addr]; cc != nil {
		return cc, nil
	}
	for other, cc := range n.mu.conns {
		if len(n.mu.conns) < maxNodes {
			break
		}
		cc.Close()
		delete(n.mu.conns, other)
	}
	cc, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dial(ctx, n.id, addr, protocolCalls)
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()), // the dialer's connection is encrypted
		grpc.WithDefaultCallOptions(grpc.ForceCodec(jsonCodec{}), grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 2 * keepAlive, Timeout: keepAlive, PermitWithoutStream: true}),
		grpc.WithDisableServiceConfig(), grpc.WithNoProxy(),
	)
	if err != nil {
		return nil, fmt.Errorf("controller at %s: %w", addr, err)
	}
	n.mu.conns[addr] = cc
	return cc, nil
}

func (n *nodes) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.closed = true
	for _, cc := range n.mu.conns {
		cc.Close()
	}
}

// errNotSent is a call that certainly did not reach the other node.
var errNotSent = errors.New("not reached")

// ready waits until the connection stands.
func ready(ctx context.Context, cc *grpc.ClientConn) error {
	for {
		state := cc.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure:
			return errNotSent
		case connectivity.Shutdown:
			return errNotSent
		case connectivity.Idle:
			cc.Connect()
		}
		if !cc.WaitForStateChange(ctx, state) {
			return fmt.Errorf("%w: %w", errNotSent, ctx.Err())
		}
	}
}

// call asks one node. errNotSent: it was not reached; another error leaves open
// whether it was.
func (n *nodes) call(ctx context.Context, addr, method string, in, out any) error {
	cc, err := n.conn(addr)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	if err := ready(ctx, cc); err != nil {
		return fmt.Errorf("controller at %s: %w", addr, err)
	}
	if err := cc.Invoke(ctx, "/"+serviceName+"/"+method, in, out); err != nil {
		return fmt.Errorf("controller at %s: %w", addr, callError(ctx, err))
	}
	return nil
}

// callError keeps what the caller's context says, which gRPC writes in its own way.
func callError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s := status.Convert(err)
	if s.Code() == codes.ResourceExhausted {
		return fmt.Errorf("%w: %s", ErrInvalidRequest, s.Message()) // too large
	}
	return errors.New(s.Message())
}

type (
	// stayCall opens a stream on which nothing is said: it lasts as long as both
	// nodes live and the network between them does, so that each notices soon that
	// the other is gone.
	stayCall struct {
		Node int32
		Addr string // of the caller's controller listener, empty if it has none
	}
	stayAnswer struct{}
)

// stay keeps such a stream to a node until it breaks, and answers how: nil if ctx
// ended.
func (n *nodes) stay(ctx context.Context, addr string, in *stayCall) error {
	cc, err := n.conn(addr)
	if err != nil {
		return err
	}
	if err := ready(ctx, cc); err != nil {
		return err
	}
	stream, err := cc.NewStream(ctx, &service.Streams[0], "/"+serviceName+"/Stay")
	if err != nil {
		return callError(ctx, err)
	}
	if err := stream.SendMsg(in); err != nil {
		return callError(ctx, err)
	}
	if err := stream.CloseSend(); err != nil {
		return callError(ctx, err)
	}
	err = stream.RecvMsg(new(stayAnswer))
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return callError(ctx, err)
}
