package meta

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

var errIndexDamaged = errors.New("meta: index damaged")

const (
	// One transaction of a flush: far below Badger's limit, which is 15 % of a memtable. It takes values until it has
	// txnShare of one, and then has at most inlineBytes more: 1/16 of the smallest one and 64 KiB are 192 of 307 KiB.
	txnCount = 2000
	txnShare = 16

	// indexBytesMin makes memtables of 2 MiB.
	indexBytesMin = 10 << 20

	// memTables is how many full tables may wait to be written.
	memTables = 2

	// inlineBytes is the longest value that lives in the tables; longer ones go
	// to the value log. Nearly all are shorter, so that there is little to
	// collect there.
	inlineBytes = 64 << 10

	blockBytes = 4 << 10
)

// index is the Badger side of the store. Its state belongs to whoever holds
// Store.flushMu; reads of entries are free for all.
type index struct {
	db       *badger.DB
	memTable int64 // bytes of a table being filled
	txnBytes int
	state    state
}

// badgerOptions sets everything that bears on memory, files or durability: the
// defaults are made for servers. SyncWrites is off because $meta is the truth.
//
// Of memory, a fifth goes to each table being filled, and to the cache of blocks; two fifths to the cache of the tables'
// own indexes. A second table is filled while the first is written.
func badgerOptions(dir string, memory int64, log *slog.Logger) badger.Options {
	o := badger.DefaultOptions(dir)
	o.Logger = badgerLogger{log}
	o.MemTableSize = memory / 5
	o.NumMemtables = memTables
	o.NumLevelZeroTables = 2
	o.NumLevelZeroTablesStall = 4
	o.BaseTableSize = 2 << 20
	o.BaseLevelSize = 8 << 20
	o.LevelSizeMultiplier = 10
	o.TableSizeMultiplier = 2
	o.MaxLevels = 7
	o.BlockSize = blockBytes
	o.BlockCacheSize = memory / 5
	o.IndexCacheSize = 2 * memory / 5
	o.BloomFalsePositive = 0.01
	o.Compression = options.Snappy
	o.ChecksumVerificationMode = options.OnBlockRead
	o.VerifyValueChecksum = true
	o.ValueThreshold = inlineBytes
	o.VLogPercentile = 0
	o.ValueLogFileSize = 16 << 20
	o.ValueLogMaxEntries = 1 << 20
	o.NumCompactors = 2
	o.CompactL0OnClose = false
	o.LmaxCompaction = true
	o.NumVersionsToKeep = 1
	o.NumGoroutines = 2
	o.DetectConflicts = false
	o.MetricsEnabled = true // see IndexWritten
	o.SyncWrites = false
	o.InMemory, o.ReadOnly, o.BypassLockGuard = false, false, false
	o.EncryptionKey = nil
	o.NamespaceOffset = -1
	return o
}

// openIndex opens Badger and believes nothing it cannot check. A panic inside
// Badger is damage like any other.
func openIndex(dir string, memory int64, log *slog.Logger) (x *index, err error) {
	if err := precheck(dir); err != nil {
		return nil, err
	}
	var db *badger.DB
	defer func() {
		if p := recover(); p != nil {
			x, err = nil, fmt.Errorf("%w: Badger gave up: %v", errIndexDamaged, firstLine(p))
		}
		if err != nil && db != nil {
			err = errors.Join(err, closeBadger(db))
		}
	}()
	if db, err = badger.Open(badgerOptions(dir, memory, log)); err != nil {
		return nil, fmt.Errorf("%w: %v", errIndexDamaged, firstLine(err))
	}
	x = &index{db: db, memTable: memory / 5, txnBytes: int(memory / 5 / txnShare)}
	if err := x.verify(); err != nil {
		return nil, err
	}
	return x, nil
}

// firstLine keeps reports to one line.
func firstLine(v any) string {
	s, _, _ := strings.Cut(fmt.Sprint(v), "\n")
	return strings.TrimSpace(s[:min(len(s), 200)])
}

// closeBadger closes db; a panic there is an error, too.
func closeBadger(db *badger.DB) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("meta: close Badger: %v", firstLine(p))
		}
	}()
	if err := db.Close(); err != nil {
		return fmt.Errorf("meta: close Badger: %w", err)
	}
	return nil
}

// verify reads the whole index and compares it with its own digest.
func (x *index) verify() error {
	var saved state
	found := false
	var seen state
	err := x.iterate(nil, func(item *badger.Item) error {
		ikey := item.Key()
		return item.Value(func(ivalue []byte) error {
			if len(ikey) == 1 && ikey[0] == spaceState {
				var err error
				found = true
				saved, err = decodeState(ivalue)
				return err
			}
			if len(ikey) == 0 || ikey[0] != spaceDurable && ikey[0] != spaceHint {
				return fmt.Errorf("%w: foreign key %q", errIndexDamaged, clip(ikey))
			}
			seen.count(ikey, ivalue, 1)
			return nil
		})
	})
	switch {
	case err != nil && !errors.Is(err, errIndexDamaged):
		return fmt.Errorf("%w: %v", errIndexDamaged, firstLine(err))
	case err != nil:
		return err
	case !found && seen.keys > 0:
		return fmt.Errorf("%w: its state is missing", errIndexDamaged)
	case seen.keys != saved.keys || seen.sum != saved.sum || seen.live != saved.live:
		return fmt.Errorf("%w: %d entries where %d were written, or others", errIndexDamaged, seen.keys, saved.keys)
	}
	x.state = saved
	return nil
}

