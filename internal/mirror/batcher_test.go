package mirror

import (
	"context"
	"errors"
	"slices"
	"testing"
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
