// Package admin serves the hub's own interface: HTTP and JSON on a Unix socket for
// hubctl, and on a TCP address the few pages that need no rights (metrics, health,
// readiness, a small status page). It sees the hub only through the interfaces
// declared here.
package admin

import (
	"context"

	"edgehub/hub/admin/api"
)

// Hub is what the admin interface needs of the hub. Every method may be called
// from any goroutine, as soon as Serve runs; a hub that is still starting answers
// what it knows, and api.Unavailable to the rest. Errors that are *api.Error reach
// the user as they are; others as api.CodeInternal with their text.
type Hub interface {
	// Status returns a snapshot, also when the hub is not ready. The caller may
	// change the lists but not the maps in it.
	Status() api.Status
	// Stream returns one stream; api.NotFound when there is none of that name.
	Stream(name string) (api.StreamDetail, error)
	// Clients returns the connected clients, sorted by client id.
	Clients() []api.Client
	// Config returns every effective value, secrets left out.
	Config() []api.Setting
	// Publish appends one message and returns once the stream's durability is
	// reached. Its topic and QoS have been validated.
	Publish(ctx context.Context, req api.PubRequest) (api.PubResult, error)
	// Tail calls emit for every record that matches, from one goroutine, in offset
	// order per partition. It returns nil when the request is complete, ctx's error
	// soon after ctx ends, and emit's error when emit fails. emit may block for
	// long (the reader is slow), so Tail holds nothing that others wait for; emit
	// keeps nothing of the record after it returns. The filter has been validated.
	Tail(ctx context.Context, req api.TailRequest, emit func(api.Record) error) error
}

// Uplinks steers the uplinks; their state is part of Hub.Status. All methods
// return api.NotFound for an unknown name, and all but Move are idempotent.
type Uplinks interface {
	Pause(name string) error
	Resume(name string) error
	// Acknowledge takes note of records lost to retention: health is silent about them.
	Acknowledge(name string) error
	// Move has a partition go on elsewhere.
	Move(name string, m api.UplinkMove) error
}

// Health is asked by /healthz and /readyz. It answers at once, whatever else is
// going on.
type Health interface {
	// Health is the same as in Hub.Status.
	Health() api.Health
	// Ready reports whether clients can connect and publish; if not, why.
	Ready() (ok bool, reasons []api.Reason)
}
