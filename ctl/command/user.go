package command

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"edgehub/ctl/client"
	"edgehub/hub/auth"
)

func (a *app) userCommand() *cobra.Command {
	var file, groups, passwordFile string
	var generate, yes bool
	withFile := func(c *cobra.Command) *cobra.Command {
		c.Flags().StringVar(&file, "file", "", "the users file; default: that of the running hub, or of --config")
		return c
	}
	withPassword := func(c *cobra.Command) *cobra.Command {
		c.Flags().StringVar(&passwordFile, "password-file", "", "take the password from the first line of this file")
		c.Flags().BoolVar(&generate, "generate", false, "make a password and print it")
		return withFile(c)
	}
	secret := func() ([]byte, error) { return a.newPassword(passwordFile, generate) }
	const source = "The password is asked for on a terminal, and is otherwise the first line of standard input. It is kept\n" +
		"as a bcrypt hash. A running hub is told, and new connections need the new password at once."
	add := withPassword(&cobra.Command{Use: "add NAME", Short: "Add a user", Args: takes("NAME"), Long: "add makes a user.\n\n" + source,
		RunE: func(c *cobra.Command, args []string) error {
			user, err := newUser(args[0], groups, secret)
			if err != nil {
				return err
			}
			return a.changeUsers(c.Context(), file, true, func(u *auth.Users) (string, error) {
				if u.Get(user.Name) != nil {
					return "", fmt.Errorf("user %q is there already; `hubctl user passwd %s` sets a new password", user.Name, user.Name)
				}
				u.Set(user)
				return "user " + user.Name + " is added", nil
			})
		}})
	add.Flags().StringVar(&groups, "groups", "", "groups for the access list, separated by commas")
	passwd := withPassword(&cobra.Command{Use: "passwd NAME", Short: "Set a user's password", Args: takes("NAME"),
		Long: "passwd sets a new password. Who is connected as that user has to log in again.\n\n" + source,
		RunE: func(c *cobra.Command, args []string) error {
			user, err := newUser(args[0], "", secret)
			if err != nil {
				return err
			}
			return a.changeUsers(c.Context(), file, false, func(u *auth.Users) (string, error) {
				old := u.Get(user.Name)
				if old == nil {
					return "", noUser(user.Name, u)
				}
				user.Groups = old.Groups
				u.Set(user)
				return "user " + user.Name + " has a new password", nil
			})
		}})
	rm := withFile(&cobra.Command{Use: "rm NAME", Short: "Remove a user; who is connected as that user has to go", Args: takes("NAME"),
		RunE: func(c *cobra.Command, args []string) error {
			if err := a.confirm(yes, "Remove user %s, and end the connections of that user?", clean(args[0])); err != nil {
				return err
			}
			return a.changeUsers(c.Context(), file, false, func(u *auth.Users) (string, error) {
				if !u.Remove(args[0]) {
					return "", noUser(args[0], u)
				}
				return "user " + args[0] + " is removed", nil
			})
		}})
	rm.Flags().BoolVar(&yes, "yes", false, "do not ask")
	ls := withFile(&cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "List the users and their groups", Args: takes(),
		RunE: func(c *cobra.Command, _ []string) error { return a.listUsers(c.Context(), file) }})
	return a.group("user", "The users that clients log in as", add, passwd, rm, ls)
}

func noUser(name string, u *auth.Users) error {
	var names []string
	for _, x := range u.All() {
		names = append(names, x.Name)
	}
	return notFound("user", name, names)
}

// newUser asks for the password and hashes it: before the file is locked, since both take their time.
func newUser(name, groups string, secret func() ([]byte, error)) (u auth.User, err error) {
	if err := auth.CheckName(name); err != nil {
		return u, err
	}
	u.Name = name
	if groups != "" {
		u.Groups = strings.Split(groups, ",")
	}
	for _, g := range u.Groups {
		if err := auth.CheckName(g); err != nil {
			return u, fmt.Errorf("--groups: %w", err)
		}
	}
	password, err := secret()
	if err != nil {
		return u, err
	}
	if u.Hash, err = auth.Hash(password); err != nil {
		return u, fmt.Errorf("the password cannot be used: %s", strings.TrimPrefix(err.Error(), "auth: unusable password: "))
	}
	return u, nil
}

// generatedBytes of randomness make a password of 24 characters.
const generatedBytes = 18

func (a *app) newPassword(file string, generate bool) ([]byte, error) {
	switch {
	case generate && file != "":
		return nil, usagef("--generate and --password-file exclude each other")
	case generate:
		var b [generatedBytes]byte
		_, _ = rand.Read(b[:]) // never fails
		p := base64.RawURLEncoding.EncodeToString(b[:])
		_, err := fmt.Fprintln(a.Stdout, p)
		return []byte(p), outputError(err)
	case file != "":
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("--password-file: %w", err)
		}
		line, _, _ := strings.Cut(string(text), "\n")
		return trimLine([]byte(line)), nil
	}
	return a.password()
}

