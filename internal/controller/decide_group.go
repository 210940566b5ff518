package controller

import (
	"errors"
	"fmt"
	"maps"

	"github.com/lockstep-kafka/lockstep/internal/metadata"
)

// ErrTooManyGroupConfigs is a group with configs beyond metadata.MaxGroupConfigs.
var ErrTooManyGroupConfigs = errors.New("too many groups with configs")

// alterGroup changes configs of a group, which need not exist.
func alterGroup(img *metadata.Image, a AlterConfigs) ([]Change, error) {
	if a.Name == "" || len(a.Name) > metadata.MaxGroupConfigName {
		return nil, fmt.Errorf("alter configs: %w: a group's name has 1 to %d bytes, not %d", ErrInvalidRequest, metadata.MaxGroupConfigName, len(a.Name))
	}
	cur := img.GroupConfigs(a.Name)
	configs, err := applyOps(cur, a.Ops, metadata.GroupConfigDef, nil)
	if err == nil {
		err = metadata.ValidateGroupConfigs(configs, a.Static)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("alter configs of group %q: %w", a.Name, err)
	case maps.Equal(configs, cur):
		return nil, nil
	case cur == nil && img.NumGroupConfigs() >= metadata.MaxGroupConfigs:
		return nil, fmt.Errorf("alter configs of group %q: %w: %d groups have configs, the most that are kept", a.Name, ErrTooManyGroupConfigs, metadata.MaxGroupConfigs)
	}
	return []Change{setGroupConfigs{a.Name, configs}}, nil
}
