package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// demoNode is one cluster of one server, as a process of its own: only then is
// killing it what the word says.
type demoNode struct {
	name  string
	dir   string
	addr  string
	admin string
	log   string
	cmd   *exec.Cmd // nil while it does not run

	// exited is closed when the process has been waited for; exitErr says how it
	// ended, and may be read from then on.
	exited  chan struct{}
	exitErr error
}

func newDemoNode(dir, name string) (*demoNode, error) {
	n := &demoNode{name: name, dir: filepath.Join(dir, name), log: filepath.Join(dir, name+".log")}
	for _, addr := range []*string{&n.addr, &n.admin} {
		// A restarted node must come back on its port, so it is chosen here.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		*addr = l.Addr().String()
		l.Close()
	}
	return n, nil
}

// start runs the server and waits until it is ready.
func (n *demoNode) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	n.cmd = exec.Command(self, "server",
		"--override", "listeners=PLAINTEXT://"+n.addr,
		"--override", "admin.listener="+n.admin,
		"--override", "log.dirs="+n.dir,
		"--override", "mirror.metadata.refresh.interval.ms=500",
		"--override", "group.initial.rebalance.delay.ms=0",
	)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	if err := n.cmd.Start(); err != nil {
		n.cmd = nil
		return err
	}
	n.exited = make(chan struct{})
	go func(c *exec.Cmd) {
		n.exitErr = c.Wait()
		close(n.exited)
	}(n.cmd)
	deadline := time.Now().Add(demoPatience)
	client := &http.Client{Timeout: time.Second}
	for {
		if resp, err := client.Get("http://" + n.admin + "/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-n.exited:
			tail, _ := os.ReadFile(n.log)
			return fmt.Errorf("cluster %s ended at its start: %w\n%s", n.name, n.exitErr, tail)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cluster %s was not ready after %s", n.name, demoPatience)
		}
	}
}

// kill ends the process and waits for its end: the port and the data directory
// are free afterwards.
func (n *demoNode) kill() {
	if n.cmd == nil {
		return
	}
	n.cmd.Process.Kill() // fails only if it has ended already
	<-n.exited
	n.cmd = nil
}

// pause and resume stop and continue the process: to its peers it looks like a
// line that carries nothing.
func (n *demoNode) pause() error  { return n.cmd.Process.Signal(syscall.SIGSTOP) }
func (n *demoNode) resume() error { return n.cmd.Process.Signal(syscall.SIGCONT) }

// demoCut is one truncation, as the server logged it.
type demoCut struct {
	Msg       string `json:"msg"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Cut       int64  `json:"cut"`
}

// cuts finds the truncations in the server's log.
func (n *demoNode) cuts() ([]demoCut, error) {
	text, err := os.ReadFile(n.log)
	if err != nil {
		return nil, err
	}
	var out []demoCut
	for line := range bytes.Lines(text) {
		var c demoCut
		if json.Unmarshal(line, &c) == nil && c.Cut > 0 {
			out = append(out, c)
		}
	}
	return out, nil
}

// lockstep runs this binary with other arguments and returns what it printed.
func lockstep(ctx context.Context, args ...string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, self, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(errOut.String()); text != "" {
			err = errors.New(text)
		}
		return out.String(), err
	}
	return out.String(), nil
}
