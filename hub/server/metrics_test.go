package server

import (
	"os"
	"testing"
)

// The reference is what the tables give now.
func TestMetricsReferenceIsFresh(t *testing.T) {
	got, err := os.ReadFile("../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != MetricsReference() {
		t.Error("docs/METRICS.md is stale: run `make generate`")
	}
}
