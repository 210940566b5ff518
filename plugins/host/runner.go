package host

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/hashicorp/go-plugin/runner"
)

// drainTimeout is how long the pipes of an ended process are still read. They
// stay open longer only when the plugin left children behind that hold them.
const drainTimeout = time.Second

// process is one plugin process as go-plugin sees it. It differs from
// go-plugin's own in what is executed (the open, checked file), in standard
// input (none; the broker's is the broker's) and in that the end of the process
// is noticed at once, whoever still holds its pipes.
type process struct {
	name string
	cmd  *exec.Cmd

	stdout, stderr *os.File

	exited chan struct{} // closed when the process has been reaped
	err    error         // of Wait; read after exited
}

var _ runner.Runner = (*process)(nil)

// newProcess takes the environment that go-plugin put into template.
func newProcess(spec *Plugin, bin *os.File, template *exec.Cmd) *process {
	cmd := &exec.Cmd{Args: append([]string{spec.Path}, spec.Args...), Dir: "/"}
	cmd.Env = append(append(cmd.Env, spec.Env...), template.Env...)
	prepare(cmd, bin)
	return &process{name: spec.Name, cmd: cmd, exited: make(chan struct{})}
}

// Start must run on a thread that outlives the process (prepare).
func (p *process) Start(context.Context) error {
	outR, outW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer outW.Close()
	errR, errW, err := os.Pipe()
	if err != nil {
		outR.Close()
		return err
	}
	defer errW.Close()
	p.cmd.Stdout, p.cmd.Stderr = outW, errW
	if err := p.cmd.Start(); err != nil {
		outR.Close()
		errR.Close()
		return err
	}
	p.stdout, p.stderr = outR, errR
	go func() {
		p.err = p.cmd.Wait()
		deadline := time.Now().Add(drainTimeout)
		outR.SetReadDeadline(deadline)
		errR.SetReadDeadline(deadline)
		close(p.exited)
	}()
	return nil
}

func (p *process) Wait(context.Context) error {
	<-p.exited
	p.stdout.Close()
	p.stderr.Close()
	return p.err
}

func (p *process) Kill(context.Context) error {
	if p.cmd.Process == nil {
		return nil
	}
	p.cmd.Process.Kill() // the one error is that it ended by itself
	return nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// exit says how the process ended, once it has.
func (p *process) exit() string { return p.cmd.ProcessState.String() }

// Name, through which go-plugin marks the lines that the plugin wrote.
func (p *process) Name() string { return p.name }

// ID is empty before the start: there is nothing to kill.
func (p *process) ID() string {
	if p.cmd.Process == nil {
		return ""
	}
	return strconv.Itoa(p.pid())
}

func (p *process) Stdout() io.ReadCloser { return p.stdout }

func (p *process) Stderr() io.ReadCloser { return p.stderr }

func (p *process) Diagnose(context.Context) string {
	return "the first line on standard output must be the handshake: nothing may be printed there before Serve, " +
		"and the file must be a plugin for this system"
}

func (p *process) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

func (p *process) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}
