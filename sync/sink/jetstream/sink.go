package jetstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"edgehub/sync/uplink"
)

// TLS names the files of a TLS configuration. They are read for every connection,
// so that a renewed certificate is used without a restart.
type TLS struct {
	CAFile     string
	CertFile   string
	KeyFile    string
	ServerName string
}

// Options configures a Sink. Zero durations take the defaults.
type Options struct {
	URL          string // one, or several separated by commas
	Hub          string // hub id
	RemoteStream string // its {hub} filled in, see RemoteName
	Subjects     Subjects

	CredentialsFile string // NATS credentials (JWT and seed)
	Credentials     []byte // the same as text; nil: none
	User            string
	PasswordFile    string
	Password        string // used when there is no PasswordFile
	TLS             *TLS   // nil: as the server asks

	ConnectTimeout time.Duration // per server: dial, and then its greeting; 5 s
	RequestTimeout time.Duration // API requests and single writes; 10 s
	PingInterval   time.Duration // how often an idle connection is tested; 20 s
}

// Sink opens sessions to one JetStream stream. It is immutable.
type Sink struct {
	o       Options
	servers string // for messages, without passwords
}

var _ uplink.Sink = (*Sink)(nil)

// New checks the options. It does not connect.
func New(o Options) (*Sink, error) {
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = 5 * time.Second
	}
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = 10 * time.Second
	}
	if o.PingInterval <= 0 {
		o.PingInterval = 20 * time.Second
	}
	if o.Subjects.All() == "" {
		return nil, fmt.Errorf("%w: none given", ErrTemplate)
	}
	if o.RemoteStream == "" || len(o.RemoteStream) > 255 || strings.ContainsAny(o.RemoteStream, " \t\r\n\x00.*>/\\{}") {
		return nil, fmt.Errorf("jetstream: stream name %q: it may not be empty nor have spaces, dots, wildcards, slashes or braces", o.RemoteStream)
	}
	if (o.CredentialsFile != "" || o.Credentials != nil) && o.User != "" {
		return nil, errors.New("jetstream: both credentials and user are set; keep one")
	}
	var urls, shown []string
	for u := range strings.SplitSeq(o.URL, ",") {
		u = strings.TrimSpace(u)
		p, err := url.Parse(u)
		if err != nil || p.Host == "" || (p.Scheme != "nats" && p.Scheme != "tls") {
			return nil, errors.New("jetstream: each server of url must be nats://HOST[:PORT] or tls://HOST[:PORT]") // the text may hold a password: not shown
		}
		urls, shown = append(urls, u), append(shown, p.Scheme+"://"+p.Host)
	}
	o.URL = strings.Join(urls, ",")
	return &Sink{o: o, servers: strings.Join(shown, ", ")}, nil
}

// Connect opens a new connection and reads what the remote stream is.
func (s *Sink) Connect(ctx context.Context) (uplink.Session, error) {
	d := &dialer{ctx: ctx, timeout: s.o.ConnectTimeout, writeTimeout: s.o.RequestTimeout}
	n := newSession(s, d)
	opts, err := s.options(n, d)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, d.close)
	defer stop()
	nc, err := nats.Connect(s.o.URL, opts...)
	if err != nil {
		d.close()
		return nil, s.explain(ctx, d, err)
	}
	n.nc = nc
	if err := n.open(ctx); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// options builds nats.go's options: nothing in them reconnects or buffers.
func (s *Sink) options(n *session, d *dialer) ([]nats.Option, error) {
	opts := []nats.Option{
		nats.Name("hub " + s.o.Hub),
		nats.NoReconnect(),
		nats.ReconnectBufSize(-1),
		nats.RetryOnFailedConnect(false),
		nats.Timeout(s.o.ConnectTimeout),
		nats.FlusherTimeout(s.o.RequestTimeout),
		nats.PingInterval(s.o.PingInterval),
		nats.MaxPingsOutstanding(2),
		nats.SkipSubjectValidation(), // subjects are made by Subjects.Append
		nats.SetCustomDialer(d),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { n.fail(n.lost(err)) }),
		nats.ClosedHandler(func(nc *nats.Conn) { n.fail(n.lost(nc.LastError())) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { n.fail(n.lost(err)) }),
	}
	switch {
	case s.o.CredentialsFile != "" || s.o.Credentials != nil:
		o, err := s.credentials()
		if err != nil {
			return nil, err
		}
		opts = append(opts, o)
	case s.o.User != "":
		password, err := s.password()
		if err != nil {
			return nil, err
		}
		opts = append(opts, nats.UserInfo(s.o.User, password))
	}
	if s.o.TLS != nil {
		c, err := s.o.TLS.config()
		if err != nil {
			return nil, err
		}
		opts = append(opts, nats.Secure(c))
	}
	return opts, nil
}

