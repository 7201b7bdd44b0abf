package stream

import (
	"fmt"
	"sync"

	"edgehub/storage/seglog"
)

// openAtOnce is how many logs are opened at the same time. A start makes durable what it finds, and the disk makes the
// names and data of many logs durable at about the price of one: a thousand partitions after a kill are a matter of
// their waiting for the journal together. It bounds what the scans of their ends take in memory, too.
const openAtOnce = 32

// openLogs opens the log of every partition.
func (s *Set) openLogs() error {
	n := s.o.OpenAtOnce
	if n <= 0 {
		n = openAtOnce
	}
	var mu sync.Mutex // guards errs and s.Recoveries
	var errs []error
	next := make(chan *Partition)
	var wg sync.WaitGroup
	for range min(n, len(s.Partitions)) {
		wg.Go(func() {
			for p := range next {
				rec, err := s.openLog(p)
				mu.Lock()
				if s.Recoveries[p.Name] = rec; err != nil {
					errs = append(errs, fmt.Errorf("stream %s: %w", p.Name, err))
				}
				mu.Unlock()
			}
		})
	}
	for _, p := range s.Partitions {
		next <- p
	}
	close(next)
	wg.Wait()
	for _, p := range s.Partitions {
		if p.Log != nil {
			p.Stream.bytes.Add(p.Log.Bytes())
			p.Stream.records.Add(p.Log.Next() - p.Log.First())
		}
	}
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return fmt.Errorf("%w (and %d more)", errs[0], len(errs)-1)
}

func (s *Set) openLog(p *Partition) (seglog.Recovery, error) {
	sp := &p.Stream.Spec
	log, rec, err := seglog.Open(seglog.Options{
		FS: s.o.FS, Dir: partitionDir(s.o.Dir, sp.Name, p.Index), Name: p.Name, Salt: s.o.Salt,
		Codec: sp.Codec, SegmentBytes: sp.SegmentBytes, IndexBytes: indexBytes(sp.SegmentBytes), Index: s.o.Index, QuarantineDir: s.o.QuarantineDir,
	})
	if err != nil {
		return rec, err
	}
	p.Log = log
	p.committed.Store(log.Next())
	p.counted.Store(log.Next())
	return rec, nil
}
