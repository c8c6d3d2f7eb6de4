package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// figures of one measurement. Rates are deliveries per second where something is delivered, else acknowledged messages.
type figures struct {
	Payload          int     `json:"payload_bytes"`
	Messages         int64   `json:"messages"`
	Deliveries       int64   `json:"deliveries,omitempty"`
	PerSecond        float64 `json:"per_second"`
	P50Micros        float64 `json:"p50_us,omitempty"`
	P99Micros        float64 `json:"p99_us,omitempty"`
	P999Micros       float64 `json:"p999_us,omitempty"`
	MaxMicros        float64 `json:"max_us,omitempty"`
	LateP99Micros    float64 `json:"generator_late_p99_us,omitempty"`
	WallSeconds      float64 `json:"wall_seconds"`
	ClientCPUSeconds float64 `json:"client_cpu_seconds"`
	ServerCPUSeconds float64 `json:"server_cpu_seconds"`
}

func (f *figures) latencies(nanos []int64) {
	slices.Sort(nanos)
	f.P50Micros = quantile(nanos, 0.5) / 1000
	f.P99Micros = quantile(nanos, 0.99) / 1000
	f.P999Micros = quantile(nanos, 0.999) / 1000
	f.MaxMicros = quantile(nanos, 1) / 1000
}

// quantile of exact values, sorted here if they are not.
func quantile(values []int64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	if !slices.IsSorted(values) {
		values = slices.Clone(values)
		slices.Sort(values)
	}
	return float64(values[min(len(values)-1, int(q*float64(len(values))))])
}

type row struct {
	Name   string    `json:"name"`
	Rounds []figures `json:"rounds"`
}

// median is the round in the middle: by its p50 for open loops, whose rate is given, else by its rate.
func (r row) median() figures {
	rounds := slices.Clone(r.Rounds)
	slices.SortFunc(rounds, func(a, b figures) int {
		by := func(f figures) float64 {
			if strings.HasPrefix(r.Name, "open loop") {
				return f.P50Micros
			}
			return f.PerSecond
		}
		switch {
		case by(a) < by(b):
			return -1
		case by(a) > by(b):
			return 1
		}
		return 0
	})
	return rounds[len(rounds)/2]
}

type report struct {
	Server  string    `json:"nats_server"`
	Client  string    `json:"nats_go"`
	Go      string    `json:"go"`
	Kernel  string    `json:"kernel"`
	Cores   int       `json:"cores"`
	Durable string    `json:"durability"`
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds_per_measurement"`
	Rows    []*row    `json:"rows"`
}

func newReport(o options) *report {
	var name syscall.Utsname
	kernel := ""
	if syscall.Uname(&name) == nil {
		for _, char := range name.Release {
			if char == 0 {
				break
			}
			kernel += string(rune(char))
		}
	}
	return &report{
		Server: server.VERSION, Client: nats.Version, Go: runtime.Version(), Kernel: kernel, Cores: runtime.NumCPU(),
		Durable: "JetStream file storage, sync always, one replica", Began: time.Now().UTC(), Seconds: o.seconds,
	}
}

func (r *report) add(name string, f figures) {
	for _, row := range r.Rows {
		if row.Name == name {
			row.Rounds = append(row.Rounds, f)
			return
		}
	}
	r.Rows = append(r.Rows, &row{Name: name, Rounds: []figures{f}})
}

func (r *report) print(to io.Writer) {
	fmt.Fprintf(to, "nats-server %s, nats.go %s, %s, Linux %s, %d cores\n", r.Server, r.Client, r.Go, r.Kernel, r.Cores)
	fmt.Fprintf(to, "durable rows: %s; medians of %d\n\n", r.Durable, len(r.Rows[0].Rounds))
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "work\tper second\tMB/s\tp50 us\tp99 us\tp99.9 us\tserver CPU s/M\tclient CPU s/M\tsent late p99 us\t")
	for _, row := range r.Rows {
		f := row.median()
		units := float64(max(f.Deliveries, f.Messages)) / 1e6
		fmt.Fprintf(table, "%s\t%.0f\t%.1f\t%s\t%s\t%s\t%.2f\t%.2f\t%s\t\n", row.Name, f.PerSecond,
			f.PerSecond*float64(f.Payload)/1e6, micros(f.P50Micros), micros(f.P99Micros), micros(f.P999Micros),
			f.ServerCPUSeconds/units, f.ClientCPUSeconds/units, micros(f.LateP99Micros))
	}
	_ = table.Flush()
}

func micros(value float64) string {
	if value == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", value)
}

func (r *report) writeJSON(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
