package config

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLocate(t *testing.T) {
	const text = `# a comment
top = 1 # another
[a]
b.c = "x # not a comment" # [[stream]]
'quoted key' = 'y'
d = """
[not.a.table]
key = 1
""""
e = '''
z = 1'''
[[s]]
list = [ 1, # one
  { k = 1, l = { m = [2, 3] } },
  "]",
]
[s.sub]
x = "\"\\"
y = "a\
`
	// No key stands behind the unfinished string, which only ends the walk.
	want := lines{
		"top": 2, "a": 3, "a.b": 4, "a.b.c": 4, "a.quoted key": 5, "a.d": 6, "a.e": 10,
		"s": 12, "s[0]": 12, "s[0].list": 13, "s[0].list[0]": 13, "s[0].list[1]": 14, "s[0].list[1].k": 14,
		"s[0].list[1].l": 14, "s[0].list[1].l.m": 14, "s[0].list[1].l.m[0]": 14, "s[0].list[1].l.m[1]": 14, "s[0].list[2]": 15,
		"s[0].sub": 17, "s[0].sub.x": 18, "s[0].sub.y": 19,
	}
	got := locate(text)
	if !maps.Equal(got, want) {
		for k, v := range want {
			if got[k] != v {
				t.Errorf("%s: line %d, want %d", k, got[k], v)
			}
		}
		for k, v := range got {
			if _, ok := want[k]; !ok {
				t.Errorf("%s: line %d, want none", k, v)
			}
		}
	}
	if n := got.of("s[0].sub.none.at.all"); n != 17 {
		t.Errorf("an unknown key is placed at line %d, want its table's 17", n)
	}
}

// Whatever a file holds: no panic, no endless walk, and either a configuration
// that Validate accepts or one line per problem.
func FuzzParse(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.toml")
	if err != nil || len(paths) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parse("x.toml", text)
		if err == nil {
			if err := c.Validate(); err != nil {
				t.Fatalf("accepted, then refused: %v", err)
			}
			return
		}
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !strings.HasPrefix(line, "x.toml:") || !strings.Contains(line, "; ") {
				t.Fatalf("not a whole message: %q", line)
			}
		}
		locate(text)
	})
}
