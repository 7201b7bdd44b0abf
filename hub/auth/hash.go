package auth

import (
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"
	"golang.org/x/crypto/bcrypt"
)

// New hashes are bcrypt. argon2id resists special hardware better, but takes megabytes for each hash and leaves them to
// the garbage collector: on a small gateway every login then costs the whole hub a collection, which multiplied the
// delays of connected clients by eight when many logged in. Its hashes are taken all the same.
const bcryptBytesMax = 72 // of a password; bcrypt does not see more

// bcryptCost is constant but in tests.
var bcryptCost = 10

// What a hash in a file may ask for: whoever can write the file must not be able to stop the hub with it by mistake.
const (
	hashMemoryKiBMax = 64 << 10
	hashPassesMax    = 16
	hashLanesMax     = 4
	bcryptCostMax    = 13
)

// ErrPassword says that a password cannot be used.
var ErrPassword = errors.New("auth: unusable password")

// Hash makes the hash of a password for a users file: bcrypt, in the usual text form.
func Hash(password []byte) (string, error) {
	switch {
	case len(password) == 0:
		return "", fmt.Errorf("%w: it is empty", ErrPassword)
	case len(password) > bcryptBytesMax:
		return "", fmt.Errorf("%w: it has %d bytes, at most %d", ErrPassword, len(password), bcryptBytesMax)
	}
	h, err := bcrypt.GenerateFromPassword(password, bcryptCost)
	return string(h), err
}

// argon is a parsed argon2id hash.
type argon struct {
	memory, passes uint32
	lanes          uint8
	salt, sum      []byte
}

var errHash = errors.New("its hash is neither argon2id nor bcrypt")

func parseArgon(s string) (h argon, err error) {
	parts := strings.Split(s, "$") // "", argon2id, v=19, m=..,t=..,p=.., salt, sum
	if len(parts) != 6 || parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return h, errHash
	}
	if n, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &h.memory, &h.passes, &h.lanes); err != nil || n != 3 ||
		parts[3] != fmt.Sprintf("m=%d,t=%d,p=%d", h.memory, h.passes, h.lanes) {
		return h, errHash
	}
	if h.memory < 8 || h.memory > hashMemoryKiBMax || h.passes < 1 || h.passes > hashPassesMax || h.lanes < 1 || h.lanes > hashLanesMax {
		return h, fmt.Errorf("its hash asks for m=%d,t=%d,p=%d, at most m=%d,t=%d,p=%d", h.memory, h.passes, h.lanes, hashMemoryKiBMax, hashPassesMax, hashLanesMax)
	}
	if h.salt, err = base64.RawStdEncoding.DecodeString(parts[4]); err != nil || len(h.salt) < 8 || len(h.salt) > 64 {
		return h, errHash
	}
	if h.sum, err = base64.RawStdEncoding.DecodeString(parts[5]); err != nil || len(h.sum) < 16 || len(h.sum) > 64 {
		return h, errHash
	}
	return h, nil
}

func isBcrypt(s string) bool {
	return len(s) == 60 && (strings.HasPrefix(s, "$2a$") || strings.HasPrefix(s, "$2b$") || strings.HasPrefix(s, "$2y$"))
}

func checkHash(s string) error {
	switch {
	case strings.HasPrefix(s, "$argon2id$"):
		_, err := parseArgon(s)
		return err
	case isBcrypt(s):
		cost, err := bcrypt.Cost([]byte(s))
		if err != nil {
			return errHash
		}
		if cost > bcryptCostMax {
			return fmt.Errorf("its hash has cost %d, at most %d", cost, bcryptCostMax)
		}
		return nil
	}
	return errHash
}

// verify reports whether the password has the hash. It takes its time, and memory.
func verify(hash string, password []byte) bool {
	if len(password) > passwordBytesMax {
		return false
	}
	if isBcrypt(hash) {
		return len(password) <= bcryptBytesMax && bcrypt.CompareHashAndPassword([]byte(hash), password) == nil
	}
	h, err := parseArgon(hash)
	if err != nil {
		return false
	}
	sum := argon2.IDKey(password, h.salt, h.passes, h.memory, h.lanes, uint32(len(h.sum)))
	return subtle.ConstantTimeCompare(sum, h.sum) == 1
}
