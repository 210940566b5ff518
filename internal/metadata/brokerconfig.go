package metadata

import "fmt"

// Dynamic broker configs (spec 4.1, the rows marked dynamic). Everything else
// about a broker stands in its properties file and needs a restart.
var brokerTable = newTable([]*ConfigDef{
	{Name: "mirror.num.replica.fetchers", Type: TypeInt, Default: "1", check: between(1, 1024),
		Doc: "Fetch connections per source broker and mirror. A change must stay within half to double of the value before."},
	{Name: "mirror.metadata.refresh.interval.ms", Type: TypeLong, Default: "60000", check: atLeast(0),
		Doc: "Period of the source refresh."},
	{Name: "mirror.truncation.timeout.ms", Type: TypeLong, Default: "300000", check: atLeast(0),
		Doc: "Longest stay in the gate before FAILED; 0 waits for ever."},
	{Name: "mirror.replication.throttled.rate", Type: TypeLong, Default: maxLong, check: atLeast(1),
		Doc: "Bytes per second that mirror fetches of throttled replicas may use."},
})

// BrokerConfigDefs is the table of dynamic broker configs by name. Shared.
func BrokerConfigDefs() []*ConfigDef { return brokerTable.defs }

// BrokerConfigDef is one row, or nil.
func BrokerConfigDef(name string) *ConfigDef { return brokerTable.byName[name] }

// ValidateBrokerConfig checks one dynamic broker config.
func ValidateBrokerConfig(name, value string) error {
	d := brokerTable.byName[name]
	if d == nil {
		return fmt.Errorf("%w: %s: not a dynamic broker config; it can only stand in the properties file", ErrInvalidConfig, name)
	}
	return d.Validate(value)
}
