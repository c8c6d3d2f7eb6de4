// Measures etcd with its own server and its own Go client on the work that `thalweg bench cluster` does. That command
// starts this program, has both systems work in turns, and shows the figures of both.
//
// The members are this program again, each in a process of its own: `member` below. So no other binary is needed, and the
// version that go.mod pins is the version that is measured. The program obeys one request a line on standard input, in
// JSON, and answers each with one line on standard output. It stops its members and ends when standard input ends.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"

	"go.etcd.io/etcd/api/v3/version"
)

// request is one run of the load, or the filling of the store with all keys.
type request struct {
	// Work is load, put or get.
	Work string `json:"work"`
	// Level of gets: linearizable, or stale (serializable in etcd's words).
	Level string `json:"level"`
	// Node that the clients use: leader, follower or all.
	Node       string `json:"node"`
	Clients    int    `json:"clients"`
	Millis     int64  `json:"millis"`
	WarmMillis int64  `json:"warm_millis"`
	ValueBytes int    `json:"value_bytes"`
	Keys       uint64 `json:"keys"`
	Seed       uint64 `json:"seed"`
}

// figures of one run. CPU times are those of the part of the run that counts.
type figures struct {
	Operations int64   `json:"operations"`
	PerSecond  float64 `json:"per_second"`
	P50Micros  float64 `json:"p50_us"`
	P99Micros  float64 `json:"p99_us"`
	P999Micros float64 `json:"p999_us"`
	MaxMicros  float64 `json:"max_us"`
	// Errors counts failed operations; a run with any of them is void.
	Errors           int64   `json:"errors"`
	FirstError       string  `json:"first_error,omitempty"`
	ClientCPUSeconds float64 `json:"client_cpu_seconds"`
	ServerCPUSeconds float64 `json:"server_cpu_seconds"`
}

// greeting is the first line: what is measured.
type greeting struct {
	Etcd        string `json:"etcd"`
	Go          string `json:"go"`
	Members     int    `json:"members"`
	Connections int    `json:"connections"`
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "member" {
		if err := member(os.Args[2:]); err != nil {
			fail(err)
		}
		return
	}
	dir := flag.String("dir", "", "directory for the members' data, on the disk that is to be measured")
	members := flag.Int("members", 3, "number of members")
	connections := flag.Int("connections", 1, "most connections that the clients of a run share; one serves etcd best on two cores")
	flag.Parse()
	if flag.NArg() > 0 || *dir == "" || *members < 1 || *connections < 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := obey(*dir, *members, *connections); err != nil {
		fail(err)
	}
}

// obey starts the members, and answers requests until standard input ends.
func obey(dir string, members, connections int) error {
	c, err := startCluster(dir, members)
	if err != nil {
		return err
	}
	defer c.stop()
	out := json.NewEncoder(os.Stdout)
	hello := greeting{Etcd: version.Version, Go: runtime.Version(), Members: members, Connections: connections}
	if err := out.Encode(hello); err != nil {
		return err
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return fmt.Errorf("a request that is not JSON: %w", err)
		}
		f, err := run(c, r, connections)
		if err != nil {
			return fmt.Errorf("%s: %w", r.Work, err)
		}
		if err := out.Encode(f); err != nil {
			return err
		}
	}
	return lines.Err()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}
