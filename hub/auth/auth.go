// Package auth decides who may connect and what they may do: users with hashed passwords, an access list, and bans.
//
// The decisions about topics are a pure engine (ACL, Rights): rules in, answer and deciding line out. Auth puts it
// together with the users, hashes passwords away from the event loops, and swaps both files at once when they are
// read again. It knows no protocol.
package auth

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
	"time"
)

// Options of an Auth.
type Options struct {
	UsersFile string // empty: there are no users
	ACLFile   string // empty: who is in may do everything
	BanAfter  int    // failed logins; 0: never
	BanTime   time.Duration
	Store     Store // nil: bans by hand end with the hub
	Logger    *slog.Logger
	Now       func() time.Time // nil: time.Now
	Workers   int              // hashed at a time; 0: half the cores
}

// Stats count what was decided.
type Stats struct {
	Logins, BadCredentials, Anonymous, Banned, Busy, Hashed, BansMade atomic.Int64
}

// Auth is safe for concurrent use.
type Auth struct {
	Stats Stats

	now        atomic.Pointer[rules]
	bans       *bans
	remembered *remembered
	pool       *pool
	log        *slog.Logger
}

// rules are what is in force. Immutable.
type rules struct {
	usersFile, aclFile string
	users              *Users // nil: there is no users file
	acl                *ACL   // nil: there is no ACL file
}

// New reads the files. The error is Problems when it is about them.
func New(o Options) (*Auth, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Workers == 0 {
		o.Workers = Hashers()
	}
	first, err := load(o.UsersFile, o.ACLFile)
	if err != nil {
		return nil, err
	}
	b, err := newBans(o.Store, o.Now)
	if err != nil {
		return nil, fmt.Errorf("auth: read the bans: %w", err)
	}
	b.limit(o.BanAfter, o.BanTime)
	a := &Auth{bans: b, remembered: newRemembered(o.Now), pool: newPool(o.Workers), log: o.Logger}
	a.now.Store(first)
	return a, nil
}

// Close ends the hashing. Logins that wait are never answered.
func (a *Auth) Close() { a.pool.close() }

// fileBytesMax bounds what is read as a users or ACL file.
const fileBytesMax = 64 << 20

// ReadFile reads a users or ACL file. The error is Problems.
func ReadFile(path string) (string, error) {
	bad := func(what string) error {
		return Problems{{File: path, What: what, Cure: "see the keys users_file and acl_file of [auth]"}}
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", bad("no such file")
	case errors.Is(err, fs.ErrPermission):
		return "", bad("may not be read by this user")
	case err != nil:
		return "", bad(err.Error())
	case !info.Mode().IsRegular():
		return "", bad("is not a regular file")
	case info.Size() > fileBytesMax:
		return "", bad(fmt.Sprintf("has %d bytes, at most %d", info.Size(), fileBytesMax))
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrPermission) {
		return "", bad("may not be read by this user")
	}
	if err != nil {
		return "", bad(err.Error())
	}
	return string(text), nil
}

func load(usersFile, aclFile string) (*rules, error) {
	r := &rules{usersFile: usersFile, aclFile: aclFile}
	var bad Problems
	read := func(path string, parse func(file, text string) error) {
		if path == "" {
			return
		}
		text, err := ReadFile(path)
		if err == nil {
			err = parse(path, text)
		}
		var p Problems
		if errors.As(err, &p) {
			bad = append(bad, p...)
		}
	}
	read(usersFile, func(file, text string) (err error) {
		r.users, err = ParseUsers(file, text)
		return err
	})
	read(aclFile, func(file, text string) (err error) {
		r.acl, err = ParseACL(file, text)
		return err
	})
	if len(bad) > 0 {
		return nil, bad
	}
	return r, nil
}

// Loaded says what is in force.
type Loaded struct {
	UsersFile, ACLFile string
	Users, Rules       int
	// Gone are users that were there before and are no longer, or have another password now: who is connected as one
	// of them has to log in again.
	Gone []string
}

// Reload reads the files again, whichever they are now. Both are checked before either takes effect; on an error
// nothing has changed. The caller then has the rights of connected clients made out anew.
func (a *Auth) Reload(usersFile, aclFile string, banAfter int, banTime time.Duration) (Loaded, error) {
	next, err := load(usersFile, aclFile)
	if err != nil {
		return Loaded{}, err
	}
	old := a.now.Swap(next)
	a.bans.limit(banAfter, banTime)
	l := a.Loaded()
	if old.users != nil {
		for _, u := range old.users.All() {
			if now := next.users.Get(u.Name); now == nil || now.Hash != u.Hash {
				l.Gone = append(l.Gone, u.Name)
			}
		}
	}
	return l, nil
}

// Loaded says what is in force now.
func (a *Auth) Loaded() Loaded {
	r := a.now.Load()
	l := Loaded{UsersFile: r.usersFile, ACLFile: r.aclFile, Users: r.users.Len()}
	if r.acl != nil {
		l.Rules = r.acl.Rules()
	}
	return l
}

// Rights makes out what a client may do now; nil: everything.
func (a *Auth) Rights(user, client string) *Rights {
	r := a.now.Load()
	if r.acl == nil {
		return nil
	}
	return r.acl.Rights(user, r.groups(user), client)
}

func (r *rules) groups(user string) []string {
	if u := r.users.Get(user); u != nil {
		return u.Groups
	}
	return nil
}

// Ban keeps somebody out, until the hub is told otherwise or the time is over. The value is returned as it is kept.
func (a *Auth) Ban(b Ban) (Ban, error) { return a.bans.add(b) }

// Unban takes back a ban. False: there is none.
func (a *Auth) Unban(kind, value string) (bool, error) { return a.bans.remove(kind, value) }

// Bans are the bans in force.
func (a *Auth) Bans() []Ban { return a.bans.all() }

// Concerns reports whether a ban is about a client: one that is connected has to go.
func (b *Ban) Concerns(client, user string, address netip.Addr) bool {
	switch b.Kind {
	case BanUser:
		return user == b.Value
	case BanClient:
		return client == b.Value
	case BanAddress:
		return address.IsValid() && addressKey(address) == b.Value
	}
	return false
}

// Explanation is what the rules in force say about one client and topic, and why.
type Explanation struct {
	Known              bool // the user is in the users file, or there is none to be
	Groups             []string
	ACLFile            string // empty: there is no ACL
	Publish, Subscribe Decision
}

// Explain judges a topic, or a filter to subscribe to, for a client that need not be there.
func (a *Auth) Explain(user, client, name string) Explanation {
	r := a.now.Load()
	e := Explanation{Known: user == "" || r.users.Get(user) != nil, Groups: r.groups(user), ACLFile: r.aclFile}
	var rights *Rights
	if r.acl != nil {
		rights = r.acl.Rights(user, e.Groups, client)
	}
	e.Publish, e.Subscribe = rights.Decide(Publish, name), rights.DecideFilter(name)
	return e
}
