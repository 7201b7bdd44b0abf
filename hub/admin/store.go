package admin

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"edgehub/hub/admin/api"
	"edgehub/storage/inspect"
)

// Store is the hub's data as operators work on it. Its methods may run for long and take no lock that others wait for;
// they end soon after ctx does.
type Store interface {
	// Verify proves every batch of a stream and calls fn for each damaged range, from one goroutine.
	Verify(ctx context.Context, stream string, fn func(inspect.Finding)) (inspect.Summary, error)
	// DeleteStream removes the records of a stream that the configuration no longer has.
	DeleteStream(stream string) (inspect.Deleted, error)
	// Backup writes a consistent backup, a tar.
	Backup(ctx context.Context, w io.Writer) error
}

// longTimeout is how long the reader of a long answer may take nothing.
const longTimeout = 10 * time.Minute

func (s *Server) storeRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/streams/{name}/verify", s.getVerify)
	mux.HandleFunc("DELETE /v1/streams/{name}", s.deleteStream)
	mux.HandleFunc("GET /v1/backup", s.getBackup)
}

// store returns the store, or answers that there is none yet.
func (s *Server) store(w http.ResponseWriter) (Store, bool) {
	if s.backend.Store == nil {
		writeError(w, api.Unavailable("the hub is not ready for this yet; try again in a moment"))
		return nil, false
	}
	return s.backend.Store, true
}

// until returns a context that ends with the request or the hub.
func (s *Server) until(r *http.Request) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	go func() {
		select {
		case <-s.stopping:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// getVerify answers with a line for each finding as it is met, and the summary or the error as the last line.
func (s *Server) getVerify(w http.ResponseWriter, r *http.Request) {
	store, ok := s.store(w)
	if !ok {
		return
	}
	ctx, cancel := s.until(r)
	defer cancel()
	lines := newLineWriter(w)
	sum, err := store.Verify(ctx, r.PathValue("name"), func(f inspect.Finding) { lines.write(f) })
	if err != nil && !lines.begun {
		writeError(w, err)
		return
	}
	if err != nil {
		lines.write(api.ErrorBody{Error: api.AsError(err)})
		return
	}
	lines.write(struct {
		Summary inspect.Summary `json:"summary"`
	}{sum})
}

// lineWriter writes JSON lines, each at once.
type lineWriter struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
}

func newLineWriter(w http.ResponseWriter) *lineWriter {
	l := &lineWriter{w: w, rc: http.NewResponseController(w)}
	_ = l.rc.SetReadDeadline(time.Time{}) // the request has been read
	_ = l.rc.SetWriteDeadline(time.Time{})
	return l
}

func (l *lineWriter) write(v any) {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "application/x-ndjson")
	}
	_ = l.rc.SetWriteDeadline(time.Now().Add(longTimeout))
	line, err := json.Marshal(v)
	if err != nil {
		return // plain numbers and strings: cannot fail
	}
	_, _ = l.w.Write(append(line, '\n')) // a reader that has gone ends the request's context
	_ = l.rc.Flush()
}

func (s *Server) deleteStream(w http.ResponseWriter, r *http.Request) {
	store, ok := s.store(w)
	if !ok {
		return
	}
	got, err := store.DeleteStream(r.PathValue("name"))
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, got)
}

// getBackup streams the tar. What fails on the way cuts the answer off: the reader sees that it did not end, and a
// backup names its files at its end besides.
func (s *Server) getBackup(w http.ResponseWriter, r *http.Request) {
	store, ok := s.store(w)
	if !ok {
		return
	}
	ctx, cancel := s.until(r)
	defer cancel()
	out := &slowWriter{w: w, rc: http.NewResponseController(w)}
	_ = out.rc.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "application/x-tar")
	buf := bufio.NewWriterSize(out, 64<<10)
	err := store.Backup(ctx, buf)
	if err == nil {
		err = buf.Flush()
	}
	switch {
	case err == nil:
	case !out.begun:
		w.Header().Del("Content-Type")
		writeError(w, err)
	default:
		s.opts.Logger.Error("a backup was not finished", "err", err)
		panic(http.ErrAbortHandler)
	}
}

// slowWriter gives its reader time anew with every write.
type slowWriter struct {
	w     io.Writer
	rc    *http.ResponseController
	begun bool
}

// Write implements io.Writer.
func (s *slowWriter) Write(p []byte) (int, error) {
	s.begun = true
	_ = s.rc.SetWriteDeadline(time.Now().Add(longTimeout))
	return s.w.Write(p)
}
