package config

import "strings"

// nearest names the valid key closest to an unknown one. A key of the same
// table is closer than one of another table unless that one's name is the same.
func nearest(inTable, name string) string {
	best, bestCost := "", -1
	offer := func(shown string, cost int) {
		if bestCost < 0 || cost < bestCost {
			best, bestCost = shown, cost
		}
	}
	for i := range tables {
		t := &tables[i]
		if inTable == "" {
			offer(t.header(), 2*distance(name, t.name))
		}
		for j := range t.keys {
			k := t.keys[j].name
			cost := min(2*distance(name, k), 2*distance(name, last(k))+1)
			if t.name != inTable {
				cost += 2
			}
			offer(t.name+"."+k, cost)
		}
	}
	return best
}

func (t *table) header() string {
	if t.array {
		return "[[" + t.name + "]]"
	}
	return "[" + t.name + "]"
}

func last(dotted string) string { return dotted[strings.LastIndexByte(dotted, '.')+1:] }

// distance counts the insertions, deletions and replacements between two words.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
