package host

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc/status"

	"github.com/lockstep-kafka/lockstep/plugins/proto"
)

// dial gets one byte stream. The plugin dials first and listens afterwards, so
// that its failure to reach the broker is the answer to Open, with its text.
func (s *supervisor) dial(ctx context.Context, network, address string) (net.Conn, error) {
	r := s.current()
	if r == nil {
		return nil, fmt.Errorf("plugin %s: %w", s.spec.Name, ErrDown)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.DialTimeout, fmt.Errorf("no connection within %v", s.o.DialTimeout))
	defer cancel()
	c, err := s.dialRun(ctx, r, network, address)
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("plugin %s: %w", s.spec.Name, context.Cause(ctx))
	}
	return nil, fmt.Errorf("plugin %s: %w", s.spec.Name, err)
}

func (s *supervisor) dialRun(ctx context.Context, r *run, network, address string) (net.Conn, error) {
	// A directory of its own, mode 0700, that is gone once the connection
	// stands: nobody finds the socket a second time.
	dir, err := os.MkdirTemp(s.dir, "c")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	_, err = proto.NewTransportClient(r.conn).Open(ctx, &proto.OpenRequest{Network: network, Address: address, Socket: socket})
	if err != nil {
		return nil, fmt.Errorf("%s", oneLine(status.Convert(err).Message()))
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	local := c.(*net.UnixConn)
	pid, known, err := proto.PeerPID(local)
	if err == nil && known && pid != r.process.pid() {
		err = fmt.Errorf("process %d listens on the socket, not the plugin's %d", pid, r.process.pid())
	}
	if err != nil {
		local.Close()
		return nil, err
	}
	return &conn{UnixConn: local, remote: brokerAddr{network, address}}, nil
}

// conn is the socket under the name of what it leads to: errors and logs then
// name the broker and not a file that is gone.
type conn struct {
	*net.UnixConn
	remote brokerAddr
}

func (c *conn) RemoteAddr() net.Addr { return c.remote }

type brokerAddr struct{ network, address string }

func (a brokerAddr) Network() string { return a.network }
func (a brokerAddr) String() string  { return a.address }
