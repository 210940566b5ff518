package main

import (
	"testing"

	"golang.org/x/tools/go/analysis/analysistest"
)

// Each rule is red where testdata says so, and nowhere else.
func TestRules(t *testing.T) {
	r := &rules{
		seamPackages: []string{"seam"},
		diskFree:     []string{"seam"},
		diskLayer:    []string{"seam/disk.go"},
		stepFiles:    []string{"step/", "stale/gone.go"},
		exceptions: []exception{
			{"seam/allowed.go", "time.Now", "a test"},
			{"stale/stale.go", "time.Now", "a line that speaks of nothing"},
		},
	}
	analysistest.Run(t, analysistest.TestData(), newAnalyzer(r, "none/"), "seam", "step", "stale")
}