// iterate calls fn for every entry whose index key begins with prefix.
func (x *index) iterate(prefix []byte, fn func(*badger.Item) error) error {
	return x.iterateFrom(prefix, prefix, fn)
}

// errStop ends an iteration without being an error.
var errStop = errors.New("stop")

// iterateFrom is iterate beginning at an index key.
func (x *index) iterateFrom(from, prefix []byte, fn func(*badger.Item) error) error {
	txn := x.db.NewTransaction(false)
	defer txn.Discard()
	o := badger.DefaultIteratorOptions
	o.PrefetchValues = false // nearly all values are inline; prefetching costs goroutines
	o.Prefix = prefix
	it := txn.NewIterator(o)
	defer it.Close()
	for it.Seek(from); it.Valid(); it.Next() {
		if err := fn(it.Item()); errors.Is(err, errStop) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return nil
}

// get looks up one key.
func (x *index) get(space byte, key []byte) ([]byte, bool, error) {
	txn := x.db.NewTransaction(false)
	defer txn.Discard()
	var small [128]byte
	ikey := indexKey(small[:0], space, key)
	item, err := txn.Get(ikey)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("meta: read key %q: %w", clip(key), err)
	}
	var out []byte
	err = item.Value(func(ivalue []byte) error {
		stored, value, err := splitEntry(ikey, ivalue)
		if err == nil && !bytes.Equal(stored, key) {
			err = fmt.Errorf("%w: key %q holds another", errIndexDamaged, clip(key))
		}
		out = clone(value)
		return err
	})
	if err != nil {
		return nil, false, fmt.Errorf("meta: read key %q: %w", clip(key), err)
	}
	return out, true, nil
}

// edit is one change to the index.
type edit struct {
	ikey, ivalue []byte
	deleted      bool
}

// edits turns a generation into changes of the index.
func edits(g *generation) []edit {
	out := make([]edit, 0, g.count())
	add := func(space byte) func(*node) {
		return func(n *node) {
			key := []byte(n.key)
			e := edit{ikey: indexKey(make([]byte, 0, 1+len(key)), space, key), deleted: n.deleted}
			if !n.deleted {
				e.ivalue = indexValue(key, n.value)
			}
			out = append(out, e)
		}
	}
	g.durable.prefix(nil, add(spaceDurable))
	g.hints.prefix(nil, add(spaceHint))
	return out
}

// apply writes changes and the state that final makes of the one after them.
// When they do not fit one transaction the state says so until the last one.
func (x *index) apply(list []edit, final func(*state)) error {
	for {
		n, size := 0, 0
		for n < len(list) && n < txnCount && size < x.txnBytes {
			size += len(list[n].ikey) + len(list[n].ivalue)
			n++
		}
		finish := final
		if n < len(list) {
			finish = func(s *state) { s.partial = true }
		}
		if err := x.transact(list[:n], finish); err != nil {
			return err
		}
		if list = list[n:]; len(list) == 0 {
			return nil
		}
	}
}

// transact applies one transaction's changes together with their state.
func (x *index) transact(list []edit, finish func(*state)) error {
	next := x.state
	txn := x.db.NewTransaction(true)
	defer txn.Discard()
	for i := range list {
		if err := next.edit(txn, &list[i]); err != nil {
			return fmt.Errorf("meta: write index: %w", err)
		}
	}
	finish(&next)
	if next == x.state {
		return nil
	}
	if err := txn.Set([]byte{spaceState}, next.encode()); err != nil {
		return fmt.Errorf("meta: write index: %w", err)
	}
	if err := txn.Commit(); err != nil {
		return fmt.Errorf("meta: write index: %w", err)
	}
	x.state = next
	return nil
}

// edit puts one change into txn and its difference into the digest.
func (s *state) edit(txn *badger.Txn, e *edit) error {
	item, err := txn.Get(e.ikey)
	switch {
	case errors.Is(err, badger.ErrKeyNotFound):
		if e.deleted {
			return nil
		}
	case err != nil:
		return err
	default:
		same := false
		if err := item.Value(func(old []byte) error {
			if same = !e.deleted && bytes.Equal(old, e.ivalue); !same {
				s.count(e.ikey, old, -1)
			}
			return nil
		}); err != nil || same {
			return err
		}
	}
	if e.deleted {
		return txn.Delete(e.ikey)
	}
	s.count(e.ikey, e.ivalue, 1)
	return txn.Set(e.ikey, e.ivalue)
}

// dropHints removes every hint.
func (x *index) dropHints() error {
	for {
		var list []edit
		err := x.iterate([]byte{spaceHint}, func(item *badger.Item) error {
			list = append(list, edit{ikey: item.KeyCopy(nil), deleted: true})
			if len(list) == txnCount {
				return errStop
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("meta: drop hints: %w", err)
		}
		if err := x.apply(list, func(s *state) { s.partial = len(list) == txnCount }); err != nil {
			return err
		}
		if len(list) < txnCount {
			return nil
		}
	}
}

// collect lets Badger give back what its value log holds in vain.
func (x *index) collect() {
	for range 4 { // each call rewrites one file at most
		if x.db.RunValueLogGC(0.5) != nil {
			return
		}
	}
}

// collectEvery is how often collect runs while there are changes.
const collectEvery = 10 * time.Minute
