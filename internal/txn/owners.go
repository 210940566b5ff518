package txn

import (
	"fmt"
	"strings"
	"sync"
)

// owners counts the transactional ids by the principal that made them, so that one
// that makes ids up runs into a bound of its own before it has used up everybody's.
// The log has no field for it: after a load an id is nobody's until it is asked for
// again.
type owners struct {
	max int
	mu  sync.Mutex // nothing is done under it but counting
	ids map[string]int
}

// take counts an id to a principal; a new one only within the bound. Nobody ("")
// has none.
func (o *owners) take(principal string, isNew bool) error {
	if principal == "" {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := o.ids[principal]; isNew && n >= o.max {
		return fmt.Errorf("%w: %d of %s", ErrTooManyIDs, n, principal)
	}
	if o.ids == nil {
		o.ids = map[string]int{}
	}
	o.ids[strings.Clone(principal)]++ // the name may lie in a request's buffer
	return nil
}

// leave is take's opposite.
func (o *owners) leave(principal string) {
	if principal == "" {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ids[principal]--; o.ids[principal] == 0 {
		delete(o.ids, principal)
	}
}
