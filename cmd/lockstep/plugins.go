package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/mirror"
	"github.com/lockstep-kafka/lockstep/plugins/host"
	"github.com/lockstep-kafka/lockstep/plugins/sdk"
)

// startPlugins starts the plugin processes that the configuration uses and puts
// them where they are asked. Without any it returns nil. A plugin that does not
// start keeps the broker from starting: going on with the built-in rules would
// cut what the operator wanted kept.
func startPlugins(cfg *config.Config, o *mirror.Options, logger *slog.Logger) (*host.Host, error) {
	configured := cfg.Plugins()
	if len(configured) == 0 {
		return nil, nil
	}
	truncation, unclean := cfg.String("plugin.truncation.policy"), cfg.String("plugin.unclean.election.policy")
	transports := cfg.Transports()
	ho := host.Options{Logger: logger.With("part", "plugin")}
	for _, p := range configured {
		hp := host.Plugin{Name: p.Name, Path: p.Path, SHA256: p.SHA256, Args: p.Args}
		if p.Name == truncation {
			hp.Kinds = append(hp.Kinds, sdk.KindTruncation)
		}
		if p.Name == unclean {
			hp.Kinds = append(hp.Kinds, sdk.KindUncleanElection)
		}
		for _, name := range transports {
			if name == p.Name && !slices.Contains(hp.Kinds, sdk.KindTransport) {
				hp.Kinds = append(hp.Kinds, sdk.KindTransport)
			}
		}
		ho.Plugins = append(ho.Plugins, hp)
	}
	h, err := host.Open(ho)
	if err != nil {
		return nil, err
	}
	if err := usePlugins(h, o, truncation, unclean, transports); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

func usePlugins(h *host.Host, o *mirror.Options, truncation, unclean string, transports map[string]string) (err error) {
	if truncation != "" {
		if o.Truncation, err = h.TruncationPolicy(truncation, holdTruncation{truncation}); err != nil {
			return err
		}
	}
	if unclean != "" {
		if o.UncleanElection, err = h.UncleanElectionPolicy(unclean, failUnclean{unclean}); err != nil {
			return err
		}
	}
	o.Transports = make(map[string]sdk.DialFunc)
	for m, name := range transports {
		if o.Transports[m], err = h.Dialer(name); err != nil {
			return err
		}
	}
	return nil
}

// holdTruncation decides while a truncation policy does not answer: a cut cannot
// be undone, waiting can.
type holdTruncation struct{ plugin string }

func (holdTruncation) Name() string { return "hold" }

func (p holdTruncation) DecideTruncation(context.Context, *sdk.TruncationQuestion) (sdk.TruncationDecision, error) {
	return sdk.TruncationDecision{
		Action: sdk.TruncateHold,
		Text:   fmt.Sprintf("plugin %s (plugin.truncation.policy) does not answer; nothing is cut until it does", p.plugin),
	}, nil
}

// failUnclean does the same for an unclean election of the source.
type failUnclean struct{ plugin string }

func (failUnclean) Name() string { return "fail" }

func (p failUnclean) DecideUncleanElection(context.Context, *sdk.UncleanElectionQuestion) (sdk.UncleanElectionDecision, error) {
	return sdk.UncleanElectionDecision{
		Action: sdk.UncleanFail, Retryable: true,
		Text: fmt.Sprintf("plugin %s (plugin.unclean.election.policy) does not answer; nothing is cut until it does", p.plugin),
	}, nil
}
