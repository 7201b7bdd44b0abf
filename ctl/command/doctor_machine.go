package command

import (
	"bufio"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// What doctor finds too little, too slow or too old.
const (
	descriptorsWarn = 4096
	syncSlow        = 20 * time.Millisecond
	syncTooSlow     = 200 * time.Millisecond
	writeSlowPerS   = 5 << 20
	syncRounds      = 50
	writeBytes      = 8 << 20
	memoryWarn      = 96 << 20
	certificateWarn = 30 * 24 * time.Hour
	reachTimeout    = 3 * time.Second
)

// descriptors reads the limit of the hub's process, else that of this one.
func (x *examination) descriptors() {
	const check, do = "descriptors", "raise LimitNOFILE of the unit, or ulimit -Hn, and start the hub again"
	limit, whose := uint64(0), "a process of this user may open"
	if pid := x.hubPID(); pid > 0 {
		limit, whose = openFilesOf(pid), "the hub may open"
	}
	if limit == 0 {
		var l unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
			x.skip(check, "", "%v", err)
			return
		}
		limit, whose = l.Max, "a process of this user may open"
	}
	switch want := uint64(max(x.cfg.Limits.MaxConnections, 0)); {
	case want > 0 && want+512 > limit:
		x.warn(check, do, "%s %d files, limits.max_connections is %d", whose, limit, want)
	case limit < descriptorsWarn:
		x.warn(check, do, "%s %d files", whose, limit)
	default:
		x.ok(check, "%s %d files", whose, limit)
	}
}

// hubPID asks the kernel who is behind the admin socket.
func (x *examination) hubPID() int {
	if x.hub == nil {
		return 0
	}
	conn, err := net.DialTimeout("unix", x.hub.Socket(), reachTimeout)
	if err != nil {
		return 0
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

func openFilesOf(pid int) uint64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/limits")
	if err != nil {
		return 0
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				n, _ := strconv.ParseUint(f[0], 10, 64) // 0: not known
				return n
			}
		}
	}
	return 0
}

func (x *examination) clock() {
	const check = "clock"
	now := time.Now()
	if now.Year() < 2024 {
		x.fail(check, "set it, or let timesyncd or chrony do so", "it is %s", now.Format(time.RFC3339))
		return
	}
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	switch {
	case err != nil:
		x.skip(check, "", "whether it is synchronised cannot be asked: %v", err)
	case state == unix.TIME_ERROR:
		x.warn(check, "turn on systemd-timesyncd or chrony", "not synchronised: ages and expiry follow it")
	default:
		x.ok(check, "synchronised")
	}
}

// disk measures what an acknowledged message waits for.
func (x *examination) disk() {
	const check = "disk"
	f, err := os.CreateTemp(x.cfg.Hub.DataDir, ".doctor-*")
	if err != nil {
		do := "run hubctl doctor as the hub's user"
		if errors.Is(err, fs.ErrNotExist) {
			do = "it is made at the first start"
		}
		x.skip(check, do, "%v", err)
		return
	}
	defer func() { _ = os.Remove(f.Name()); _ = f.Close() }()
	block := make([]byte, 1<<20)
	start := time.Now()
	for range writeBytes / len(block) {
		if _, err := f.Write(block); err != nil {
			x.fail(check, "see dmesg and df", "a write failed: %v", err)
			return
		}
	}
	if err := f.Sync(); err != nil {
		x.fail(check, "see dmesg", "a sync failed: %v", err)
		return
	}
	perS := int64(float64(writeBytes) / time.Since(start).Seconds())
	took := make([]time.Duration, 0, syncRounds)
	for i := range syncRounds {
		start := time.Now()
		if _, err := f.WriteAt(block[:4096], int64(i)*4096); err != nil {
			x.fail(check, "see dmesg and df", "a write failed: %v", err)
			return
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			x.fail(check, "see dmesg", "a sync failed: %v", err)
			return
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	mid, worst := took[len(took)/2], took[len(took)-1]
	const format = "writes %s/s, a sync takes %s, the worst of %d %s"
	args := []any{size(perS), mid.Round(10 * time.Microsecond), syncRounds, worst.Round(10 * time.Microsecond)}
	switch {
	case mid > syncTooSlow:
		x.warn(check, "use another disk or card; streams with durability synced will be slow", format, args...)
	case mid > syncSlow, perS < writeSlowPerS:
		x.warn(check, "keep durability written where you can", format, args...)
	default:
		x.ok(check, format, args...)
	}
}

// space holds what streams may grow to against what the disk has.
func (x *examination) space() {
	const check = "free space"
	dir := existing(x.cfg.Hub.DataDir)
	var fsys unix.Statfs_t
	if err := unix.Statfs(dir, &fsys); err != nil {
		x.skip(check, "", "%s: %v", dir, err)
		return
	}
	free := int64(fsys.Bavail) * int64(fsys.Bsize) // their types differ between machines
	var most, used int64
	for i := range x.cfg.Streams {
		most += int64(x.cfg.Streams[i].Retention.MaxBytes)
	}
	_ = filepath.WalkDir(filepath.Join(x.cfg.Hub.DataDir, "streams"), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				used += info.Size()
			}
		}
		return nil // what cannot be read is not counted
	})
	if missing := most - used - free; missing > 0 {
		x.warn(check, "lower retention.max_bytes, or give the hub a larger disk", "%s free, streams may grow by %s: %s short", size(free), size(most-used), size(missing))
		return
	}
	x.ok(check, "%s free, streams may grow by %s", size(free), size(max(most-used, 0)))
}

