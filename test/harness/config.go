package harness

import (
	"fmt"
	"strings"
)

// Config is what a suite wants of a hub; Render turns it into the file.
type Config struct {
	HubID      string // "edge-test" when empty
	DataDir    string
	Socket     string
	MQTTAddr   string
	AdminAddr  string
	LogLevel   string   // "info" when empty
	Hub        []string // further lines of the [hub] table
	Limits     []string // lines of the [limits] table
	Streams    []Stream
	Uplinks    []Uplink
	Additional string // TOML put at the end as it is

	OpenFiles int      // the process's limit of descriptors; 0: that of this one
	Env       []string // NAME=VALUE, besides this process's
}

// Stream is one [[stream]] table.
type Stream struct {
	Name       string
	Filters    []string
	Partitions int
	Durability string // "written" when empty
	Lines      []string
}

// Uplink is one [[uplink]] table to JetStream.
type Uplink struct {
	Name    string
	URL     string
	Streams []string
	Lines   []string
}

// Render writes the configuration as TOML.
func (c *Config) Render() string {
	var b strings.Builder
	fmt.Fprintf(&b, "[hub]\nid = %q\ndata_dir = %q\n%s\n\n", or(c.HubID, "edge-test"), c.DataDir, strings.Join(c.Hub, "\n"))
	fmt.Fprintf(&b, "[log]\nlevel = %q\nformat = \"text\"\n\n", or(c.LogLevel, "info"))
	fmt.Fprintf(&b, "[admin]\nsocket = %q\naddress = %q\n\n", c.Socket, c.AdminAddr)
	fmt.Fprintf(&b, "[[listener]]\nprotocol = \"mqtt\"\naddress = %q\n\n", c.MQTTAddr)
	if len(c.Limits) > 0 {
		fmt.Fprintf(&b, "[limits]\n%s\n\n", strings.Join(c.Limits, "\n"))
	}
	for _, s := range c.Streams {
		fmt.Fprintf(&b, "[[stream]]\nname = %q\nfilters = [%s]\npartitions = %d\ndurability = %q\n",
			s.Name, quoted(s.Filters), max(s.Partitions, 1), or(s.Durability, "written"))
		fmt.Fprintf(&b, "%s\n\n", strings.Join(s.Lines, "\n"))
	}
	for _, u := range c.Uplinks {
		fmt.Fprintf(&b, "[[uplink]]\nname = %q\nkind = \"jetstream\"\nurl = %q\nstreams = [%s]\n",
			u.Name, u.URL, quoted(u.Streams))
		fmt.Fprintf(&b, "%s\n\n", strings.Join(u.Lines, "\n"))
	}
	b.WriteString(c.Additional)
	return b.String()
}

func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

func quoted(list []string) string {
	q := make([]string, len(list))
	for i, s := range list {
		q[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(q, ", ")
}
