package kafka

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/lockstep-kafka/lockstep/internal/controller"
	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// Both keys that change configs (33, 44) check here what the controller does not
// know: how often a resource is named, and what of this broker needs a restart.

// resourceKey names one resource of a request.
type resourceKey struct {
	kind controller.ConfigResource
	name string
}

// checkAlter refuses changes before the controller is asked. Names that no broker
// config has are left to it.
func (s *Server) checkAlter(a *controller.AlterConfigs, named map[resourceKey]int) error {
	if named[resourceKey{a.Type, a.Name}] > 1 {
		return fmt.Errorf("%w: resource %q of type %d is named more than once", controller.ErrInvalidRequest, a.Name, a.Type)
	}
	switch a.Type {
	case controller.ResourceBroker:
	case controller.ResourceGroup:
		a.Static = s.valuesInForce("group.consumer.")
		return nil
	default:
		return nil
	}
	if id, err := strconv.ParseInt(a.Name, 10, 32); err == nil && int32(id) != s.o.NodeID && s.o.Controller.Image().Broker(int32(id)) != nil {
		// As in Kafka: what its file says, only that broker knows. The controller
		// refuses those that there are not.
		return fmt.Errorf("%w: configs of broker %q are changed at that broker; this is broker %d", controller.ErrInvalidRequest, a.Name, s.o.NodeID)
	}
	a.Static = s.static
	for _, op := range a.Ops {
		if metadata.BrokerConfigDef(op.Name) == nil && s.hasConfig(op.Name) {
			return fmt.Errorf("%w: %s; set it in the properties file", metadata.ErrReadOnlyConfig, op.Name)
		}
	}
	return nil
}

// valuesInForce are the values of this broker's configs whose names begin so.
func (s *Server) valuesInForce(prefix string) map[string]string {
	settings := s.settings(s.o.Controller.Image())
	values := map[string]string{}
	for i := range s.o.BrokerConfigs {
		c := &s.o.BrokerConfigs[i]
		if !strings.HasPrefix(c.Name, prefix) {
			continue
		}
		v, ok := settings.Get(c.Name)
		if !ok {
			v = c.Default
		}
		values[c.Name] = v
	}
	return values
}

func (s *Server) hasConfig(name string) bool {
	for i := range s.o.BrokerConfigs {
		if s.o.BrokerConfigs[i].Name == name {
			return true
		}
	}
	return false
}
