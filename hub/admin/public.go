package admin

import (
	"embed"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"edgehub/hub/admin/api"
)

// pages are the status page and what it needs; it loads nothing from elsewhere.
//
//go:embed web/index.html web/status.js web/status.css
var pages embed.FS

// publicRoutes are the pages that need no rights: they read, and say nothing of
// clients or messages.
func (s *Server) publicRoutes() http.Handler {
	mux := http.NewServeMux()
	s.addPublic(mux)
	return mux
}

func (s *Server) addPublic(mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", s.getHealth)
	mux.HandleFunc("GET /readyz", s.getReady)
	metrics := s.backend.Metrics
	if metrics == nil {
		metrics = prometheus.NewRegistry()
	}
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		MaxRequestsInFlight: metricsInFlightMax, Timeout: metricsTimeout, EnableOpenMetrics: true,
	}))
	mux.HandleFunc("GET /{$}", page("web/index.html", "text/html; charset=utf-8"))
	mux.HandleFunc("GET /status.js", page("web/status.js", "text/javascript; charset=utf-8"))
	mux.HandleFunc("GET /status.css", page("web/status.css", "text/css; charset=utf-8"))
}

// getHealth answers 200 while the hub serves, also when degraded: a supervisor
// that restarts on 503 must not kill a hub that only waits for its uplink.
func (s *Server) getHealth(w http.ResponseWriter, _ *http.Request) {
	h := s.backend.Health.Health()
	h.Normalize()
	code := http.StatusOK
	if h.State == api.HealthFailed {
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, h)
}

func (s *Server) getReady(w http.ResponseWriter, _ *http.Request) {
	ok, reasons := s.backend.Health.Ready()
	if reasons == nil {
		reasons = []api.Reason{}
	}
	code := http.StatusOK
	if !ok {
		code = http.StatusServiceUnavailable
	}
	writeJSON(w, code, api.Readiness{Ready: ok, Reasons: reasons})
}

func page(name, contentType string) http.HandlerFunc {
	body, err := pages.ReadFile(name)
	if err != nil {
		panic("BUG: page not embedded: " + name)
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", contentType)
		h.Set("Cache-Control", "no-cache")
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		_, _ = w.Write(body)
	}
}
