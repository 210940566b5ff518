package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sort"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/obs"
)

// admin is the HTTP listener for people and monitors: metrics, health, and
// profiles where they are switched on. It never carries records.
type admin struct {
	server *http.Server
	addr   string
	done   chan struct{}
}

// healthCheck answers nil when its subject is well.
type healthCheck func() error

// notice is what a check has to say of a server that is ready all the same.
type notice struct{ error }

// startAdmin listens on addr. checks decide /readyz; /livez answers as long as
// the process runs at all.
func startAdmin(addr string, withPprof bool, checks map[string]healthCheck, logger *slog.Logger) (*admin, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("admin.listener: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		obs.Write(w)
	})
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { readyz(w, r, checks) })
	if withPprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	a := &admin{
		server: &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10},
		addr:   l.Addr().String(),
		done:   make(chan struct{}),
	}
	go func() {
		defer close(a.done)
		if err := a.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			logger.Error("admin listener ended", "err", err)
		}
	}()
	return a, nil
}

// readyz lists every check when asked with ?verbose, and always those that
// fail or have something to say, so that a probe's log says what is wrong.
func readyz(w http.ResponseWriter, r *http.Request, checks map[string]healthCheck) {
	names := make([]string, 0, len(checks))
	for name := range checks {
		names = append(names, name)
	}
	sort.Strings(names)
	_, verbose := r.URL.Query()["verbose"]
	var lines []string
	ready := true
	for _, name := range names {
		err := checks[name]()
		if n := (notice{}); errors.As(err, &n) {
			lines = append(lines, fmt.Sprintf("[!] %s: %v", name, err))
		} else if err != nil {
			ready = false
			lines = append(lines, fmt.Sprintf("[-] %s: %v", name, err))
		} else if verbose {
			lines = append(lines, "[+] "+name+": ok")
		}
	}
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	for _, line := range lines {
		fmt.Fprintln(w, line)
	}
	if ready {
		fmt.Fprintln(w, "ok")
	} else {
		fmt.Fprintln(w, "not ready")
	}
}

func (a *admin) stop(ctx context.Context) {
	if a.server.Shutdown(ctx) != nil {
		a.server.Close()
	}
	<-a.done
}
