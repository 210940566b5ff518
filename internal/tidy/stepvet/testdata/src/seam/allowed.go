package seam

import "time"

func allowed() {
	_ = time.Now()
	time.Sleep(1) // want `time.Sleep past the seam`
}