// existing is the path, or the nearest directory above it that is there.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == filepath.Dir(path) {
			return path
		}
		path = filepath.Dir(path)
	}
}

func (x *examination) memory() {
	const check = "memory"
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		x.skip(check, "", "%v", err)
		return
	}
	defer func() { _ = f.Close() }()
	var total, available int64
	for sc := bufio.NewScanner(f); sc.Scan(); {
		f := strings.Fields(sc.Text())
		if len(f) < 2 {
			continue
		}
		n, _ := strconv.ParseInt(f[1], 10, 64) // kB
		switch f[0] {
		case "MemTotal:":
			total = n << 10
		case "MemAvailable:":
			available = n << 10
		}
	}
	limit := int64(x.cfg.Limits.Memory)
	switch {
	case limit > total:
		x.warn(check, "lower limits.memory", "limits.memory is %s, the machine has %s", size(limit), size(total))
	case limit == 0 && total <= 512<<20:
		x.warn(check, "set hub.profile, or limits.memory to about half of it", "the machine has %s, limits.memory sets no limit", size(total))
	case available < memoryWarn:
		x.warn(check, "see what else runs here", "%s of %s available", size(available), size(total))
	default:
		x.ok(check, "%s of %s available", size(available), size(total))
	}
}

// permissions looks for secrets that others may read, and data that others may change.
func (x *examination) permissions() {
	const check = "permissions"
	bad := false
	look := func(path string, others fs.FileMode, what string) {
		if path == "" {
			return
		}
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil {
			x.skip(check, "run hubctl doctor as root", "%v", err)
			return
		}
		if have := info.Mode().Perm() & others; have != 0 {
			bad = true
			x.warn(check, "chmod o= "+path, "%s %s has mode %04o: others may %s", what, path, info.Mode().Perm(), rightsText(have))
		}
	}
	look(x.cfg.Hub.DataDir, 0o002, "the data directory")
	look(x.cfg.Auth.UsersFile, 0o006, "the users file")
	look(x.cfg.Auth.ACLFile, 0o002, "the access list")
	for i := range x.cfg.Listeners {
		look(x.cfg.Listeners[i].TLS.KeyFile, 0o006, "the key")
	}
	for i := range x.cfg.Uplinks {
		u := &x.cfg.Uplinks[i]
		look(u.CredentialsFile, 0o006, "the credentials file")
		look(u.PasswordFile, 0o006, "the password file")
		look(u.TLS.KeyFile, 0o006, "the key")
	}
	if !bad {
		x.ok(check, "secrets and data are not open to others")
	}
}

func rightsText(m fs.FileMode) string {
	switch {
	case m&0o006 == 0o006:
		return "read and write it"
	case m&0o002 != 0:
		return "write it"
	}
	return "read it"
}

func (x *examination) certificates() {
	files := map[string]bool{}
	for i := range x.cfg.Listeners {
		files[x.cfg.Listeners[i].TLS.CertFile], files[x.cfg.Listeners[i].TLS.ClientCAFile] = true, true
	}
	for i := range x.cfg.Uplinks {
		files[x.cfg.Uplinks[i].TLS.CertFile], files[x.cfg.Uplinks[i].TLS.CAFile] = true, true
	}
	delete(files, "")
	for file := range files {
		x.certificate(file)
	}
}

func (x *examination) certificate(file string) {
	const check, do = "certificates", "renew it; the hub reads changed files again by itself"
	text, err := os.ReadFile(file)
	if err != nil {
		x.skip(check, "run hubctl doctor as root", "%v", err)
		return
	}
	first := time.Time{}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && (first.IsZero() || c.NotAfter.Before(first)) {
			first = c.NotAfter
		}
	}
	switch left := time.Until(first); {
	case first.IsZero():
		x.fail(check, "give a PEM file", "%s holds no certificate", file)
	case left < 0:
		x.fail(check, do, "%s expired on %s", file, first.Format(time.DateOnly))
	case left < certificateWarn:
		x.warn(check, do, "%s expires on %s", file, first.Format(time.DateOnly))
	default:
		x.ok(check, "%s is good until %s", file, first.Format(time.DateOnly))
	}
}

// ports: of a running hub they answer, of one that is stopped they are free.
func (x *examination) ports() {
	const check = "ports"
	for i := range x.cfg.Listeners {
		address := x.cfg.Listeners[i].Address
		host, port, err := net.SplitHostPort(address)
		if err != nil || port == "0" {
			continue // a Unix socket, or any port
		}
		if x.hub == nil {
			if l, err := net.Listen("tcp", address); err != nil {
				x.fail(check, "stop what listens there (ss -ltnp), or change listener.address", "%v", err)
			} else {
				_ = l.Close()
				x.ok(check, "%s is free", address)
			}
			continue
		}
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		x.reach(check, net.JoinHostPort(host, port), "see the hub's log")
	}
}

func (x *examination) reach(check, address, do string) {
	conn, err := net.DialTimeout("tcp", address, reachTimeout)
	if err != nil {
		x.fail(check, do, "%v", err)
		return
	}
	_ = conn.Close()
	x.ok(check, "%s answers", address)
}

func (x *examination) remotes() {
	for i := range x.cfg.Uplinks {
		u := &x.cfg.Uplinks[i]
		for _, one := range u.URLs() {
			to, err := url.Parse(one)
			if err != nil {
				continue // config has checked it
			}
			port := to.Port()
			if port == "" {
				port = "4222"
			}
			x.reach("uplink "+u.Name, net.JoinHostPort(to.Hostname(), port), "check the network, the name and the firewall on the way")
		}
	}
}
