package config

// ProfileNone is the profile of machines whose memory needs no care.
const ProfileNone = "none"

// profile is what a machine of some size gets in place of other keys' defaults. A value stands under TABLE.KEY as it
// would in the file.
type profile struct {
	name   string
	values map[string]string
}

// profiles are for machines that do little else. limits.memory leaves about half of the machine to the kernel's cache
// of the log, to the program's own text, and to what the Go runtime does not count; the others keep what clients, an
// uplink and a catching up session may hold at one time below it together.
var profiles = []profile{
	{"128MiB", map[string]string{
		"limits.memory":                    "40MiB",
		"limits.max_connections":           "2000",
		"limits.max_packet_bytes":          "256KiB",
		"limits.receive_maximum":           "128",
		"limits.outbound_bytes_per_client": "128KiB",
		"limits.outbound_bytes":            "4MiB",
		"limits.inbound_bytes":             "2MiB",
		"limits.catchup_bytes":             "2MiB",
		"limits.index_bytes":               "10MiB",
		"limits.retained_messages":         "20000",
		"stream.segment_bytes":             "8MiB",
		"uplink.window_bytes":              "1MiB",
	}},
	{"256MiB", map[string]string{
		"limits.memory":                    "104MiB",
		"limits.max_connections":           "8000",
		"limits.max_packet_bytes":          "512KiB",
		"limits.receive_maximum":           "256",
		"limits.outbound_bytes_per_client": "256KiB",
		"limits.outbound_bytes":            "16MiB",
		"limits.inbound_bytes":             "8MiB",
		"limits.catchup_bytes":             "4MiB",
		"limits.index_bytes":               "15MiB",
		"limits.retained_messages":         "100000",
		"stream.segment_bytes":             "16MiB",
		"uplink.window_bytes":              "2MiB",
	}},
	{"512MiB", map[string]string{
		"limits.memory":                    "256MiB",
		"limits.max_connections":           "30000",
		"limits.max_packet_bytes":          "1MiB",
		"limits.receive_maximum":           "512",
		"limits.outbound_bytes_per_client": "512KiB",
		"limits.outbound_bytes":            "32MiB",
		"limits.inbound_bytes":             "16MiB",
		"limits.catchup_bytes":             "8MiB",
		"limits.index_bytes":               "20MiB",
		"limits.retained_messages":         "300000",
		"stream.segment_bytes":             "32MiB",
		"uplink.window_bytes":              "4MiB",
	}},
}

func profileNames() []string {
	names := []string{ProfileNone}
	for i := range profiles {
		names = append(names, profiles[i].name)
	}
	return names
}

func profileNamed(name string) *profile {
	for i := range profiles {
		if profiles[i].name == name {
			return &profiles[i]
		}
	}
	return nil
}

// profileOf finds what a document says of hub.profile, before the other tables get their defaults. What is wrong with
// it is for the key's own check to say.
func profileOf(doc map[string]any) *profile {
	hub, _ := doc["hub"].(map[string]any)
	name, _ := hub["profile"].(string)
	return profileNamed(name)
}

// def is the default of a key: that of the profile where it has one.
func (p *profile) def(key, otherwise string) string {
	if p != nil {
		if v, ok := p.values[key]; ok {
			return v
		}
	}
	return otherwise
}

// segmentBytesOf is the most that a segment is derived to have.
func segmentBytesOf(name string) Bytes {
	n, ok := ParseBytes(profileNamed(name).def("stream.segment_bytes", Bytes(segmentBytesMax).String()))
	if !ok {
		panic("BUG: config: segment_bytes of profile " + name)
	}
	return n
}
