package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/segment"
)

func newRepairCommand() *cobra.Command {
	r := repairer{}
	var log string
	c := &cobra.Command{
		Use:   "repair --dir DIR [--log LOG] [--accept-loss]",
		Short: "List damage in a log directory, and give up what nobody has any more",
		Long: `List damage in a log directory, and give up what nobody has any more.

DIR is one of the server's log.dirs. The server must be stopped. Every byte of the
logs is read, which takes as long as the disk needs for it; --log names one log
by its directory name (<topic id>-<partition>), as the server's error does.

Without --accept-loss nothing is changed: what is damaged is printed, with the
offsets that may be lost and what stays, and the exit code is 1 if there is any.
A mirrored partition needs no command: the running server fetches the damaged
range from the source by itself, as long as the source has it.

With --accept-loss the damaged files are moved to DIR/quarantine, good batches
stay at their offsets, and batches without records stand where the others were:
consumers step over them. A directory that is missing as a whole is given up
only when --log names it. What was lost is printed. There is no way back but
the files in quarantine, which the server removes after log.quarantine.ms.`,
		Example: `  lockstep repair --dir lockstep-data
  lockstep repair --dir lockstep-data --log AAAAAAAAAAAAAAAAAAAAAQ-0 --accept-loss`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if r.dir == "" {
				return usageError{errors.New("repair: --dir is needed")}
			}
			if log != "" {
				id, ok := segment.ParseLogID(log)
				if !ok {
					return usageError{fmt.Errorf("repair: --log %q is not <topic id>-<partition>", log)}
				}
				r.only = []segment.LogID{id}
			}
			r.out, r.errs = c.OutOrStdout(), c.ErrOrStderr()
			return r.run(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&r.dir, "dir", "", "log directory")
	f.StringVar(&log, "log", "", "one log: its directory name")
	f.BoolVar(&r.accept, "accept-loss", false, "give up what is damaged, and make the logs usable")
	f.BoolVar(&r.json, "json", false, "print one JSON object per log with damage")
	return c
}

// repairer is one run of repair.
type repairer struct {
	dir          string
	only         []segment.LogID
	accept, json bool

	out, errs io.Writer
}

// repairedLog is a log as --json prints it. Field names stay.
type repairedLog struct {
	Log             string          `json:"log"`
	Dir             string          `json:"dir"`
	Missing         bool            `json:"missing"`
	Damages         []repairedRange `json:"damages"`
	LostAtMost      int64           `json:"lostAtMost"`
	Salvaged        int64           `json:"salvagedBatches"`
	SalvagedRecords int64           `json:"salvagedRecords"`
	Accepted        bool            `json:"accepted"`
	Lost            int64           `json:"lost"`
	Quarantine      []string        `json:"quarantine"`
}

type repairedRange struct {
	File       string `json:"file"`
	Position   int64  `json:"position"`
	Bytes      int64  `json:"bytes"`
	FromOffset int64  `json:"fromOffset"`
	ToOffset   int64  `json:"toOffset"` // exclusive
	Reason     string `json:"reason"`
}

func (r *repairer) run(ctx context.Context) error {
	o := segment.Options{Dir: r.dir, Logger: slog.New(slog.NewTextHandler(r.errs, &slog.HandlerOptions{Level: slog.LevelError}))}
	found, err := segment.Inspect(o, r.only)
	if err != nil {
		return err
	}
	done := make([]segment.Repaired, len(found))
	if r.accept {
		o.Logger = nil // what it would say is printed below
		done, err = segment.AcceptLoss(ctx, o, found)
	}
	damaged, left := 0, 0
	for i, v := range found {
		if len(v.Damages) == 0 {
			continue
		}
		damaged++
		accepted := r.accept && i < len(done) && len(done[i].Ranges) > 0
		if !accepted {
			left++
		}
		if errPrint := r.print(v, done[i], accepted); errPrint != nil {
			return errors.Join(err, errPrint)
		}
	}
	switch {
	case err != nil:
		return err
	case left > 0:
		return fmt.Errorf("%d of %d logs are damaged", left, len(found))
	case r.json:
		return nil
	case damaged > 0:
		_, err = fmt.Fprintf(r.out, "%d of %d logs were damaged and can be used again\n", damaged, len(found))
	default:
		_, err = fmt.Fprintf(r.out, "%d logs, no damage\n", len(found))
	}
	return err
}

func (r *repairer) print(v *segment.Survey, done segment.Repaired, accepted bool) error {
	x := repairedLog{
		Log: v.Log.String(), Dir: v.Dir, Missing: v.Elsewhere, LostAtMost: v.Lost(), Salvaged: v.Salvaged, SalvagedRecords: v.SalvagedRecords,
		Accepted: accepted, Lost: done.Lost, Quarantine: done.Quarantine,
	}
	for _, d := range v.Damages {
		x.Damages = append(x.Damages, repairedRange{d.File, d.Position, d.Bytes, d.From, d.To, d.Reason.Error()})
	}
	if r.json {
		return json.NewEncoder(r.out).Encode(x)
	}
	return r.text(x)
}

func (r *repairer) text(x repairedLog) (err error) {
	line := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(r.out, format+"\n", args...)
		}
	}
	line("%s", x.Log)
	if x.Missing {
		line("  its directory %s is missing; if it was not moved to another log directory, name it with --log", x.Dir)
	}
	for _, d := range x.Damages {
		line("  %s", d.File)
		line("    position %d, %d bytes: offsets %d to %d, at most %d records: %s", d.Position, d.Bytes, d.FromOffset, d.ToOffset-1, d.ToOffset-d.FromOffset, d.Reason)
	}
	if x.Salvaged > 0 {
		line("  good in the damaged files, and staying: %d batches with %d records", x.Salvaged, x.SalvagedRecords)
	}
	switch {
	case x.Accepted:
		line("  lost: at most %d records", x.Lost)
		for _, path := range x.Quarantine {
			line("  the damaged file is kept: %s", path)
		}
	case !x.Missing:
		line("  nothing was changed; to go on without these records: lockstep repair --dir %s --log %s --accept-loss", r.dir, x.Log)
	}
	return err
}
