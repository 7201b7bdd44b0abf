package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const (
	root   = "../.."
	module = "edgehub"
)

// source is one parsed Go file of the module.
type source struct {
	path  string // from the root, with slashes
	dir   string
	test  bool
	lines int
	file  *ast.File
	fset  *token.FileSet
}

var sources = sync.OnceValues(func() ([]source, error) {
	var all []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != root && (strings.HasPrefix(base, ".") || base == "testdata" || base == "bin" || base == "data" || base == "dist") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		all = append(all, source{
			path: rel, dir: path.Dir(rel), test: strings.HasSuffix(rel, "_test.go"),
			lines: strings.Count(string(text), "\n"), file: file, fset: fset,
		})
		return nil
	})
	return all, err
})

func load(t *testing.T) []source {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d Go files found under %s", len(all), root)
	}
	return all
}

// within tells whether a path is a directory of the list or lies in one.
func within(p string, dirs ...string) bool {
	for _, dir := range dirs {
		if p == dir || strings.HasPrefix(p, dir+"/") {
			return true
		}
	}
	return false
}

func (s *source) lineOf(pos token.Pos) int { return s.fset.Position(pos).Line }
