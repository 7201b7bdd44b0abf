// Package message is the hub's application message and the form that it has as a record of a log.
package message
