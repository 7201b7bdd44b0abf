package server

import (
	"fmt"
	"time"

	"edgehub/adapters/eventloop"
	"edgehub/adapters/mqtt"
	"edgehub/adapters/tlsconn"
	"edgehub/adapters/websocket"
	"edgehub/hub/config"
	"edgehub/internal/certs"
)

// listener is one address with its layers.
type listener struct {
	cfg   *config.Listener
	el    *eventloop.Listener
	certs *certs.Source       // nil without TLS
	tls   *tlsconn.Listener   // nil without TLS
	ws    *websocket.Listener // nil without WebSocket
}

// frameBytesMax is the least that a WebSocket frame may have: clients may put many packets into one.
const frameBytesMax = 16 << 20

// openListeners reads the certificates and puts the layers of each listener together.
func (s *Server) openListeners() error {
	s.handshakes = tlsconn.NewPool(0)
	for i := range s.cfg.Listeners {
		l := listener{cfg: &s.cfg.Listeners[i]}
		l.el = &eventloop.Listener{Address: l.cfg.Address, MaxConnections: l.cfg.MaxConnections}
		if l.cfg.TLS.CertFile != "" {
			src, err := certs.Open(l.cfg.Certs())
			if err != nil {
				return usage{fmt.Errorf("listener %s: %w", l.cfg.Address, err)}
			}
			l.certs = src
			l.tls = tlsconn.New(tlsconn.Options{Config: src.Config, Pool: s.handshakes, Logger: s.log})
			l.el.Layers = append(l.el.Layers, l.tls.Wrap)
		}
		if l.cfg.Protocol == config.ProtocolWebSocket {
			w := &l.cfg.WebSocket
			origins := w.Origins
			if len(origins) == 0 && !l.cfg.LocalOrigins() {
				origins = []string{"*"}
			}
			l.ws = websocket.New(websocket.Options{Protocols: []string{"mqtt", "mqttv3.1"}, Paths: w.Paths, Origins: origins,
				LocalOrigins: l.cfg.LocalOrigins(), FrameBytesMax: max(frameBytesMax, int64(s.cfg.Limits.MaxPacketBytes)), Logger: s.log})
			l.el.Layers = append(l.el.Layers, l.ws.Wrap)
		}
		s.listeners = append(s.listeners, l)
	}
	s.warnCertificates()
	return nil
}

// mqttListeners and engineListeners are the same list for those who serve it.
func (s *Server) mqttListeners() []mqtt.Listener {
	var list []mqtt.Listener
	for _, l := range s.listeners {
		list = append(list, mqtt.Listener{AllowAnonymous: l.cfg.AllowAnonymous})
	}
	return list
}

func (s *Server) engineListeners() []*eventloop.Listener {
	var list []*eventloop.Listener
	for _, l := range s.listeners {
		list = append(list, l.el)
	}
	return list
}

// ReloadCertificates reads every listener's certificates again, for new connections; those that are open stay. What
// cannot be read is logged, and what was read before stays in use.
func (s *Server) ReloadCertificates() {
	for _, l := range s.listeners {
		if l.certs != nil {
			s.sayReload(l, l.certs.Reload())
		}
	}
	s.warnCertificates()
}

func (s *Server) sayReload(l listener, err error) {
	if err != nil {
		s.log.Error("certificates were not read again, the old ones stay in use", "listener", l.cfg.Address, "err", err)
		return
	}
	s.log.Info("certificates were read again", "listener", l.cfg.Address)
}

// warnCertificates says which certificates clients will refuse.
func (s *Server) warnCertificates() {
	for _, l := range s.listeners {
		if l.certs == nil {
			continue
		}
		for _, w := range l.certs.Warnings(time.Now()) {
			s.log.Warn("certificate", "says", w, "listener", l.cfg.Address)
		}
	}
}

const (
	// certificatesEvery is how often the files are looked at. A file that is replaced together with another may be
	// seen half done: that fails, and is tried again once the second has changed.
	certificatesEvery = 5 * time.Second
	// warnEvery is how often certificates that expire are named.
	warnEvery = 24 * time.Hour
)

// watchCertificates reads changed certificates again until stop is closed.
func (s *Server) watchCertificates(stop <-chan struct{}) {
	tick := time.NewTicker(certificatesEvery)
	defer tick.Stop()
	warned := time.Now()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for _, l := range s.listeners {
			if l.certs == nil {
				continue
			}
			if changed, err := l.certs.Refresh(); changed {
				s.sayReload(l, err)
			}
		}
		if time.Since(warned) >= warnEvery {
			warned = time.Now()
			s.warnCertificates()
		}
	}
}
