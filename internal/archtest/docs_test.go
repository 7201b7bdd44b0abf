package archtest

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// document is one text that speaks about the sources.
type document struct {
	path  string // from the root
	lines []string
}

func documents(t *testing.T) []document {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(filepath.Join(root, "docs"), func(name string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, ".md") {
			paths = append(paths, name)
		}
		return err
	})
	if err != nil || len(paths) == 0 {
		t.Fatalf("no documents: %v", err)
	}
	var all []document
	for _, name := range paths {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, document{filepath.ToSlash(rel), strings.Split(string(text), "\n")})
	}
	return all
}

// names are what the sources declare: "seglog.Log", "seglog.Log.Append",
// "TestRecovery"; and the names of the packages.
type names struct {
	symbols  map[string]bool
	packages map[string]bool
}

func declared(t *testing.T) names {
	t.Helper()
	n := names{map[string]bool{}, map[string]bool{}}
	for _, s := range load(t) {
		pkg := strings.TrimSuffix(s.file.Name.Name, "_test")
		n.packages[pkg] = true
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := pkg + "." + d.Name.Name
				if d.Recv != nil {
					name = pkg + "." + receiver(d.Recv) + "." + d.Name.Name
				} else if s.test {
					n.symbols[d.Name.Name] = true
				}
				n.symbols[name] = true
			case *ast.GenDecl:
				n.declare(pkg, d)
			}
		}
	}
	return n
}

func (n names) declare(pkg string, d *ast.GenDecl) {
	if d.Tok == token.IMPORT {
		return
	}
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				n.symbols[pkg+"."+name.Name] = true
			}
		case *ast.TypeSpec:
			name := pkg + "." + spec.Name.Name
			n.symbols[name] = true
			var fields *ast.FieldList
			switch of := spec.Type.(type) {
			case *ast.StructType:
				fields = of.Fields
			case *ast.InterfaceType:
				fields = of.Methods
			default:
				continue
			}
			for _, f := range fields.List {
				for _, field := range f.Names {
					n.symbols[name+"."+field.Name] = true
				}
			}
		}
	}
}

func receiver(recv *ast.FieldList) string {
	expr := recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr:
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}

var (
	codeSpan   = regexp.MustCompile("`([^`]+)`")
	symbolSpan = regexp.MustCompile(`^([a-z][a-z0-9]*)\.([A-Z]\w*(?:\.\w+)?)(?:\(\))?$`)
	testSpan   = regexp.MustCompile(`^(?:Test|Fuzz|Benchmark)[A-Z]\w*$`)
	pathSpan   = regexp.MustCompile(`^(?:hub|adapters|storage|sync|ctl|internal|test|configs|docs)/[\w./-]+$`)
	makeSpan   = regexp.MustCompile(`^make ([a-z][a-z0-9-]*)`)
	linkTarget = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	lineNumber = regexp.MustCompile(`\w\.go:\d`)
)

// Documents name symbols, tests, paths and make targets that exist, and no line
// numbers: those move.
func TestDocumentsNameWhatExists(t *testing.T) {
	n := declared(t)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, doc := range documents(t) {
		for i, line := range doc.lines {
			if lineNumber.MatchString(line) {
				t.Errorf("%s:%d: names a line of a source", doc.path, i+1)
			}
			for _, span := range codeSpan.FindAllStringSubmatch(line, -1) {
				if why := n.missing(span[1], string(makefile)); why != "" {
					t.Errorf("%s:%d: `%s`: %s", doc.path, i+1, span[1], why)
				}
				checked++
			}
			for _, link := range linkTarget.FindAllStringSubmatch(line, -1) {
				target := filepath.Join(root, filepath.Dir(doc.path), link[1])
				if _, err := os.Stat(target); err != nil {
					t.Errorf("%s:%d: the link to %s leads nowhere", doc.path, i+1, link[1])
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no document names anything")
	}
}

// missing says what a code span names that does not exist, or nothing.
func (n names) missing(span, makefile string) string {
	if m := symbolSpan.FindStringSubmatch(span); m != nil && n.packages[m[1]] && !n.symbols[m[1]+"."+m[2]] {
		return "no such symbol"
	}
	if testSpan.MatchString(span) && !n.symbols[span] {
		return "no such test"
	}
	if pathSpan.MatchString(span) {
		if _, err := os.Stat(filepath.Join(root, span)); err != nil {
			return "no such path"
		}
	}
	if m := makeSpan.FindStringSubmatch(span); m != nil && !strings.Contains(makefile, "\n"+m[1]+":") {
		return "no such target"
	}
	return ""
}

// The check itself must find what is missing.
func TestDocumentCheckFinds(t *testing.T) {
	n := declared(t)
	const makefile = "\ntest: ## x\n"
	for span, ok := range map[string]bool{
		"config.Load": true, "config.Load()": true, "config.Config.Hub": true, "config.Problems.Error": true,
		"config.Loaded": false, "config.Config.Hubs": false, "os.ReadFile": true,
		"TestImportTable": true, "TestOfNothing": false,
		"hub/config": true, "hub/confit": false, "hub/config/keys.go": true,
		"make test": true, "make tea": false, "devices/17/telemetry": true,
	} {
		if why := n.missing(span, makefile); (why == "") != ok {
			t.Errorf("%s: %q, want found %v", span, why, ok)
		}
	}
}
