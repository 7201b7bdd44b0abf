package auth

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// What a ban can be about.
const (
	BanAddress = "address" // an IP address; of IPv6 its /64
	BanUser    = "user"
	BanClient  = "client" // a client id
	banPair    = "login"  // a user at an address, made after failed logins only
)

// Ban keeps somebody out.
type Ban struct {
	Kind   string
	Value  string
	Until  time.Time // zero: until it is taken back
	Why    string
	ByHand bool
}

// ErrBan says that a ban is not one.
var ErrBan = errors.New("auth: not a ban")

// Store keeps the bans that were made by hand: storage/meta in the hub.
type Store interface {
	Put(key, value []byte)
	Delete(key []byte)
	Commit() error
	Scan(prefix []byte, fn func(key, value []byte) error) error
}

const banPrefix = "ban/"

const (
	bansMax     = 10_000
	failuresMax = 16_384
	// addressFactor: an address is banned whole after so many times the failures that ban one user at it. Behind one
	// address there may be a whole fleet of which one device has an old password.
	addressFactor = 10
)

type banKey struct{ kind, value string }

// bans are the bans in force and the failed logins that may lead to more.
type bans struct {
	now   func() time.Time
	store Store // nil: none is kept

	mu       sync.Mutex
	list     map[banKey]Ban
	failures map[banKey]failure
	after    int // failed logins; 0: never
	span     time.Duration
}

type failure struct {
	n     int
	since time.Time
}

func newBans(store Store, now func() time.Time) (*bans, error) {
	b := &bans{now: now, store: store, list: map[banKey]Ban{}, failures: map[banKey]failure{}}
	if store == nil {
		return b, nil
	}
	err := store.Scan([]byte(banPrefix), func(key, v []byte) error {
		kind, value, ok := strings.Cut(string(key[len(banPrefix):]), "\x00")
		if !ok || len(v) < 8 {
			return nil // of a version that knows more
		}
		x := Ban{Kind: kind, Value: value, Why: string(v[8:]), ByHand: true}
		if ms := int64(binary.BigEndian.Uint64(v)); ms > 0 {
			x.Until = time.UnixMilli(ms)
		}
		b.list[banKey{kind, value}] = x
		return nil
	})
	return b, err
}

func addressKey(a netip.Addr) string {
	a = a.Unmap()
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}

// keys are what a ban of the attempt may be about.
func keys(q *Attempt) []banKey {
	list := make([]banKey, 0, 4)
	if q.Address.IsValid() {
		list = append(list, banKey{BanAddress, addressKey(q.Address)})
	}
	list = append(list, banKey{BanClient, q.ClientID})
	if user := q.user(); user != "" {
		list = append(list, banKey{BanUser, user})
		if q.HasUser {
			list = append(list, pairKey(q))
		}
	}
	return list
}

func (q *Attempt) user() string {
	if q.HasUser {
		return q.User
	}
	return q.CertName
}

func pairKey(q *Attempt) banKey { return banKey{banPair, q.User + " at " + addressKey(q.Address)} }

func (b *bans) banned(q *Attempt) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.list) == 0 {
		return false
	}
	for _, k := range keys(q) {
		x, ok := b.list[k]
		if !ok {
			continue
		}
		if x.Until.IsZero() || b.now().Before(x.Until) {
			return true
		}
		delete(b.list, k)
	}
	return false
}

// limit sets after how many failed logins a ban comes (0: never), and for how long.
func (b *bans) limit(after int, span time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.after, b.span = after, span
	if after == 0 {
		clear(b.failures)
	}
}

// failed counts a failed login and returns the bans it has led to.
func (b *bans) failed(q *Attempt) (made []Ban) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.after == 0 {
		return nil
	}
	if b.count(pairKey(q), b.after) {
		made = append(made, b.make(pairKey(q)))
	}
	// The machine itself is not locked out: who works on it repairs it.
	if q.Address.IsValid() && !q.Address.Unmap().IsLoopback() {
		if k := (banKey{BanAddress, addressKey(q.Address)}); b.count(k, b.after*addressFactor) {
			made = append(made, b.make(k))
		}
	}
	return made
}

