package api

// Session is one session, connected or not.
type Session struct {
	ClientID      string `json:"client_id"`
	Username      string `json:"username"`
	Connected     bool   `json:"connected"`
	ExpiryS       int64  `json:"expiry_s"`   // after the connection ends; -1: never
	ExpiresAt     Millis `json:"expires_at"` // of an offline session; 0: never, or connected
	Subscriptions int64  `json:"subscriptions"`
	Inflight      int64  `json:"inflight"`
	Inbox         int64  `json:"inbox"` // records that it has still to look at, matching or not
	Will          bool   `json:"will"`
	// Of the messages that wait, those that were copied when their segment went.
	QueuedMessages int64 `json:"queued_messages"`
	QueuedBytes    int64 `json:"queued_bytes"`
	QueueDropped   int64 `json:"queue_dropped"` // lost with their segment since the start of the hub
}

// SessionDetail is one session as `session show` prints it.
type SessionDetail struct {
	Session
	Filters []Subscription `json:"filters"`
}

// Subscription is one filter of a session.
type Subscription struct {
	Filter            string `json:"filter"`
	QoS               byte   `json:"qos"`
	NoLocal           bool   `json:"no_local"`
	RetainAsPublished bool   `json:"retain_as_published"`
	ID                uint32 `json:"id"` // 0: none
}

// Group is one shared subscription.
type Group struct {
	Subscription string        `json:"subscription"` // $share/GROUP/FILTER
	Sessions     int64         `json:"sessions"`     // that have it, connected or not
	Inflight     int64         `json:"inflight"`
	Inbox        int64         `json:"inbox"`   // records that it has still to look at, matching or not
	Members      []GroupMember `json:"members"` // connected ones
}

// GroupMember is a connected member of a shared subscription.
type GroupMember struct {
	ClientID string `json:"client_id"`
	QoS      byte   `json:"qos"`
}

// Retained says where the retained message of a topic is.
type Retained struct {
	Topic     string `json:"topic"`
	Stream    string `json:"stream"`
	Partition int    `json:"partition"`
	Offset    int64  `json:"offset"`
}

// Done is the answer to what needs none.
type Done struct {
	Done bool `json:"done"`
}

// Ban keeps somebody out.
type Ban struct {
	Kind   string `json:"kind"` // address, user, client; login: a user at an address, after failed logins
	Value  string `json:"value"`
	Until  Millis `json:"until"` // 0: until it is taken back
	Why    string `json:"why"`
	ByHand bool   `json:"by_hand"`
}

// Access says which users and rules are in force.
type Access struct {
	ConfigFile string `json:"config_file"` // absolute; empty: the built-in configuration
	UsersFile  string `json:"users_file"`  // absolute; empty: none
	ACLFile    string `json:"acl_file"`
	Users      int    `json:"users"`
	Rules      int    `json:"rules"`
}

// ACLQuery asks what a client may do.
type ACLQuery struct {
	User   string `json:"user"` // empty: anonymous
	Client string `json:"client"`
	Topic  string `json:"topic"` // or a filter
}

// ACLAnswer says what the rules in force decide.
type ACLAnswer struct {
	Topic     string   `json:"topic"`
	Known     bool     `json:"known"` // the user is in the users file, or none was asked for
	Groups    []string `json:"groups"`
	Publish   *Judged  `json:"publish,omitempty"` // absent for a filter
	Subscribe Judged   `json:"subscribe"`
}

// Judged is one decision and the line that made it.
type Judged struct {
	Allowed bool   `json:"allowed"`
	File    string `json:"file"` // empty: there is no ACL
	Line    int    `json:"line"` // 0: no rule fits, which is a no
	Rule    string `json:"rule"`
}

// Reloaded says what a reload of the configuration did.
type Reloaded struct {
	File    string   `json:"file"`
	Applied []Change `json:"applied"`
	Restart []Change `json:"restart"` // take effect at the next start
	Access  Access   `json:"access"`
	Kicked  int      `json:"kicked"` // clients whose user is gone or has another password
	Failed  string   `json:"failed"` // what could not be done although the configuration is good; empty: nothing
}

// Change is one key with another value than before.
type Change struct {
	Key string `json:"key"`
	Old string `json:"old"`
	New string `json:"new"`
}
