package admin

import (
	"context"
	"encoding/json"
	"io"
	"net/http"

	"edgehub/hub/admin/api"
	"edgehub/hub/topic"
)

// Sessions are the clients and what is kept for them. Unknown names are api.NotFound.
type Sessions interface {
	Kick(client string) error
	Sessions() []api.Session
	Session(client string) (api.SessionDetail, error)
	DeleteSession(client string) error
	Groups() []api.Group
}

// Retained are the retained messages.
type Retained interface {
	// Retained lists at most limit retained messages, by topic; the filter has been validated.
	Retained(filter string, limit int) []api.Retained
	RetainedMessage(topic string) (api.Record, error)
	DeleteRetained(ctx context.Context, topic string) error
}

// Guard is who may do what.
type Guard interface {
	Access() api.Access
	CheckACL(q api.ACLQuery) api.ACLAnswer
	Bans() []api.Ban
	Ban(b api.Ban) (api.Ban, error)
	Unban(kind, value string) error
	// Reload reads the configuration again, and the files that it names. On an error nothing has changed.
	Reload() (api.Reloaded, error)
}

const (
	manageBytesMax = 64 << 10
	retainedMax    = 10_000
)

func (s *Server) manageRoutes(mux *http.ServeMux) {
	sessions := func(pattern string, do func(Sessions, *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			answer(w, s.backend.Sessions != nil, func() (any, error) { return do(s.backend.Sessions, r) })
		})
	}
	retained := func(pattern string, do func(Retained, *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			answer(w, s.backend.Retained != nil, func() (any, error) { return do(s.backend.Retained, r) })
		})
	}
	guard := func(pattern string, do func(Guard, *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			answer(w, s.backend.Guard != nil, func() (any, error) { return do(s.backend.Guard, r) })
		})
	}
	// Client ids and topics may have slashes and be empty: they come as a query.
	sessions("POST /v1/client/kick", func(x Sessions, r *http.Request) (any, error) {
		return api.Done{Done: true}, x.Kick(r.FormValue("client"))
	})
	sessions("GET /v1/sessions", func(x Sessions, _ *http.Request) (any, error) { return x.Sessions(), nil })
	sessions("GET /v1/session", func(x Sessions, r *http.Request) (any, error) { return x.Session(r.FormValue("client")) })
	sessions("DELETE /v1/session", func(x Sessions, r *http.Request) (any, error) {
		return api.Done{Done: true}, x.DeleteSession(r.FormValue("client"))
	})
	sessions("GET /v1/groups", func(x Sessions, _ *http.Request) (any, error) { return x.Groups(), nil })
	retained("GET /v1/retained", func(x Retained, r *http.Request) (any, error) {
		filter := r.FormValue("filter")
		if err := topic.ValidateFilter(filter); err != nil {
			return nil, api.Invalid("filter %.100q: %v", filter, err)
		}
		return x.Retained(filter, retainedMax), nil
	})
	retained("GET /v1/retained/message", func(x Retained, r *http.Request) (any, error) {
		return x.RetainedMessage(r.FormValue("topic"))
	})
	retained("DELETE /v1/retained", func(x Retained, r *http.Request) (any, error) {
		ctx, cancel := context.WithTimeout(r.Context(), s.publishTimeout)
		defer cancel()
		return api.Done{Done: true}, x.DeleteRetained(ctx, r.FormValue("topic"))
	})
	guard("GET /v1/access", func(x Guard, _ *http.Request) (any, error) { return x.Access(), nil })
	guard("POST /v1/acl/check", func(x Guard, r *http.Request) (any, error) {
		var q api.ACLQuery
		if err := readJSON(r, &q); err != nil {
			return nil, err
		}
		if err := topic.ValidateFilter(q.Topic); err != nil {
			return nil, api.Invalid("%.100q is neither a topic nor a filter: %v", q.Topic, err)
		}
		return x.CheckACL(q), nil
	})
	guard("GET /v1/bans", func(x Guard, _ *http.Request) (any, error) { return x.Bans(), nil })
	guard("POST /v1/bans", func(x Guard, r *http.Request) (any, error) {
		var b api.Ban
		if err := readJSON(r, &b); err != nil {
			return nil, err
		}
		return x.Ban(b)
	})
	guard("DELETE /v1/bans", func(x Guard, r *http.Request) (any, error) {
		return api.Done{Done: true}, x.Unban(r.FormValue("kind"), r.FormValue("value"))
	})
	guard("POST /v1/reload", func(x Guard, _ *http.Request) (any, error) { return x.Reload() })
}

// answer writes what do returns, once the hub is there.
func answer(w http.ResponseWriter, there bool, do func() (any, error)) {
	if !there {
		writeError(w, api.Unavailable("the hub is not ready for this yet; try again in a moment"))
		return
	}
	v, err := do()
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, v)
}

func readJSON(r *http.Request, into any) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, manageBytesMax))
	if err != nil {
		return api.Invalid("the request ended early: %v", err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return api.Invalid("the request is not the JSON it should be: %v", err)
	}
	return nil
}