// usersFile finds the users file: what is named, else what the running hub uses, else what --config says.
func (a *app) usersFile(ctx context.Context, named string) (path string, hub *client.Client, err error) {
	hub, hubErr := a.hub()
	if hubErr != nil {
		hub = nil
	}
	switch {
	case named != "":
		return named, hub, nil
	case hub != nil:
		access, err := hub.Access(ctx)
		if err != nil {
			return "", nil, err
		}
		if access.UsersFile == "" {
			return "", nil, errors.New("the hub has no users: set auth.users_file in its configuration, or name a file with --file")
		}
		return access.UsersFile, hub, nil
	case a.config != "":
		cfg, err := loadConfig(a.config)
		if err != nil {
			return "", nil, err
		}
		if cfg.Auth.UsersFile == "" {
			return "", nil, fmt.Errorf("%s sets no auth.users_file; set it, or name a file with --file", a.config)
		}
		return cfg.Auth.UsersFile, nil, nil
	case !errors.Is(hubErr, client.ErrNotRunning):
		return "", nil, hubErr
	}
	return "", nil, errors.New("no hub runs that could say which users file it uses; name the file with --file, or the configuration with --config")
}

func readUsers(path string, missingOK bool) (*auth.Users, error) {
	if _, err := os.Stat(path); missingOK && errors.Is(err, fs.ErrNotExist) {
		return auth.ParseUsers(path, "")
	}
	text, err := auth.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return auth.ParseUsers(path, text)
}

// changeUsers applies change to the users file and has a running hub read it. One change at a time.
func (a *app) changeUsers(ctx context.Context, named string, missingOK bool, change func(*auth.Users) (string, error)) error {
	path, hub, err := a.usersFile(ctx, named)
	if err != nil {
		return err
	}
	unlock, err := lockFile(path)
	if err != nil {
		return err
	}
	defer unlock()
	users, err := readUsers(path, missingOK)
	if err != nil {
		return err
	}
	said, err := change(users)
	if err != nil {
		return err
	}
	if err := replaceFile(path, users.Text()); err != nil {
		return fmt.Errorf("%s was not changed: %w", path, err)
	}
	if hub != nil {
		if _, err := hub.Reload(ctx); err != nil {
			return fmt.Errorf("%s, but the hub did not take it over: %w", said, err)
		}
		said += ", and the hub knows"
	}
	_, err = fmt.Fprintln(a.Stderr, said)
	return outputError(err)
}

const lockPatience = 5 * time.Second

// lockFile keeps two changes of a file from losing one of them: by a lock on its directory, which stays the same.
func lockFile(path string) (unlock func(), err error) {
	dir := filepath.Dir(path)
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockPatience); ; time.Sleep(20 * time.Millisecond) {
		err = syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = d.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) || time.Now().After(deadline) {
			_ = d.Close()
			return nil, fmt.Errorf("%s is being changed by somebody else: %w", path, err)
		}
	}
}

// replaceFile writes a file whole or not at all. Owner and mode stay; a new file belongs to the group of its directory,
// so that a hub in that group can read what root has made.
func replaceFile(path, text string) error {
	mode, owner, group := fs.FileMode(0o640), -1, -1
	info, err := os.Stat(path)
	if err != nil {
		info, err = os.Stat(filepath.Dir(path))
	} else {
		mode = info.Mode().Perm()
		owner = int(info.Sys().(*syscall.Stat_t).Uid)
	}
	if err != nil {
		return err
	}
	group = int(info.Sys().(*syscall.Stat_t).Gid)
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone once renamed
	if _, err := f.WriteString(text); err != nil {
		_ = f.Close()
		return err
	}
	// Who may not give it away keeps it: the hub's own user, changing its own file.
	_ = f.Chown(owner, group)
	if err := errors.Join(f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// userLine is a user as `user ls` shows it.
type userLine struct {
	Name   string   `json:"name"`
	Groups []string `json:"groups"`
}

func (a *app) listUsers(ctx context.Context, named string) error {
	path, _, err := a.usersFile(ctx, named)
	if err != nil {
		return err
	}
	users, err := readUsers(path, false)
	if err != nil {
		return err
	}
	list := []userLine{}
	for _, u := range users.All() {
		list = append(list, userLine{u.Name, append([]string{}, u.Groups...)})
	}
	return show(a, list, func(w io.Writer, list []userLine) {
		t := newTable("USER", "GROUPS")
		for _, u := range list {
			t.add(u.Name, strings.Join(u.Groups, " "))
		}
		t.write(w)
	})
}
