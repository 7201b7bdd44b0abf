package admin

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"edgehub/hub/admin/api"
)

// Limits of the admin interface. They bound what a broken or hostile client can
// hold; none is reached in ordinary use.
const (
	socketConnsMax     = 128
	addressConnsMax    = 64
	tailsMax           = 64
	headerBytesMax     = 16 << 10
	payloadBytesMax    = 1 << 20
	publishTimeout     = 30 * time.Second
	tailStallMax       = 10 * time.Minute
	headerTimeout      = 5 * time.Second
	requestTimeout     = 45 * time.Second // reading a request, and writing an answer; longer than publishTimeout
	idleTimeout        = time.Minute
	metricsTimeout     = 10 * time.Second
	metricsInFlightMax = 4
)

// Options are the settings of a Server. Zero values mean the defaults.
type Options struct {
	Socket          string        // path of the Unix socket; required
	Address         string        // TCP HOST:PORT of the public pages; empty: off
	PayloadBytesMax int64         // the largest payload that may be published; default 1 MiB
	TailStallMax    time.Duration // a tail whose reader takes nothing for so long is ended; default 10 minutes
	Logger          *slog.Logger  // default: slog.Default()
}

// Backend is what a Server serves. Uplinks may be nil when the hub has none, and
// Metrics when there are none.
type Backend struct {
	Hub     Hub
	Uplinks Uplinks
	Health  Health
	Metrics prometheus.Gatherer
	Store   Store // may be nil
	// Sessions, Retained and Guard may be nil.
	Sessions Sessions
	Retained Retained
	Guard    Guard
}

// Server is the admin interface. Its methods may be called from any goroutine.
type Server struct {
	opts    Options
	socket  *limitListener
	address *limitListener // nil: off
	backend Backend        // set by Serve before the first request
	tails   chan struct{}

	requestTimeout time.Duration // constant but in tests
	publishTimeout time.Duration

	mu       sync.Mutex // guards what follows
	servers  []*http.Server
	stopping chan struct{} // closed by Shutdown
	stopped  bool
}

// Listen binds the socket and the address and answers nothing yet. The caller can
// so find out that an address is taken before it touches the data. An error is one
// line that names the cure; errors.Is(err, ErrInUse) tells a second hub.
func Listen(o Options) (*Server, error) {
	if o.PayloadBytesMax == 0 {
		o.PayloadBytesMax = payloadBytesMax
	}
	if o.TailStallMax == 0 {
		o.TailStallMax = tailStallMax
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Server{
		opts: o, tails: make(chan struct{}, tailsMax), stopping: make(chan struct{}),
		requestTimeout: requestTimeout, publishTimeout: publishTimeout,
	}
	if o.Address != "" {
		l, err := listenTCP(o.Address)
		if err != nil {
			return nil, err
		}
		s.address = limit(l, addressConnsMax)
	}
	l, err := listenSocket(o.Socket)
	if err != nil {
		if s.address != nil {
			_ = s.address.Close()
		}
		return nil, err
	}
	s.socket = limit(l, socketConnsMax)
	return s, nil
}

// Addr returns the TCP address in use, empty when it is off.
func (s *Server) Addr() string {
	if s.address == nil {
		return ""
	}
	return s.address.Addr().String()
}

// Serve answers requests until Shutdown, then returns nil. It is called once.
func (s *Server) Serve(b Backend) error {
	s.backend = b
	type pair struct {
		server   *http.Server
		listener net.Listener
	}
	pairs := []pair{{s.httpServer(s.socketRoutes(), s.socket), s.socket}}
	if s.address != nil {
		pairs = append(pairs, pair{s.httpServer(s.publicRoutes(), s.address), s.address})
	}
	s.mu.Lock()
	if s.stopped {
		s.mu.Unlock()
		return nil
	}
	for _, p := range pairs {
		s.servers = append(s.servers, p.server)
	}
	s.mu.Unlock()

	errs := make(chan error, len(pairs))
	for _, p := range pairs {
		go func() { errs <- p.server.Serve(p.listener) }()
	}
	var first error
	for range pairs {
		if err := <-errs; err != nil && !errors.Is(err, http.ErrServerClosed) && first == nil {
			first = err
			go func() { _ = s.Close() }()
		}
	}
	return first
}

// Shutdown stops accepting, ends the tails, lets other requests finish until ctx
// ends, and removes the socket file.
func (s *Server) Shutdown(ctx context.Context) error {
	var errs []error
	for _, h := range s.stop() {
		errs = append(errs, h.Shutdown(ctx))
	}
	return errors.Join(append(errs, s.Close())...)
}

// Close stops at once.
func (s *Server) Close() error {
	var errs []error
	for _, h := range s.stop() {
		errs = append(errs, h.Close())
	}
	// Closing twice is harmless; it matters when Serve was never called.
	_ = s.socket.Close()
	if s.address != nil {
		_ = s.address.Close()
	}
	return errors.Join(errs...)
}

// stop ends the tails and returns the servers to be shut down.
func (s *Server) stop() []*http.Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stopped {
		s.stopped = true
		close(s.stopping)
	}
	return s.servers
}

func (s *Server) httpServer(h http.Handler, l *limitListener) *http.Server {
	return &http.Server{
		Handler:           l.serving(h),
		ConnContext:       l.context,
		ConnState:         l.state,
		ReadHeaderTimeout: min(headerTimeout, s.requestTimeout),
		ReadTimeout:       s.requestTimeout,
		WriteTimeout:      s.requestTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytesMax,
		ErrorLog:          slog.NewLogLogger(s.opts.Logger.Handler(), slog.LevelWarn),
	}
}

// writeJSON sends v as the whole answer.
func writeJSON(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		code, body = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","message":"the answer cannot be encoded"}}`)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(body, '\n')) // a reader that has gone needs no answer
}

// writeError sends err under the status code that belongs to it.
func writeError(w http.ResponseWriter, err error) {
	e := api.AsError(err)
	writeJSON(w, httpStatus(e.Code), api.ErrorBody{Error: e})
}

func httpStatus(code string) int {
	switch code {
	case api.CodeInvalid:
		return http.StatusBadRequest
	case api.CodeNotFound:
		return http.StatusNotFound
	case api.CodeConflict:
		return http.StatusConflict
	case api.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case api.CodeUnavailable:
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}