// credentials reads a user's JWT with its seed, or an nkey's seed alone.
func (s *Sink) credentials() (nats.Option, error) {
	what, b := "credentials", s.o.Credentials
	if s.o.CredentialsFile != "" {
		var err error
		what = "credentials_file " + s.o.CredentialsFile
		if b, err = os.ReadFile(s.o.CredentialsFile); err != nil {
			return nil, fmt.Errorf("jetstream: credentials_file: %w", err)
		}
	}
	if _, err := nkeys.ParseDecoratedJWT(b); err == nil && bytes.Contains(b, []byte("BEGIN NATS USER JWT")) {
		return nats.UserCredentialBytes(b), nil
	}
	key, err := nkeys.ParseDecoratedUserNKey(b)
	if err != nil {
		return nil, fmt.Errorf("jetstream: %s: neither the credentials of a user (JWT and seed) nor the seed of a user's nkey", what)
	}
	public, err := key.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("jetstream: %s: %w", what, err)
	}
	return nats.Nkey(public, key.Sign), nil
}

// password reads the password file; it ends at the first line end.
func (s *Sink) password() (string, error) {
	if s.o.PasswordFile == "" {
		return s.o.Password, nil
	}
	b, err := os.ReadFile(s.o.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("jetstream: password_file: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSuffix(line, "\r"), nil
}

func (t *TLS) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	if t.CAFile != "" {
		pem, err := os.ReadFile(t.CAFile)
		if err != nil {
			return nil, fmt.Errorf("jetstream: tls ca_file: %w", err)
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("jetstream: tls ca_file %s has no certificate", t.CAFile)
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("jetstream: tls cert_file and key_file: %w", err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

// explain says why no connection was made; nats.go itself keeps it short.
func (s *Sink) explain(ctx context.Context, d *dialer, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	addr, dialErr := d.last()
	switch {
	case d.refused():
		return fmt.Errorf("cannot reach %s: %w", s.servers, refusal{dialErr})
	case dialErr != nil && (errors.Is(err, nats.ErrNoServers) || errors.Is(err, dialErr)):
		return fmt.Errorf("cannot reach %s: %w", s.servers, dialErr)
	case errors.Is(err, nats.ErrTimeout), isTimeout(err):
		return fmt.Errorf("%s accepts connections but does not answer within %s", addr, s.o.ConnectTimeout)
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired):
		return fmt.Errorf("%s refuses the user or the credentials: %w", addr, err)
	}
	return fmt.Errorf("connecting to %s: %w", s.servers, err)
}

// refusal is the error of a refused connection.
type refusal struct{ error }

// Unwrap returns what the uplink knows it by, and the system's error.
func (r refusal) Unwrap() []error { return []error{uplink.ErrRefused, r.error} }

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// dialer dials for nats.go and keeps the socket in reach, so that a connection
// that the network swallows can be closed while nats.go waits in a write.
type dialer struct {
	ctx          context.Context // nats.go dials without one
	timeout      time.Duration
	writeTimeout time.Duration

	received atomic.Int64 // bytes

	mu     sync.Mutex // guards all below
	conn   net.Conn
	closed bool
	err    error
	addr   string
	other  bool // a dial succeeded, or failed otherwise than by being refused
}

// Dial implements nats.CustomDialer.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	nd := net.Dialer{Timeout: d.timeout}
	c, err := nd.DialContext(d.ctx, network, address)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err, d.addr = err, address
	d.other = d.other || !errors.Is(err, syscall.ECONNREFUSED)
	if err != nil {
		return nil, err
	}
	if d.closed {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	d.conn = c
	if tcp, ok := c.(*net.TCPConn); ok {
		// What is not yet sent when the connection is given up, or the program
		// killed, must not arrive later beside the next connection's records.
		if err := tcp.SetLinger(0); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	return &deadlineConn{Conn: c, timeout: d.writeTimeout, received: &d.received}, nil
}

// errSilence is why a request ends: nothing at all has come for so long.
var errSilence = errors.New("no answer, and nothing else has been received")

// silence calls cancel once nothing has been received for a time: an answer that is
// large and comes over a slow link is waited for as long as it is coming. stop
// ends that.
func (d *dialer) silence(limit time.Duration, cancel context.CancelCauseFunc) (stop func()) {
	was := d.received.Load()
	var t *time.Timer
	var mu sync.Mutex // guards t, which its own function sets again
	mu.Lock()
	defer mu.Unlock()
	t = time.AfterFunc(limit, func() {
		mu.Lock()
		defer mu.Unlock()
		if now := d.received.Load(); now != was {
			was = now
			t.Reset(limit)
			return
		}
		cancel(fmt.Errorf("%w for %s", errSilence, limit))
	})
	return func() {
		mu.Lock()
		defer mu.Unlock()
		t.Stop()
	}
}

func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.conn != nil {
		_ = d.conn.Close()
	}
}

// refused reports whether every dial, of one or several servers, was refused.
func (d *dialer) refused() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err != nil && !d.other
}

func (d *dialer) last() (addr string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.addr, d.err
}

// deadlineConn bounds every write: a peer that reads nothing is an error, not a
// stuck goroutine. The bound is for each writeStep bytes of it, since a large
// record may take long on a slow link. It counts what is received.
type deadlineConn struct {
	net.Conn
	timeout  time.Duration
	received *atomic.Int64
}

const writeStep = 64 << 10

func (c *deadlineConn) Write(b []byte) (int, error) {
	n := 0
	for {
		if err := c.Conn.SetWriteDeadline(time.Now().Add(c.timeout)); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(b[n:min(len(b), n+writeStep)])
		if n += m; err != nil || n == len(b) {
			return n, err
		}
	}
}

func (c *deadlineConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.Add(int64(n))
	return n, err
}
