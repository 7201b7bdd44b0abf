package config

// Setting is one key with its effective value.
type Setting struct {
	Key     string // "stream.telemetry.lanes"
	Value   string // as it would stand in the file
	Default bool   // not set in the file
}

// Show returns every effective value in the order of the documentation. Secrets
// are files here, so that what is shown are their paths.
func (c *Config) Show() []Setting {
	var all []Setting
	c.each(func(e entry) {
		all = append(all, Setting{Key: e.label, Value: e.key.text(e.value), Default: !c.given[e.label]})
	})
	return all
}
