package step

import (
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sort"
	"sync"
	"time"
)

type machine struct {
	mu sync.Mutex // want `sync.Mutex in a step function`
	c  chan int   // want `channel in a step function`
}

func (m *machine) step(now time.Time, r func() float64) {
	go m.other()    // want `go in a step function`
	m.c <- 1        // want `channel send in a step function`
	<-m.c           // want `channel receive in a step function`
	close(m.c)      // want `close of a channel in a step function`
	for range m.c { // want `channel receive in a step function`
	}
	select {}                   // want `select in a step function`
	_ = time.Now()              // want `time.Now in a step function`
	_ = rand.IntN(3)            // want `rand.IntN in a step function`
	_ = os.Getpid()             // want `os.Getpid in a step function`
	_ = os.Args                 // want `os.Args in a step function`
	_, _ = net.Dial("tcp", "x") // want `net.Dial in a step function`
	m.mu.Lock()                 // want `sync.Lock in a step function`
	_ = now.Add(time.Second)
	_ = now.After(now)
	_, _, _ = net.SplitHostPort("a:1")
	_ = r()
}

func (m *machine) other() {}

func leaks(m map[int]string, out func(int)) (list []int, last int, err error) {
	for k := range m { // want `order of a map leaks`
		list = append(list, k)
	}
	for k := range m { // want `order of a map leaks`
		out(k)
	}
	for k := range m { // want `order of a map leaks`
		last = k
	}
	for k := range m { // want `order of a map leaks`
		if k > 3 {
			return nil, k, nil
		}
	}
	for range m { // want `order of a map leaks`
		break
	}
	var text string
	for _, v := range m { // want `order of a map leaks`
		text += v
	}
	for k := range maps.Keys(m) { // want `order of a map leaks`
		out(k)
	}
	list = slices.Collect(maps.Keys(m)) // want `order of a map leaks into a slice`
	return list, len(text), nil
}

type s struct{ n int }

func fine(m map[int]*s, out func(int)) (bool, int) {
	var a, b, d []int
	for k := range m {
		a = append(a, k)
	}
	slices.Sort(a)
	for k, v := range m {
		if v != nil {
			b = append(b, k)
		}
	}
	sort.Ints(b)
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out(k)
	}
	d = slices.Collect(maps.Keys(m))
	slices.Sort(d)
	n, low, seen := 0, 0, false
	other := map[int]int{}
	for k, v := range m {
		n++
		n += k
		low = min(low, k)
		other[k] = 1
		delete(m, k)
		seen = true
		v.n = k
		for range 3 {
			if k > 2 {
				break
			}
		}
		x := k
		x = 3 * x
		_ = x
		if k == 7 {
			continue
		}
	}
	for k := range m {
		if k == 9 {
			return true, 0
		}
	}
	return seen, n + low
}
