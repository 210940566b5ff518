package seam

import (
	"math/rand/v2"
	"os"
	"time"
)

func clocks(t time.Time) {
	_ = time.Now()         // want `time.Now past the seam`
	f := time.Now          // want `time.Now past the seam`
	_ = f().Sub(t)         // what comes through a seam may be used
	<-time.After(1)        // want `time.After past the seam`
	time.Sleep(1)          // want `time.Sleep past the seam`
	_ = time.NewTimer(1)   // want `time.NewTimer past the seam`
	_ = time.NewTicker(1)  // want `time.NewTicker past the seam`
	time.AfterFunc(1, nil) // want `time.AfterFunc past the seam`
	_ = time.Unix(1, 0)    // a value
}

func chance(r *rand.Rand) {
	_ = rand.IntN(3) // want `global rand.IntN past the seam`
	_ = r.IntN(3)
	_ = rand.New(rand.NewPCG(1, 2))
}

func files() *os.File {
	_, _ = os.Open("x") // want `os.Open past the disk layer`
	_ = os.Remove("x")  // want `os.Remove past the disk layer`
	var f *os.File
	return f
}
