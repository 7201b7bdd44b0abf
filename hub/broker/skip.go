package broker

// skip takes a reader that found nothing for its session over the segments whose summaries say that there is nothing
// either. The answer holds for a while, so it is not asked for at every read.
func (r *reader) skip(p *partition, j *job, next, committed int64) int64 {
	if r.quiet.part == p.ID && next < r.quiet.until && next >= r.quiet.from {
		return next
	}
	to, until := p.Log.NextMatch(next, func(key []byte) bool {
		r.subs = j.matcher.Match(string(key), r.subs[:0])
		return len(r.subs) > 0
	})
	r.quiet.part, r.quiet.from, r.quiet.until = p.ID, to, until
	to = min(to, committed)
	if to > next {
		r.b.Stats.CatchupSkipped.Add(to - next)
		return to
	}
	return next
}

// quiet is for which offsets the summaries have been asked.
type quiet struct {
	part        uint32
	from, until int64
}
