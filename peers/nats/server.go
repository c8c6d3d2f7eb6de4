package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// serve is the child: a NATS server until standard input ends, so that it never outlives its parent.
func serve(args []string) error {
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	store := flags.String("store", "", "JetStream's directory; empty: no JetStream")
	if err := flags.Parse(args); err != nil {
		return err
	}
	opts := &server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true}
	// A burst must not get a subscriber cut off: what is measured is how fast it goes, and all must arrive.
	opts.MaxPending = 1 << 30
	opts.WriteDeadline = time.Minute
	if *store != "" {
		opts.JetStream = true
		opts.StoreDir = *store
		// What `disk` means here: an ack after the fsync.
		opts.SyncAlways = true
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		return fmt.Errorf("the server is not ready after 10 s")
	}
	fmt.Println(s.ClientURL())
	signal.Ignore(os.Interrupt)
	_, _ = bufio.NewReader(os.Stdin).ReadString(0)
	s.Shutdown()
	s.WaitForShutdown()
	return nil
}

// child is a server process.
type child struct {
	command *exec.Cmd
	stdin   interface{ Close() error }
	url     string
	store   string
}

func start(durable bool, parent string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{}
	args := []string{"serve"}
	if durable {
		if parent == "" {
			parent = "."
		}
		if c.store, err = os.MkdirTemp(parent, "nats-store-"); err != nil {
			return nil, err
		}
		if c.store, err = filepath.Abs(c.store); err != nil {
			return nil, err
		}
		args = append(args, "-store", c.store)
	}
	c.command = exec.Command(self, args...)
	c.command.Stderr = os.Stderr
	stdin, err := c.command.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.stdin = stdin
	stdout, err := c.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.command.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("the server did not start: %w", err)
	}
	c.url = strings.TrimSpace(line)
	return c, nil
}

func (c *child) stop() {
	_ = c.stdin.Close()
	_ = c.command.Wait()
	if c.store != "" {
		_ = os.RemoveAll(c.store)
	}
}

// cpu is what the server has used since it was started.
func (c *child) cpu() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.command.Process.Pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, may hold anything: fields are counted behind it.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const utime, stime, perSecond = 11, 12, 100
	var ticks int64
	for _, at := range []int{utime, stime} {
		n, _ := strconv.ParseInt(fields[at], 10, 64)
		ticks += n
	}
	return time.Duration(ticks) * time.Second / perSecond
}

func cpuOfSelf() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
