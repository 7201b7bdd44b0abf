package admin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"

	"edgehub/hub/admin/api"
	"edgehub/hub/topic"
)

// socketRoutes are everything; who may open the socket may do everything.
func (s *Server) socketRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", s.getStatus)
	mux.HandleFunc("GET /v1/streams/{name}", s.getStream)
	mux.HandleFunc("GET /v1/streams/{name}/records", s.getRecords)
	mux.HandleFunc("POST /v1/publish", s.postPublish)
	mux.HandleFunc("GET /v1/clients", s.getClients)
	mux.HandleFunc("GET /v1/uplinks/{name}", s.getUplink)
	mux.HandleFunc("POST /v1/uplinks/{name}/pause", s.postUplink(Uplinks.Pause))
	mux.HandleFunc("POST /v1/uplinks/{name}/resume", s.postUplink(Uplinks.Resume))
	mux.HandleFunc("POST /v1/uplinks/{name}/acknowledge", s.postUplink(Uplinks.Acknowledge))
	for _, action := range []string{api.MoveSkip, api.MoveRewind} {
		mux.HandleFunc("POST /v1/uplinks/{name}/"+action, s.postMove(action))
	}
	mux.HandleFunc("GET /v1/config", s.getConfig)
	s.storeRoutes(mux)
	s.manageRoutes(mux)
	s.addPublic(mux)
	return mux
}

func (s *Server) status() api.Status {
	st := s.backend.Hub.Status()
	st.Normalize()
	return st
}

func (s *Server) getStatus(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, s.status())
}

func (s *Server) getStream(w http.ResponseWriter, r *http.Request) {
	detail, err := s.backend.Hub.Stream(r.PathValue("name"))
	if err != nil {
		writeError(w, err)
		return
	}
	detail.Normalize()
	writeJSON(w, http.StatusOK, detail)
}

func (s *Server) getClients(w http.ResponseWriter, _ *http.Request) {
	clients := s.backend.Hub.Clients()
	if clients == nil {
		clients = []api.Client{}
	}
	writeJSON(w, http.StatusOK, clients)
}

func (s *Server) getConfig(w http.ResponseWriter, _ *http.Request) {
	settings := s.backend.Hub.Config()
	if settings == nil {
		settings = []api.Setting{}
	}
	writeJSON(w, http.StatusOK, settings)
}

func (s *Server) uplink(name string) (api.UplinkStatus, error) {
	uplinks := s.status().Uplinks
	if i := slices.IndexFunc(uplinks, func(u api.UplinkStatus) bool { return u.Name == name }); i >= 0 {
		return uplinks[i], nil
	}
	names := make([]string, len(uplinks))
	for i, u := range uplinks {
		names[i] = u.Name
	}
	return api.UplinkStatus{}, api.NotFound("uplink", name, names)
}

func (s *Server) getUplink(w http.ResponseWriter, r *http.Request) {
	u, err := s.uplink(r.PathValue("name"))
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, u)
}

// postUplink applies do to the uplink and answers its status afterwards.
func (s *Server) postUplink(do func(Uplinks, string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		u, err := s.uplink(name)
		if err == nil && s.backend.Uplinks == nil {
			err = api.Unavailable("the uplinks are not started yet; try again in a moment")
		}
		if err == nil {
			err = do(s.backend.Uplinks, name)
		}
		if err == nil {
			u, err = s.uplink(name)
		}
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, u)
	}
}

// postMove orders a move and answers the uplink's status afterwards.
func (s *Server) postMove(action string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var m api.UplinkMove
		if err := readJSON(r, &m); err != nil {
			writeError(w, err)
			return
		}
		m.Action = action
		s.postUplink(func(u Uplinks, name string) error { return u.Move(name, m) })(w, r)
	}
}

func (s *Server) postPublish(w http.ResponseWriter, r *http.Request) {
	req, err := s.readPublish(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.publishTimeout)
	defer cancel()
	result, err := s.backend.Hub.Publish(ctx, req)
	if errors.Is(err, context.DeadlineExceeded) {
		err = api.Unavailable("not committed within %s, and may still be; see `hubctl status`", s.publishTimeout)
	}
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, result)
}

// readPublish decodes and judges the body of a publish request.
func (s *Server) readPublish(w http.ResponseWriter, r *http.Request) (api.PubRequest, error) {
	limit := s.opts.PayloadBytesMax
	// Base64 takes 4/3; the rest is for the topic and for text that needs escapes.
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 2*limit+256<<10))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		return api.PubRequest{}, api.TooLarge("the message is larger than limits.max_packet_bytes allows (%d bytes)", limit)
	case err != nil:
		return api.PubRequest{}, api.Invalid("the request ended early: %v", err)
	}
	var req api.PubRequest
	if err := json.Unmarshal(body, &req); err != nil {
		var e *api.Error
		if errors.As(err, &e) {
			return req, e
		}
		return req, api.Invalid("the request is not the JSON it should be: %v", err)
	}
	if err := topic.ValidateName([]byte(req.Topic)); err != nil {
		return req, api.Invalid("topic %.100q: %v", req.Topic, err)
	}
	if req.QoS > 2 {
		return req, api.Invalid("qos %d: it is 0, 1 or 2", req.QoS)
	}
	if n := int64(len(req.Payload)); n > limit {
		return req, api.TooLarge("the payload has %d bytes, limits.max_packet_bytes allows %d", n, limit)
	}
	return req, nil
}
