// Package harness runs the hub as a stranger would: it builds hubd and
// hubctl, writes a configuration file, starts hubd as a child process and
// talks to it through MQTT, hubctl and the admin address only. Nothing here
// reaches into the hub's packages, so what the suites prove holds for the
// shipped binaries.
//
// The package does not import testing: the demo uses it too. Suites use the
// thin wrappers of harness/hubtest.
package harness
