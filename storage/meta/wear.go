package meta

import "expvar"

// IndexWritten returns the bytes that Badger has written since the start of the process: the journal of what it was
// given, the tables made of that, the value log, and compactions. Badger counts for all its databases together.
func (s *Store) IndexWritten() int64 {
	return 2*expvarInt("badger_write_bytes_l0") + expvarInt("badger_write_bytes_vlog") + expvarSum("badger_write_bytes_compaction")
}

func expvarInt(name string) int64 {
	if v, ok := expvar.Get(name).(*expvar.Int); ok {
		return v.Value()
	}
	return 0
}

func expvarSum(name string) (n int64) {
	if m, ok := expvar.Get(name).(*expvar.Map); ok {
		m.Do(func(kv expvar.KeyValue) {
			if v, ok := kv.Value.(*expvar.Int); ok {
				n += v.Value()
			}
		})
	}
	return n
}
