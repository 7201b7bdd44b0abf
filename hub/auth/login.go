package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"net/netip"
	"runtime"
	"sync"
	"time"
)

// What a login ends with, as reason codes of MQTT 5.
const (
	CodeOK             byte = 0x00
	CodeBadCredentials byte = 0x86
	CodeNotAuthorized  byte = 0x87
	CodeBusy           byte = 0x89
	CodeBanned         byte = 0x8A
)

// Attempt is a client that wants in.
type Attempt struct {
	ClientID  string
	Address   netip.Addr // the zero value: not known, as on a Unix socket
	Anonymous bool       // the listener lets clients in without a user
	HasUser   bool
	User      string
	Password  []byte // owned by the attempt
	CertName  string // of a certificate that the listener has verified; empty: none
}

// Verdict is the answer. User is who the client is from now on, empty for an anonymous one.
type Verdict struct {
	User string
	Code byte
	Why  string // when refused: one line for the client
}

const (
	// rememberFor is how long a verified password is known without hashing: devices that lose their connection
	// together come back together.
	rememberFor   = time.Minute
	rememberedMax = 4096
	// attemptsWaitingMax bounds the logins that wait to be hashed; beyond it clients are told to come back later.
	attemptsWaitingMax = 1024
)

// remembered are passwords that were right a moment ago, by a keyed hash that is of no use outside this process. An
// entry counts only as long as the user has the same hash.
type remembered struct {
	key [32]byte
	now func() time.Time

	mu   sync.Mutex
	list map[[32]byte]memory
}

type memory struct {
	hash  string
	until time.Time
}

func newRemembered(now func() time.Time) *remembered {
	r := &remembered{now: now, list: map[[32]byte]memory{}}
	_, _ = rand.Read(r.key[:]) // never fails
	return r
}

func (r *remembered) id(user string, password []byte) (id [32]byte) {
	h := hmac.New(sha256.New, r.key[:])
	h.Write([]byte(user))
	h.Write([]byte{0})
	h.Write(password)
	h.Sum(id[:0])
	return id
}

func (r *remembered) has(user, hash string, password []byte) bool {
	id := r.id(user, password)
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.list[id]
	if ok && r.now().After(m.until) {
		delete(r.list, id)
		ok = false
	}
	return ok && m.hash == hash
}

func (r *remembered) add(user, hash string, password []byte) {
	id := r.id(user, password)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) >= rememberedMax {
		clear(r.list)
	}
	r.list[id] = memory{hash, r.now().Add(rememberFor)}
}

// pool hashes passwords away from the event loops: a few at a time, and a bounded number waiting.
type pool struct {
	jobs chan func()
	stop chan struct{}
	wg   sync.WaitGroup
}

// Hashers is how many passwords are hashed at a time: half the cores, so that messages go on.
func Hashers() int { return max(runtime.NumCPU()/2, 1) }

func newPool(workers int) *pool {
	p := &pool{jobs: make(chan func(), attemptsWaitingMax), stop: make(chan struct{})}
	for range workers {
		p.wg.Add(1)
		go p.run()
	}
	return p
}

func (p *pool) run() {
	defer p.wg.Done()
	for {
		select {
		case <-p.stop:
			return
		case job := <-p.jobs:
			job()
		}
	}
}

// do has the job run. False: too many wait.
func (p *pool) do(job func()) bool {
	select {
	case p.jobs <- job:
		return true
	default:
		return false
	}
}

func (p *pool) close() {
	close(p.stop)
	p.wg.Wait()
}

// Login judges a client. When that needs a password to be hashed, decided is false, and done is called once, on
// another goroutine; unless the hub stops before. Otherwise the verdict is returned and done is never called.
func (a *Auth) Login(q *Attempt, done func(Verdict)) (v Verdict, decided bool) {
	if a.bans.banned(q) {
		a.Stats.Banned.Add(1)
		return Verdict{Code: CodeBanned, Why: "banned"}, true
	}
	users := a.now.Load().users
	switch {
	case q.HasUser && users != nil:
		return a.password(q, users.Get(q.User), done)
	case q.CertName != "":
		return Verdict{User: q.CertName}, true
	case q.Anonymous: // a user name that nobody can verify says nothing
		return Verdict{}, true
	}
	a.Stats.Anonymous.Add(1)
	return Verdict{Code: CodeNotAuthorized, Why: "this listener takes no anonymous clients"}, true
}

// noUser is hashed against for users that do not exist, so that the time of the answer does not tell who does.
var noUser = sync.OnceValue(func() string {
	h, _ := Hash([]byte("nobody")) // which is a usable password
	return h
})

func (a *Auth) password(q *Attempt, u *User, done func(Verdict)) (Verdict, bool) {
	if u != nil && a.remembered.has(u.Name, u.Hash, q.Password) {
		a.Stats.Logins.Add(1)
		return Verdict{User: u.Name}, true
	}
	at := *q
	ok := a.pool.do(func() {
		hash := ""
		if u != nil {
			hash = u.Hash
		} else {
			hash = noUser()
		}
		a.Stats.Hashed.Add(1)
		if right := verify(hash, at.Password); !right || u == nil {
			a.Stats.BadCredentials.Add(1)
			a.failed(&at)
			done(Verdict{Code: CodeBadCredentials, Why: "wrong user name or password"})
			return
		}
		a.remembered.add(u.Name, u.Hash, at.Password)
		a.bans.succeeded(&at)
		// The file may have changed while this password waited.
		if now := a.now.Load().users.Get(u.Name); now == nil || now.Hash != u.Hash {
			done(Verdict{Code: CodeBadCredentials, Why: "wrong user name or password"})
			return
		}
		a.Stats.Logins.Add(1)
		done(Verdict{User: u.Name})
	})
	if !ok {
		a.Stats.Busy.Add(1)
		return Verdict{Code: CodeBusy, Why: "too many clients log in at this moment; try again"}, true
	}
	return Verdict{}, false
}

func (a *Auth) failed(q *Attempt) {
	for _, b := range a.bans.failed(q) {
		a.Stats.BansMade.Add(1)
		a.log.Warn("banned after failed logins", "kind", b.Kind, "value", b.Value, "until", b.Until.UTC().Format(time.RFC3339))
	}
}
