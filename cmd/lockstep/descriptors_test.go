package main

import "testing"

func TestCompareDescriptors(t *testing.T) {
	for _, tt := range []struct {
		connections   int64
		asked         bool
		limit         uint64
		warned, fails bool
	}{
		{10_000, true, 20_000, false, false},
		{10_000, false, 4096, true, false},
		{10_000, true, 4096, false, true},
		{10_000, true, 10_500, false, true},
		{2_000, true, 3_000, false, false},
	} {
		warning, err := compareDescriptors(tt.connections, tt.asked, tt.limit)
		if (warning != "") != tt.warned || (err != nil) != tt.fails {
			t.Errorf("%+v: warning %q, error %v", tt, warning, err)
		}
	}
}
