package topic_test

import (
	"fmt"
	"testing"

	"edgehub/hub/topic"
	"edgehub/internal/scaletest"
)

// scaleStride visits numbers all over a range, so that caches help as little as they would in a hub.
const scaleStride = 7_919_003

// BenchmarkScale matches against many filters, and looks up among many names, of which one concerns the topic. "hot"
// uses a thousand of the topics, the others all of them: what those cost more is cache misses.
func BenchmarkScale(b *testing.B) {
	n := scaletest.Size(b)
	for _, c := range []struct{ name, filter, topic string }{
		{"exact", "devices/%d/telemetry", "devices/%d/telemetry"},
		{"wildcard", "devices/%d/+/telemetry", "devices/%d/a/telemetry"},
		{"wildcard-first", "+/%d/telemetry/#", "site/%d/telemetry/x"},
	} {
		small, large := scaleTree(c.filter, n/10), scaleTree(c.filter, n)
		for _, use := range []string{"hot", "all"} {
			smallTopics, largeTopics := scaleTopics(c.topic, n/10, use == "hot"), scaleTopics(c.topic, n, use == "hot")
			b.Run(fmt.Sprintf("filters/%s/%s", c.name, use), func(b *testing.B) {
				scaletest.Compare(b, matchOne(b, small, smallTopics), matchOne(b, large, largeTopics))
			})
		}
	}
	small, large := scaleNames(n/10), scaleNames(n)
	for _, use := range []string{"hot", "all"} {
		smallTopics, largeTopics := scaleTopics("devices/%d/telemetry", n/10, use == "hot"), scaleTopics("devices/%d/telemetry", n, use == "hot")
		b.Run("names/replace/"+use, func(b *testing.B) {
			scaletest.Compare(b, func(i int) { small.Set(smallTopics[i%len(smallTopics)], i) }, func(i int) { large.Set(largeTopics[i%len(largeTopics)], i) })
		})
	}
	b.Run("names/match", func(b *testing.B) {
		scaletest.Compare(b, findOne(b, small, n/10), findOne(b, large, n))
	})
}

func scaleTree(filter string, n int) *topic.Tree[int, int] {
	t := new(topic.Tree[int, int])
	for i := range n {
		t.Set(fmt.Sprintf(filter, i), i, i)
	}
	return t
}

func scaleNames(n int) *topic.Names[int] {
	t := new(topic.Names[int])
	for i := range n {
		t.Set(fmt.Sprintf("devices/%d/telemetry", i), i)
	}
	return t
}

// scaleTopics are topics spread over the n that there are.
func scaleTopics(format string, n int, hot bool) []string {
	count := n
	if hot {
		count = min(1000, n)
	}
	list := make([]string, count)
	for i := range list {
		list[i] = fmt.Sprintf(format, i*scaleStride%n)
	}
	return list
}

func matchOne(b *testing.B, t *topic.Tree[int, int], topics []string) func(int) {
	var dst []int
	return func(i int) {
		if dst = t.Match(topics[i%len(topics)], dst[:0]); len(dst) != 1 {
			b.Fatalf("%d matches", len(dst))
		}
	}
}

// findOne is what a new subscription asks: the retained names under a filter.
func findOne(b *testing.B, t *topic.Names[int], n int) func(int) {
	filters := scaleTopics("devices/%d/+", n, true)
	return func(i int) {
		found := 0
		t.Match(filters[i%len(filters)], func(string, int) bool { found++; return true })
		if found != 1 {
			b.Fatalf("%d names", found)
		}
	}
}
