// Package e2e tries clients that are not ours, with what a client can ask of a
// hub, over every transport they have. It is a module of its own: its
// libraries are none of the hub's.
package e2e
