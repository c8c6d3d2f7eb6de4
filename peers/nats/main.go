// Measures NATS with its own server and its own Go client on the work that `thalweg bench pubsub` does, so that both can
// be run one after the other on one machine. `run.sh` builds and runs it; docs/performance.md says what came out.
//
// The server is this program again, in a process of its own: `serve` below. So no other binary is needed, and the version
// that go.mod pins is the version that is measured.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

// options of a run.
type options struct {
	rounds   int
	seconds  float64
	only     string
	json     string
	storeDir string
}

// scenario is one row of the table.
type scenario struct {
	name string
	// run measures once, against a server of its own.
	run func(url string, o options) (figures, error)
	// durable: the server has JetStream, and syncs each write.
	durable bool
}

func scenarios() []scenario {
	return []scenario{
		{name: "subjects 128B 1to1", run: throughput(128, 1)},
		{name: "subjects 128B 1to10", run: throughput(128, 10)},
		{name: "subjects 4KiB 1to10", run: throughput(4096, 10)},
		{name: "open loop 2000/s 128B 1to1", run: openLoop(2000, 128, 1)},
		{name: "open loop 2000/s 128B 1to10", run: openLoop(2000, 128, 10)},
		{name: "durable 128B 16 publishers one in flight", run: durableSync(16, 128), durable: true},
		{name: "durable 128B 1 publisher batches of 500", run: durableBatches(500, 128), durable: true},
	}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "serve" {
		if err := serve(os.Args[2:]); err != nil {
			fail(err)
		}
		return
	}
	var o options
	flag.IntVar(&o.rounds, "rounds", 3, "times that each row is measured; the median is shown")
	flag.Float64Var(&o.seconds, "seconds", 5, "about how long one measurement takes")
	flag.StringVar(&o.only, "only", "", "only rows whose name has this in it")
	flag.StringVar(&o.json, "json", "", "also write the report to this file, as JSON")
	flag.StringVar(&o.storeDir, "store", "", "directory for the durable rows; must be on the disk to be measured (default: below the working directory)")
	flag.Parse()
	if flag.NArg() > 0 || o.rounds < 1 || o.seconds <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := measure(o); err != nil {
		fail(err)
	}
}

// measure runs all rows, round by round, so that what changes on the machine meanwhile changes all rows alike.
func measure(o options) error {
	report := newReport(o)
	ran := 0
	for round := range o.rounds {
		for _, s := range scenarios() {
			if !strings.Contains(s.name, o.only) {
				continue
			}
			ran++
			fmt.Fprintf(os.Stderr, "round %d of %d: %s\n", round+1, o.rounds, s.name)
			f, err := once(s, o)
			if err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
			report.add(s.name, f)
		}
	}
	if ran == 0 {
		return fmt.Errorf("no row has %q in its name", o.only)
	}
	report.print(os.Stdout)
	if o.json != "" {
		return report.writeJSON(o.json)
	}
	return nil
}

func once(s scenario, o options) (figures, error) {
	child, err := start(s.durable, o.storeDir)
	if err != nil {
		return figures{}, err
	}
	defer child.stop()
	before := cpuOfSelf()
	began := time.Now()
	f, err := s.run(child.url, o)
	if err != nil {
		return figures{}, err
	}
	f.WallSeconds = time.Since(began).Seconds()
	f.ClientCPUSeconds = (cpuOfSelf() - before).Seconds()
	f.ServerCPUSeconds = child.cpu().Seconds()
	return f, nil
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}