// count adds a failure and reports whether that was one too many.
func (b *bans) count(k banKey, most int) bool {
	now := b.now()
	f := b.failures[k]
	if f.n == 0 || now.Sub(f.since) > b.span {
		f = failure{since: now}
	}
	if f.n++; f.n >= most {
		delete(b.failures, k)
		return true
	}
	if len(b.failures) >= failuresMax {
		clear(b.failures)
	}
	b.failures[k] = f
	return false
}

func (b *bans) make(k banKey) Ban {
	x := Ban{Kind: k.kind, Value: k.value, Until: b.now().Add(b.span), Why: "failed logins"}
	if old, ok := b.list[k]; ok && old.ByHand {
		return old
	}
	if len(b.list) >= bansMax {
		for k, old := range b.list {
			if !old.ByHand {
				delete(b.list, k)
			}
		}
	}
	if len(b.list) < bansMax {
		b.list[k] = x
	}
	return x
}

// succeeded forgets the failures of a user that has its password after all.
func (b *bans) succeeded(q *Attempt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failures, pairKey(q))
}

// normal checks a ban made by hand and writes its value as it is looked for.
func normal(x Ban) (Ban, error) {
	switch x.Kind {
	case BanUser, BanClient:
		if x.Value == "" || strings.Contains(x.Value, "\x00") {
			return x, fmt.Errorf("%w: the %s %q cannot exist", ErrBan, x.Kind, x.Value)
		}
	case BanAddress:
		a, err := netip.ParseAddr(x.Value)
		if err != nil {
			if p, perr := netip.ParsePrefix(x.Value); perr == nil && p.Addr().Is6() && p.Bits() == 64 {
				a, err = p.Addr(), nil
			}
		}
		if err != nil {
			return x, fmt.Errorf("%w: %q is not an IP address", ErrBan, x.Value)
		}
		x.Value = addressKey(a)
	default:
		return x, fmt.Errorf("%w: the kind %q is not address, user or client", ErrBan, x.Kind)
	}
	return x, nil
}

// add makes a ban by hand; it outlives the hub.
func (b *bans) add(x Ban) (Ban, error) {
	x, err := normal(x)
	if err != nil {
		return x, err
	}
	x.ByHand = true
	b.mu.Lock()
	b.list[banKey{x.Kind, x.Value}] = x
	b.mu.Unlock()
	if b.store == nil {
		return x, nil
	}
	var ms int64
	if !x.Until.IsZero() {
		ms = x.Until.UnixMilli()
	}
	b.store.Put([]byte(banPrefix+x.Kind+"\x00"+x.Value), append(binary.BigEndian.AppendUint64(nil, uint64(ms)), x.Why...))
	return x, b.store.Commit()
}

// remove takes back a ban of any kind. False: there is none.
func (b *bans) remove(kind, value string) (bool, error) {
	if x, err := normal(Ban{Kind: kind, Value: value}); err == nil {
		value = x.Value
	}
	k := banKey{kind, value}
	b.mu.Lock()
	x, ok := b.list[k]
	delete(b.list, k)
	delete(b.failures, k)
	b.mu.Unlock()
	if !ok || !x.ByHand || b.store == nil {
		return ok, nil
	}
	b.store.Delete([]byte(banPrefix + kind + "\x00" + value))
	return true, b.store.Commit()
}

// all returns the bans in force.
func (b *bans) all() []Ban {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []Ban{}
	for k, x := range b.list {
		if !x.Until.IsZero() && !b.now().Before(x.Until) {
			delete(b.list, k)
			continue
		}
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b Ban) int {
		return strings.Compare(a.Kind+"\x00"+a.Value, b.Kind+"\x00"+b.Value)
	})
	return list
}
