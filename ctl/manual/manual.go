// Package manual writes hubctl's manual page from its commands.
package manual

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Page is the manual page in roff: every verb that a user sees, with its flags.
func Page(root *cobra.Command) string {
	p := &page{}
	name := root.Name()
	p.line(".TH %s 1 \"\" \"%s\" \"edgehub\"", strings.ToUpper(name), name+" "+root.Version)
	p.section("NAME")
	p.line("%s \\- %s", name, text(lowerFirst(root.Short)))
	p.section("SYNOPSIS")
	p.line(".B %s", name)
	p.line("[\\fIOPTION\\fR]... \\fIVERB\\fR [\\fIARGUMENT\\fR]...")
	p.section("DESCRIPTION")
	p.prose(root.Long)
	p.section("OPTIONS")
	p.flags(root.PersistentFlags())
	p.section("VERBS")
	p.verbs(root)
	p.section("EXIT STATUS")
	for _, e := range [][2]string{{"0", "done"}, {"1", "refused, or failed"}, {"2", "wrong command line; nothing was tried"}} {
		p.line(".TP")
		p.line("%s", e[0])
		p.line("%s", e[1])
	}
	p.section("ENVIRONMENT")
	p.line(".TP")
	p.line("HUBCTL_SOCKET")
	p.line("the hub's socket, unless --socket is given")
	p.section("SEE ALSO")
	p.line(".BR hubd (8)")
	return p.String()
}

type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *page) section(name string) { p.line(".SH %s", name) }

// verbs writes the commands that do something, below c.
func (p *page) verbs(c *cobra.Command) {
	for _, sub := range c.Commands() {
		if sub.Hidden || sub.Deprecated != "" || sub.Name() == "help" {
			continue
		}
		if sub.HasAvailableSubCommands() {
			p.verbs(sub)
			continue
		}
		_, use, _ := strings.Cut(sub.UseLine(), " ") // without the program's name
		p.line(".SS %s", text(strings.TrimSuffix(use, " [flags]")))
		if sub.Long != "" {
			p.prose(sub.Long)
		} else {
			p.line("%s.", text(sub.Short))
		}
		p.flags(sub.LocalNonPersistentFlags())
	}
}

func (p *page) flags(set *pflag.FlagSet) {
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		p.line(".TP")
		name := "\\fB\\-\\-" + text(f.Name) + "\\fR"
		if f.Shorthand != "" {
			name = "\\fB\\-" + f.Shorthand + "\\fR, " + name
		}
		kind, usage := pflag.UnquoteUsage(f)
		if kind != "" {
			name += " \\fI" + text(kind) + "\\fR"
		}
		p.line("%s", name)
		p.line("%s", text(usage))
	})
}

// prose writes paragraphs; indented lines are kept as they are.
func (p *page) prose(s string) {
	for i, paragraph := range strings.Split(strings.TrimSpace(s), "\n\n") {
		if i > 0 {
			p.line(".PP")
		}
		verbatim := strings.HasPrefix(paragraph, " ")
		if verbatim {
			p.line(".nf")
		}
		for l := range strings.SplitSeq(paragraph, "\n") {
			p.line("%s", text(l))
		}
		if verbatim {
			p.line(".fi")
		}
	}
}

// text escapes what roff would read as its own.
func text(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if s != "" && (s[0] == '.' || s[0] == '\'') {
		s = `\&` + s
	}
	return s
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
