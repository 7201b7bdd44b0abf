package archtest

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// The limits. The tail of the distribution is what makes a source hard to read,
// so the hard limits are about the longest, not the mean.
const (
	functionLinesMax   = 80
	functionLinesP95   = 50
	functionLinesP50   = 14
	fileLinesMax       = 800
	testFileLinesMax   = 1200
	interfaceMethodMax = 7
	nolintMax          = 20
)

func TestFileLength(t *testing.T) {
	for _, s := range load(t) {
		most := fileLinesMax
		if s.test {
			most = testFileLinesMax
		}
		if s.lines > most {
			t.Errorf("%s has %d lines, at most %d", s.path, s.lines, most)
		}
	}
}

func TestFunctionLength(t *testing.T) {
	var lengths []int
	for _, s := range load(t) {
		for _, d := range s.file.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			n := s.lineOf(fn.End()) - s.lineOf(fn.Pos()) + 1
			if n > functionLinesMax {
				t.Errorf("%s:%d: %s has %d lines, at most %d", s.path, s.lineOf(fn.Pos()), fn.Name.Name, n, functionLinesMax)
			}
			if !s.test {
				lengths = append(lengths, n)
			}
		}
	}
	slices.Sort(lengths)
	p50, p95 := lengths[len(lengths)/2], lengths[len(lengths)*95/100]
	t.Logf("%d functions: median %d lines, 95th percentile %d, longest %d", len(lengths), p50, p95, lengths[len(lengths)-1])
	if p50 > functionLinesP50 || p95 > functionLinesP95 {
		t.Errorf("functions grow long: median %d lines (at most %d), 95th percentile %d (at most %d)", p50, functionLinesP50, p95, functionLinesP95)
	}
}

// An interface belongs to its consumer and asks for no more than that needs.
func TestInterfaceSize(t *testing.T) {
	for _, s := range load(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if i, ok := n.(*ast.InterfaceType); ok && i.Methods.NumFields() > interfaceMethodMax {
				t.Errorf("%s:%d: an interface of %d methods, at most %d", s.path, s.lineOf(i.Pos()), i.Methods.NumFields(), interfaceMethodMax)
			}
			return true
		})
	}
}

// Every package says what it is for, attached to its clause: a blank line
// between the two would drop it.
func TestPackagesHaveComments(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range load(t) {
		if strings.HasSuffix(s.file.Name.Name, "_test") {
			continue
		}
		documented[s.dir] = documented[s.dir] || s.file.Doc.Text() != ""
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no comment", dir)
		}
	}
}

func TestExportedNamesHaveComments(t *testing.T) {
	for _, s := range load(t) {
		if s.test || s.file.Name.Name == "main" {
			continue
		}
		for _, d := range s.file.Decls {
			for _, name := range undocumented(d) {
				t.Errorf("%s:%d: exported %s has no comment", s.path, s.lineOf(name.Pos()), name.Name)
			}
		}
	}
}

// undocumented returns the exported names of a declaration that have no comment.
// One comment above a group of constants or variables is enough for the group.
func undocumented(d ast.Decl) []*ast.Ident {
	var names []*ast.Ident
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Name.IsExported() && d.Doc.Text() == "" && (d.Recv == nil || exportedReceiver(d.Recv)) {
			names = append(names, d.Name)
		}
	case *ast.GenDecl:
		if d.Tok == token.IMPORT || d.Doc.Text() != "" && d.Tok != token.TYPE {
			return nil
		}
		for _, spec := range d.Specs {
			names = append(names, undocumentedSpec(spec, d.Doc.Text() != "")...)
		}
	}
	return names
}

func undocumentedSpec(spec ast.Spec, groupComment bool) []*ast.Ident {
	var names []*ast.Ident
	switch spec := spec.(type) {
	case *ast.TypeSpec:
		if spec.Name.IsExported() && spec.Doc.Text() == "" && !groupComment {
			names = append(names, spec.Name)
		}
	case *ast.ValueSpec:
		for _, name := range spec.Names {
			if name.IsExported() && spec.Doc.Text() == "" && spec.Comment.Text() == "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// exportedReceiver tells whether a method's type can be named from outside.
// Methods that only satisfy an interface of the standard library are documented there.
func exportedReceiver(recv *ast.FieldList) bool { return ast.IsExported(receiver(recv)) }

// A linter is silenced rarely, and never without saying why.
func TestNolint(t *testing.T) {
	count := 0
	for _, s := range load(t) {
		for _, group := range s.file.Comments {
			for _, c := range group.List {
				rest, ok := strings.CutPrefix(c.Text, "//nolint")
				if !ok {
					continue
				}
				count++
				if _, reason, ok := strings.Cut(rest, "// "); !ok || strings.TrimSpace(reason) == "" || !strings.HasPrefix(rest, ":") {
					t.Errorf("%s:%d: %s: name the linter and the reason: //nolint:NAME // why", s.path, s.lineOf(c.Pos()), c.Text)
				}
			}
		}
	}
	if count > nolintMax {
		t.Errorf("%d nolint comments, at most %d", count, nolintMax)
	}
}

// Waiting for a time instead of an event makes tests slow and flaky.
func TestTestsDoNotSleep(t *testing.T) {
	for _, s := range load(t) {
		if !s.test {
			continue
		}
		synctest := slices.ContainsFunc(s.file.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"testing/synctest"` })
		ast.Inspect(s.file, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Sleep" || synctest {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
				t.Errorf("%s:%d: time.Sleep in a test: wait for the event, or use testing/synctest", s.path, s.lineOf(sel.Pos()))
			}
			return true
		})
	}
}
