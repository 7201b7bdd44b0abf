package seglog

import "sync"

// openFilesMax is how many unused segment files (and indexes of sealed segments) the process keeps open, over all logs.
// Files in use and active segments come on top.
const openFilesMax = 64

var openFiles = lru{max: openFilesMax}

// lru closes the segment files that were not used for longest. Lock order: lru.mu is never held while a segment's mu is
// taken.
type lru struct {
	mu         sync.Mutex
	max        int
	n          int      // guarded by mu
	head, tail *segment // guarded by mu: most and least recently used
}

// lruElement links a segment into the list, guarded by lru.mu.
type lruElement struct {
	prev, next *segment
	linked     bool
}

// touch makes s the most recently used and closes the least recently used when there are too many.
func (c *lru) touch(s *segment) {
	c.mu.Lock()
	if c.head == s {
		c.mu.Unlock()
		return
	}
	c.unlink(s)
	s.lruElement = lruElement{next: c.head, linked: true}
	if c.head != nil {
		c.head.prev = s
	}
	c.head = s
	if c.tail == nil {
		c.tail = s
	}
	c.n++
	var victim *segment
	if c.n > c.max {
		victim = c.tail
		c.unlink(victim)
	}
	c.mu.Unlock()
	if victim != nil {
		// In use again by now: its release puts it back. An error of closing a file that was only read is no news.
		_ = victim.closeIdle()
	}
}

// drop takes s out of the list and closes its file.
func (c *lru) drop(s *segment) {
	c.mu.Lock()
	c.unlink(s)
	c.mu.Unlock()
	_ = s.closeIdle()
}

func (c *lru) unlink(s *segment) {
	if !s.linked {
		return
	}
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		c.head = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		c.tail = s.prev
	}
	s.lruElement = lruElement{}
	c.n--
}
