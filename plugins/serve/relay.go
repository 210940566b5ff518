package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-kafka/lockstep/plugins/proto"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// acceptTimeout is how long a dialled stream waits for the broker to fetch it.
// The broker connects at once after the answer; this only cleans up when it
// died or gave up in between.
const acceptTimeout = 10 * time.Second

// relayServer dials for the broker and carries bytes between the stream and a
// unix socket. One goroutine per direction and connection; they end with the
// connection.
type relayServer struct {
	proto.UnimplementedTransportServer
	dial   sdk.DialFunc
	parent int
}

func (s *relayServer) Open(ctx context.Context, r *proto.OpenRequest) (*proto.OpenResponse, error) {
	remote, err := s.dial(ctx, r.Network, r.Address)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if remote == nil {
		return nil, status.Error(codes.Internal, "the plugin's Dial returned neither a connection nor an error")
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.Socket, Net: "unix"})
	if err != nil {
		remote.Close()
		return nil, status.Error(codes.Internal, err.Error())
	}
	// The directory admits the owner alone; the mode matters where the system
	// ignores a socket's directory.
	if err := os.Chmod(r.Socket, 0o600); err != nil {
		l.Close()
		remote.Close()
		return nil, status.Error(codes.Internal, err.Error())
	}
	go func() {
		local, err := s.accept(l)
		if err != nil {
			Logger().Warn("a connection was not fetched", "address", r.Address, "error", err)
			remote.Close()
			return
		}
		relay(local, remote)
	}()
	return &proto.OpenResponse{}, nil
}

// accept takes the one connection that the socket is for, from the process that
// asked, and removes the socket.
func (s *relayServer) accept(l *net.UnixListener) (*net.UnixConn, error) {
	defer l.Close()
	if err := l.SetDeadline(time.Now().Add(acceptTimeout)); err != nil {
		return nil, err
	}
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	pid, known, err := proto.PeerPID(c)
	if err == nil && known && pid != s.parent {
		err = fmt.Errorf("process %d connected, not the host %d", pid, s.parent)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// relay copies both ways until both directions have ended. The end of one
// direction is passed on as such: the other side may still have bytes to send.
func relay(a, b net.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() { copyOne(a, b) })
	wg.Go(func() { copyOne(b, a) })
	wg.Wait()
	a.Close()
	b.Close()
}

func copyOne(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	half, ok := dst.(interface{ CloseWrite() error })
	if err == nil && ok && half.CloseWrite() == nil {
		return
	}
	// Broken, or a stream that ends only as a whole.
	dst.Close()
	src.Close()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		Logger().Debug("a connection broke", "peer", src.RemoteAddr().String(), "error", err)
	}
}
