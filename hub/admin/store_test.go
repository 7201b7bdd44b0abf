package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"edgehub/hub/admin/admintest"
	"edgehub/hub/admin/api"
	"edgehub/storage/inspect"
)

// fakeStore finds findings, then fails if it is to; a backup is bytes, then the failure.
type fakeStore struct {
	findings, bytes int
	fail            error
	wait            chan struct{} // Verify sends to it and then ends with its context only
}

func (f fakeStore) Verify(ctx context.Context, stream string, fn func(inspect.Finding)) (inspect.Summary, error) {
	for i := range f.findings {
		fn(inspect.Finding{Partition: stream + "/0-0", From: int64(i), To: int64(i + 1), What: "bad"})
	}
	if f.wait != nil {
		close(f.wait)
		<-ctx.Done()
		return inspect.Summary{}, ctx.Err()
	}
	return inspect.Summary{Stream: stream, Findings: f.findings}, f.fail
}

func (f fakeStore) DeleteStream(name string) (inspect.Deleted, error) {
	return inspect.Deleted{Stream: name, Records: 3}, f.fail
}

func (f fakeStore) Backup(_ context.Context, w io.Writer) error {
	_, err := w.Write(bytes.Repeat([]byte{'x'}, f.bytes))
	return errors.Join(err, f.fail)
}

func serveStore(t *testing.T, store Store) (do func(method, path string) (int, string, error), server *Server) {
	t.Helper()
	socket := socketPath(t)
	s, err := Listen(Options{Socket: socket, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	hub := admintest.Sample()
	served := make(chan error, 1)
	go func() { served <- s.Serve(Backend{Hub: hub, Uplinks: hub, Health: hub, Store: store}) }()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}, DisableKeepAlives: true}}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-served); err != nil {
			t.Error(err)
		}
	})
	return func(method, path string) (int, string, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://hub"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}, s
}

func TestStoreRoutes(t *testing.T) {
	gone := api.NotFound("stream", "x", nil)
	for _, c := range []struct {
		method, path string
		store        Store
		code         int
		want         string // in the answer
		lines        int
		cut          bool
	}{
		{"GET", "/v1/streams/x/verify", nil, 503, "not ready", 1, false},
		{"GET", "/v1/streams/x/verify", fakeStore{}, 200, `{"summary":{"stream":"x"`, 1, false},
		{"GET", "/v1/streams/x/verify", fakeStore{findings: 3}, 200, `"findings":3`, 4, false},
		{"GET", "/v1/streams/x/verify", fakeStore{fail: gone}, 404, "no stream", 1, false},
		{"GET", "/v1/streams/x/verify", fakeStore{findings: 2, fail: gone}, 200, `{"error":{"code":"not_found"`, 3, false},
		{"DELETE", "/v1/streams/x", fakeStore{}, 200, `"records":3`, 1, false},
		{"DELETE", "/v1/streams/x", fakeStore{fail: api.Conflict("in use")}, 409, "in use", 1, false},
		{"GET", "/v1/backup", nil, 503, "not ready", 1, false},
		{"GET", "/v1/backup", fakeStore{bytes: 200_000}, 200, "xxxx", 0, false},
		{"GET", "/v1/backup", fakeStore{fail: errors.New("no disk")}, 500, "no disk", 1, false},
		{"GET", "/v1/backup", fakeStore{bytes: 200_000, fail: errors.New("no disk")}, 200, "xxxx", 0, true},
	} {
		t.Run(fmt.Sprint(c.method, c.path, c.store), func(t *testing.T) {
			do, _ := serveStore(t, c.store)
			code, body, err := do(c.method, c.path)
			if (err != nil) != c.cut || code != c.code || !strings.Contains(body, c.want) || strings.Count(body, "\n") != c.lines {
				t.Errorf("%d %.300q %v", code, body, err)
			}
		})
	}
}

// TestVerifyEndsWithTheHub: a stop does not wait for a verification.
func TestVerifyEndsWithTheHub(t *testing.T) {
	begun := make(chan struct{})
	do, s := serveStore(t, fakeStore{findings: 1, wait: begun})
	answered := make(chan string, 1)
	go func() {
		_, body, _ := do("GET", "/v1/streams/x/verify")
		answered <- body
	}()
	<-begun
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if body := <-answered; !strings.Contains(body, "error") {
		t.Errorf("%q", body)
	}
}
