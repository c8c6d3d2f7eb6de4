package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

const (
	// patience bounds every wait for the members.
	patience = 60 * time.Second
	// quota of a member's store, so that a run of puts does not reach etcd's default of 2 GiB.
	quota = 8 << 30
	// Starts that are tried, because a port that was free may be taken by the time the member listens.
	starts = 3
)

// member is the child: one member until standard input ends, so that it never outlives its parent. Its settings are
// etcd's defaults, with fsync; only the quota is larger.
func member(args []string) error {
	flags := flag.NewFlagSet("member", flag.ContinueOnError)
	name := flags.String("name", "", "name of the member")
	dir := flags.String("dir", "", "directory of the member")
	client := flags.String("client", "", "address for clients")
	all := flags.String("all", "", "the members: name=address, separated by commas")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config := embed.NewConfig()
	config.Name, config.Dir = *name, *dir
	// Errors reach the clients, and those of the first seconds mean nothing.
	config.LogLevel, config.LogOutputs = "fatal", []string{"stderr"}
	config.QuotaBackendBytes = quota
	var initial []string
	for _, one := range strings.Split(*all, ",") {
		of, address, _ := strings.Cut(one, "=")
		peer := url.URL{Scheme: "http", Host: address}
		initial = append(initial, of+"="+peer.String())
		if of == *name {
			config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		}
	}
	config.InitialCluster, config.ClusterState = strings.Join(initial, ","), embed.ClusterStateFlagNew
	clients := []url.URL{{Scheme: "http", Host: *client}}
	config.ListenClientUrls, config.AdvertiseClientUrls = clients, clients
	if _, err := embed.StartEtcd(config); err != nil {
		return err
	}
	signal.Ignore(os.Interrupt)
	_, _ = bufio.NewReader(os.Stdin).ReadString(0)
	// Nobody needs the data any more, so the process ends without closing it.
	return nil
}

// cluster is the members' processes.
type cluster struct {
	members []*process
}

type process struct {
	command  *exec.Cmd
	stdin    interface{ Close() error }
	endpoint string
}

func startCluster(dir string, members int) (*cluster, error) {
	var err error
	for try := range starts {
		var c *cluster
		if c, err = tryCluster(filepath.Join(dir, fmt.Sprintf("try%d", try)), members); err == nil {
			return c, nil
		}
	}
	return nil, err
}

func tryCluster(dir string, members int) (*cluster, error) {
	ports, err := freeAddresses(2 * members)
	if err != nil {
		return nil, err
	}
	var all []string
	for n := range members {
		all = append(all, fmt.Sprintf("n%d=%s", n+1, ports[n]))
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &cluster{}
	for n := range members {
		name, client := fmt.Sprintf("n%d", n+1), ports[members+n]
		command := exec.Command(self, "member", "-name", name, "-dir", filepath.Join(dir, name), "-client", client,
			"-all", strings.Join(all, ","))
		command.Stderr = os.Stderr
		stdin, err := command.StdinPipe()
		if err == nil {
			err = command.Start()
		}
		if err != nil {
			c.stop()
			return nil, err
		}
		c.members = append(c.members, &process{command: command, stdin: stdin, endpoint: "http://" + client})
	}
	if err := c.waitUntilReady(); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

// freeAddresses returns loopback addresses that are free now.
func freeAddresses(count int) ([]string, error) {
	var addresses []string
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		// All stay open until the last one is found, so that no address comes twice.
		defer listener.Close()
		addresses = append(addresses, listener.Addr().String())
	}
	return addresses, nil
}

func (c *cluster) waitUntilReady() error {
	until := time.Now().Add(patience)
	err := errors.New("no member")
	for time.Now().Before(until) {
		if _, _, err = c.roles(); err == nil {
			return nil
		}
		for _, m := range c.members {
			// A zombie is a member that has ended.
			if stat := m.stat(); len(stat) == 0 || stat[0] == "Z" {
				return errors.New("a member ended")
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("the members are not ready after %v: %w", patience, err)
}

// roles returns the endpoints of the leader and of the followers. It fails unless every member answers and all agree.
func (c *cluster) roles() (leader string, followers []string, err error) {
	leaders := map[uint64]bool{}
	for _, m := range c.members {
		status, err := m.status()
		if err != nil {
			return "", nil, err
		}
		leaders[status.Leader] = true
		if status.Leader == status.Header.MemberId {
			leader = m.endpoint
		} else {
			followers = append(followers, m.endpoint)
		}
	}
	if len(leaders) != 1 || leader == "" {
		return "", nil, errors.New("the members have no common leader")
	}
	return leader, followers, nil
}

func (p *process) status() (*clientv3.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	client, err := connect(p.endpoint)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.Status(ctx, p.endpoint)
}

func connect(endpoint string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: patience, Logger: zap.NewNop()})
}

func (c *cluster) stop() {
	for _, m := range c.members {
		_ = m.stdin.Close()
	}
	for _, m := range c.members {
		ended := make(chan struct{})
		go func() {
			_ = m.command.Wait()
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			_ = m.command.Process.Kill()
			<-ended
		}
	}
}

// cpu is what the members have used since they were started.
func (c *cluster) cpu() time.Duration {
	const utime, stime, perSecond = 11, 12, 100
	var ticks int64
	for _, m := range c.members {
		stat := m.stat()
		for _, at := range []int{utime, stime} {
			if at < len(stat) {
				n, _ := strconv.ParseInt(stat[at], 10, 64)
				ticks += n
			}
		}
	}
	return time.Duration(ticks) * time.Second / perSecond
}

// stat is the fields of the kernel's line about the process, from its state on.
func (p *process) stat() []string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.command.Process.Pid))
	if err != nil {
		return nil
	}
	// The name, in parentheses, may hold anything: fields are counted behind it.
	return strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
}

func cpuOfSelf() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
