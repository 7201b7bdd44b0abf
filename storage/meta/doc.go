// Package meta keeps the hub's small state: sessions, subscriptions, cursors,
// floors, users (durable keys), and what can be derived again, such as the
// index of a segment (hints).
//
// # Two stores, one truth
//
// Durable keys live in the log of the system stream $meta. Badger, in meta/,
// is an index of that log and of the hints: it makes lookups cheap, and it may
// be behind the log, or lost, at any time.
//
//	Put ──► overlay (memory) ──► $meta (Commit: one pwrite) ──► Badger (Flush)
//	Get ◄── overlay, else Badger
//
// The overlay holds what Badger does not have yet. A flush seals it, writes it
// to Badger and drops it.
//
// # What a crash leaves
//
//   - A stop on a full disk leaves Badger unclosed (see Store.Close): to the
//     next start that is a kill.
//   - Process kill: everything a Commit returned for is in $meta. Badger is at
//     some earlier flush; Open applies the log from its watermark on.
//   - Power cut: everything a Sync returned for is in $meta. Badger may have
//     lost or torn anything: see below.
//   - A kill inside a flush of several transactions: durable keys are replayed;
//     hints are dropped, so that hints are always those of one moment.
//
// # Trust in the index
//
// The index keeps a count and a digest of everything in it, changed in the same
// transaction as the keys. Open reads the whole index and compares; one lost
// table, one revived version, one flipped bit and it is moved to quarantine/
// and built again from $meta. Badger itself would skip a damaged table in
// silence, delete tables its manifest does not name, and end the process on a
// garbled footer, so its files are checked before it sees them.
//
// When the index is whole and the log has lost its end (a power cut, a removed
// directory), the index knows more: its keys are written to the log again.
//
// # Compaction of $meta
//
// When the log is much larger than its live keys, it is rolled, the index is
// flushed, every live key that has no newer record is appended again, all is
// fdatasynced, and the segments before the roll are removed, oldest first.
// At each point a replay of what is there, in order, gives the live keys:
// before the removals because copies repeat the newest value, after each of
// them because every live key has a record behind the roll.
//
// Assumptions: seglog's, and that one process owns the directory (datadir).
package meta
