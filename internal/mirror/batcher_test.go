package mirror

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockstep-kafka/lockstep/internal/clock"
)

// What arrives while a call runs goes into the next one, in order and not more
// than max at a time.
func TestBatcher(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	var batches [][]int
	b := newBatcher(context.Background(), nil, 3, func(_ context.Context, items []int) []int {
		batches = append(batches, items)
		if len(batches) == 1 {
			close(started)
			<-release
		}
		doubled := make([]int, len(items))
		for i, n := range items {
			doubled[i] = 2 * n
		}
		return doubled
	})
	results := make(chan int, 8)
	b.submit(0, func(r int) { results <- r })
	<-started
	for n := 1; n <= 5; n++ {
		b.submit(n, func(r int) { results <- r })
	}
	close(release)
	for n := range 6 {
		if r := <-results; r != 2*n {
			t.Errorf("result %d is %d", n, r)
		}
	}
	b.wait()
	want := [][]int{{0}, {1, 2, 3}, {4, 5}}
	if !slices.EqualFunc(batches, want, slices.Equal[[]int]) {
		t.Errorf("batches %v, want %v", batches, want)
	}
	if r, err := b.do(context.Background(), 21); r != 42 || err != nil {
		t.Errorf("do = %d, %v", r, err)
	}
	b.wait()
}

// The first of a crowd waits for the others, and not for ever.
func TestBatcherGathersACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batches []int
		b := newBatcher(t.Context(), nil, 100, func(_ context.Context, items []int) []int {
			batches = append(batches, len(items))
			return items
		})
		crowd := 3
		b.crowd, b.clock = func() int { return crowd }, clock.System()
		done := make(chan int, 8)
		submit := func() { b.submit(1, func(r int) { done <- r }) }
		submit()
		time.Sleep(gatherTime / 3) // in a synctest bubble: exactly this, and no time of ours
		submit()
		time.Sleep(gatherTime / 3)
		submit()
		for range 3 {
			<-done
		}
		b.wait()
		crowd = 2
		begun := time.Now()
		submit() // the other one never comes
		<-done
		if waited := time.Since(begun); waited != gatherTime {
			t.Errorf("waited %v for who does not come, want %v", waited, gatherTime)
		}
		b.wait()
		crowd, begun = 1, time.Now()
		submit()
		<-done
		if waited := time.Since(begun); waited != 0 {
			t.Errorf("one that is alone waited %v", waited)
		}
		b.wait()
		if want := []int{3, 1, 1}; !slices.Equal(batches, want) {
			t.Errorf("batches of %v, want %v", batches, want)
		}
	})
}

// A caller that gives up does not hold the batch, and the batch does not hold
// it.
func TestBatcherCancel(t *testing.T) {
	release := make(chan struct{})
	b := newBatcher(context.Background(), nil, 3, func(_ context.Context, items []int) []int {
		<-release
		return items
	})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := b.do(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("do = %v", err)
	}
	close(release)
	b.wait()
}
