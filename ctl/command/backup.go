package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"edgehub/internal/vfs"
	"edgehub/storage/inspect"
)

func (a *app) backupCommand() *cobra.Command {
	var dir string
	var replace bool
	c := dataDirFlag(&cobra.Command{
		Use: "backup FILE|DIR", Short: "Copy the hub's data, consistently, while it runs", Args: takes("FILE|DIR"),
		Long: "backup writes everything that is durable now: the streams, the metadata with sessions, retained\n" +
			"messages and cursors, and who the hub is. FILE becomes a tar; \"-\" writes it to standard output; a\n" +
			"directory that exists and is empty, or a name that ends with /, becomes a directory.\n\n" +
			"It is not restored by copying it back: see `hubctl restore`.",
		Example: "  hubctl backup /mnt/usb/edge-1.tar\n  hubctl backup - | ssh keeper 'cat > edge-1.tar'",
		RunE: func(c *cobra.Command, args []string) error {
			if info, err := os.Stat(args[0]); err == nil && info.Mode().IsRegular() && !replace {
				return fmt.Errorf("%s exists; name another file, or give --replace", args[0])
			}
			return a.backup(c.Context(), args[0], dir)
		},
	}, &dir)
	c.Flags().BoolVar(&replace, "replace", false, "write over FILE, once the new backup is complete")
	return c
}

// backupSource writes the tar of a backup; bytes is about how much that is, 0: not known.
func (a *app) backupSource(ctx context.Context, dir string) (write func(io.Writer) error, bytes int64, err error) {
	if dir != "" {
		d, err := inspect.Open(vfs.OS, dir)
		if err != nil {
			return nil, 0, err
		}
		return func(w io.Writer) error {
			_, err := d.Backup(ctx, w, a.Version)
			return err
		}, 0, nil
	}
	hub, err := a.hub()
	if err != nil {
		return nil, 0, err
	}
	st, err := hub.Status(ctx)
	if err != nil {
		return nil, 0, err
	}
	for i := range st.Streams {
		_, n, _, _ := st.Streams[i].Totals()
		bytes += n
	}
	return func(w io.Writer) error { return hub.Backup(ctx, w) }, bytes, nil
}

func (a *app) backup(ctx context.Context, target, dir string) error {
	source, bytes, err := a.backupSource(ctx, dir)
	if err != nil {
		return err
	}
	m := a.progress("backup", bytes)
	write := func(w io.Writer) error { return source(m.writer(w)) }
	if target == "-" {
		defer m.end()
		return write(a.Stdout)
	}
	var got inspect.Contents
	if info, serr := os.Stat(target); serr == nil && info.IsDir() || strings.HasSuffix(target, "/") {
		got, err = backupDir(target, write)
	} else {
		got, err = backupFile(target, write)
	}
	m.end()
	if err != nil {
		return err
	}
	return show(a, got, func(w io.Writer, c inspect.Contents) {
		_, _ = fmt.Fprintf(w, "%s: %s, %s, of hub %s, epoch %d\n", target, plural(int64(len(c.Files)), "file"), size(c.Bytes), c.Instance, c.Epoch)
	})
}

// both runs a writer and a reader of one stream and returns what the reader made of it. The writer's error counts
// first: the reader only sees that the stream ended.
func both(write func(io.Writer) error, read func(io.Reader) (inspect.Contents, error)) (inspect.Contents, error) {
	pr, pw := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		err := write(pw)
		_ = pw.CloseWithError(err) // always nil
		wrote <- err
	}()
	got, err := read(pr)
	_ = pr.CloseWithError(errStopped) // always nil
	if werr := <-wrote; werr != nil && !errors.Is(werr, errStopped) {
		return got, werr
	}
	return got, err
}

// errStopped ends a writer whose reader has had enough.
var errStopped = errors.New("stopped")

func backupDir(target string, write func(io.Writer) error) (inspect.Contents, error) {
	return both(write, func(r io.Reader) (inspect.Contents, error) { return inspect.Unpack(vfs.OS, r, target) })
}

// backupFile writes the tar beside its name first, and proves it on the way.
func backupFile(target string, write func(io.Writer) error) (c inspect.Contents, err error) {
	part := target + ".part"
	f, err := vfs.OS.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return c, err
	}
	defer func() {
		if err != nil {
			_ = vfs.OS.Remove(part) // nothing to be told beside the error
		}
	}()
	c, err = both(write, func(r io.Reader) (inspect.Contents, error) {
		return inspect.Examine(io.TeeReader(r, io.NewOffsetWriter(f, 0)))
	})
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return c, err
	}
	if err = vfs.OS.Rename(part, target); err != nil {
		return c, err
	}
	return c, vfs.OS.SyncDir(filepath.Dir(target))
}

func (a *app) restoreCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: "restore FILE|DIR", Short: "Make a data directory of a backup", Args: takes("FILE|DIR"),
		Long: "restore proves a backup and unpacks it into the directory of --data-dir, which must be empty or\n" +
			"missing; else that of --config. Then a hub can be started on it.\n\n" +
			"The restored hub has an epoch of its own. What the hub had forwarded after the backup was made is\n" +
			"at the remote and not here: its uplinks notice and say `ahead` or `diverged` instead of guessing.",
		RunE: func(_ *cobra.Command, args []string) error { return a.restore(args[0], dir) },
	}
	c.Flags().StringVar(&dir, "data-dir", "", "the data directory to make; it must be empty or missing")
	return c
}

// restored is what `restore` prints as JSON.
type restored struct {
	DataDir  string           `json:"data_dir"`
	Instance string           `json:"instance"`
	Epoch    uint32           `json:"epoch"` // the next start gets the one behind it
	Backup   inspect.Contents `json:"backup"`
}

func (a *app) restore(from, dir string) error {
	if dir == "" {
		if a.config == "" {
			return usagef("restore: give the directory to make with --data-dir, or the hub's configuration with --config")
		}
		cfg, err := loadConfig(a.config)
		if err != nil {
			return err
		}
		dir = cfg.Hub.DataDir
	}
	out := restored{DataDir: dir}
	read := func(r io.Reader) (inspect.Contents, error) {
		c, info, err := inspect.Restore(vfs.OS, r, dir)
		out.Instance, out.Epoch = info.Instance, info.Epoch
		return c, err
	}
	var err error
	if out.Backup, err = a.open(from, read); err != nil {
		return err
	}
	return show(a, out, func(w io.Writer, r restored) {
		_, _ = fmt.Fprintf(w, "%s: %s, %s, hub %s; the next start begins epoch %d\n", dir, plural(int64(len(r.Backup.Files)), "file"), size(r.Backup.Bytes), r.Instance, r.Epoch+1)
	})
}

// open reads a backup from a file, a directory or standard input.
func (a *app) open(from string, read func(io.Reader) (inspect.Contents, error)) (inspect.Contents, error) {
	if from == "-" {
		return read(a.Stdin)
	}
	info, err := os.Stat(from)
	if err != nil {
		return inspect.Contents{}, err
	}
	if info.IsDir() {
		return both(func(w io.Writer) error { return inspect.Pack(vfs.OS, from, w) }, read)
	}
	f, err := os.Open(from)
	if err != nil {
		return inspect.Contents{}, err
	}
	defer func() { _ = f.Close() }() // open for reading only
	m := a.progress("restore", info.Size())
	defer m.end()
	return read(m.reader(f))
}
