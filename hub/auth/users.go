package auth

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// User is one line of a users file.
type User struct {
	Name   string
	Hash   string // see Hash
	Groups []string
}

// Users is a users file. What is not a user, remarks and empty lines, is kept as it is.
//
// A line is NAME:HASH or NAME:HASH:GROUP,GROUP. It is not safe for concurrent changes; the hub replaces it whole.
type Users struct {
	lines  []string // of users, made anew when written
	byName map[string]*User
	at     map[string]int // line of a user
}

const (
	nameBytesMax     = 128
	passwordBytesMax = 1024
	groupsMax        = 32
)

// CheckName says what is wrong with the name of a user or group, or nothing.
func CheckName(s string) error {
	bad := func(r rune) bool {
		return !unicode.IsPrint(r) || r == unicode.ReplacementChar || unicode.IsSpace(r) || strings.ContainsRune(`:,+#/"%*`, r)
	}
	switch {
	case s == "":
		return fmt.Errorf("a name is empty")
	case len(s) > nameBytesMax:
		return fmt.Errorf("the name %.20q... has %d bytes, at most %d", s, len(s), nameBytesMax)
	case strings.ContainsFunc(s, bad):
		return fmt.Errorf(`the name %q has a character that names do not have: spaces, control characters, or one of : , + # / " %% *`, s)
	}
	return nil
}

// ParseUsers reads the text of a users file. The error is Problems.
func ParseUsers(file, text string) (*Users, error) {
	u := &Users{byName: map[string]*User{}, at: map[string]int{}}
	text = strings.TrimSuffix(text, "\n")
	if text == "" {
		return u, nil
	}
	var bad Problems
	for i, line := range strings.Split(text, "\n") {
		u.lines = append(u.lines, line)
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || trimmed[0] == '#' {
			continue
		}
		user, err := parseUser(trimmed)
		if err == nil && u.byName[user.Name] != nil {
			err = &cured{fmt.Sprintf("user %q is there twice", user.Name), "remove one of the lines"}
		}
		if err != nil {
			c := err.(*cured) //nolint:errorlint // parseUser returns nothing else
			if bad = append(bad, Problem{file, i + 1, c.what, c.cure}); len(bad) == problemsMax {
				break
			}
			continue
		}
		u.byName[user.Name] = user
		u.at[user.Name] = i
	}
	if len(bad) > 0 {
		return nil, bad.err()
	}
	return u, nil
}

// parseUser shows no part of a hash in its errors: they are logged.
func parseUser(line string) (*User, error) {
	name, rest, ok := strings.Cut(line, ":")
	if !ok {
		return nil, &cured{"a line has no colon", "write NAME:HASH, or use `hubctl user add`"}
	}
	if err := CheckName(name); err != nil {
		return nil, &cured{err.Error(), "choose another name with `hubctl user add`"}
	}
	hash, groups, _ := strings.Cut(rest, ":")
	if err := checkHash(hash); err != nil {
		return nil, &cured{fmt.Sprintf("user %q: %v", name, err), "set the password with `hubctl user passwd " + name + "`"}
	}
	u := &User{Name: name, Hash: hash}
	if groups != "" {
		u.Groups = strings.Split(groups, ",")
	}
	if len(u.Groups) > groupsMax {
		return nil, &cured{fmt.Sprintf("user %q is in %d groups", name, len(u.Groups)), fmt.Sprintf("keep at most %d", groupsMax)}
	}
	for _, g := range u.Groups {
		if err := CheckName(g); err != nil {
			return nil, &cured{fmt.Sprintf("user %q, groups: %v", name, err), "write GROUP,GROUP without spaces"}
		}
	}
	return u, nil
}

// Len is the number of users.
func (u *Users) Len() int {
	if u == nil {
		return 0
	}
	return len(u.byName)
}

// Get returns a user, or nil.
func (u *Users) Get(name string) *User {
	if u == nil {
		return nil
	}
	return u.byName[name]
}

// All returns the users by name.
func (u *Users) All() []User {
	list := make([]User, 0, u.Len())
	for _, x := range u.byName {
		list = append(list, *x)
	}
	slices.SortFunc(list, func(a, b User) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Set adds a user or replaces one.
func (u *Users) Set(user User) {
	line := user.Name + ":" + user.Hash
	if len(user.Groups) > 0 {
		line += ":" + strings.Join(user.Groups, ",")
	}
	if i, ok := u.at[user.Name]; ok {
		u.lines[i] = line
	} else {
		u.at[user.Name] = len(u.lines)
		u.lines = append(u.lines, line)
	}
	u.byName[user.Name] = &user
}

// Remove deletes a user. False: there is none of that name.
func (u *Users) Remove(name string) bool {
	i, ok := u.at[name]
	if !ok {
		return false
	}
	u.lines = slices.Delete(u.lines, i, i+1)
	delete(u.at, name)
	delete(u.byName, name)
	for other, j := range u.at {
		if j > i {
			u.at[other] = j - 1
		}
	}
	return true
}

// Text is the file as it is to be written.
func (u *Users) Text() string {
	if len(u.lines) == 0 {
		return ""
	}
	return strings.Join(u.lines, "\n") + "\n"
}
