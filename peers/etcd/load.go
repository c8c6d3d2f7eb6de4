package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Clients that fill the store with all keys.
const loaders = 100

// pool of random bytes, of which each value is a window, so that making a value costs nothing.
const poolBytes = 1 << 20

// values makes the value of each key from its number, so that gets can be compared.
type values struct {
	pool []byte
	len  int
}

func newValues(length int, seed uint64) values {
	pool := make([]byte, poolBytes+length)
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = source.Read(pool)
	return values{pool: pool, len: length}
}

func (v values) of(index uint64) []byte {
	at := (index * 0x9E3779B97F4A7C15) >> 44
	return v.pool[at : at+uint64(v.len)]
}

// run has all clients work for the time of the request. Each client has one operation in flight, and each operation is
// timed. The clients share few connections, since a connection of gRPC carries many operations at once.
func run(c *cluster, r request, most int) (figures, error) {
	if r.Clients < 1 || r.Keys < 1 || r.ValueBytes < 0 {
		return figures{}, fmt.Errorf("a request without clients or keys")
	}
	if r.Work == "load" {
		r.Clients, r.Node = loaders, "leader"
	}
	leader, followers, err := c.roles()
	if err != nil {
		return figures{}, err
	}
	var endpoints []string
	switch {
	case r.Node == "leader":
		endpoints = []string{leader}
	case r.Node == "follower" && len(followers) > 0:
		endpoints = followers[:1]
	case r.Node == "all":
		endpoints = append([]string{leader}, followers...)
	default:
		return figures{}, fmt.Errorf("no node %q", r.Node)
	}
	connections := make([]*clientv3.Client, min(r.Clients, max(most, len(endpoints))))
	for n := range connections {
		if connections[n], err = connect(endpoints[n%len(endpoints)]); err != nil {
			return figures{}, err
		}
		defer connections[n].Close()
	}
	l := &load{request: r, values: newValues(r.ValueBytes, r.Seed), cluster: c}
	return l.run(connections)
}

type load struct {
	request
	values  values
	cluster *cluster
	// The first problem; the load ends with it.
	problem atomic.Pointer[error]
	errors  atomic.Int64
	next    atomic.Uint64
}

func (l *load) run(connections []*clientv3.Client) (figures, error) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	began := time.Now()
	from := began.Add(time.Duration(l.WarmMillis) * time.Millisecond)
	until := from.Add(time.Duration(l.Millis) * time.Millisecond)
	if l.Work == "load" {
		from, until = began, began.Add(time.Hour)
	}
	var clientCPU, serverCPU time.Duration
	times := make([][]int64, l.Clients)
	var group sync.WaitGroup
	for n := range l.Clients {
		group.Go(func() { times[n] = l.client(ctx, connections[n%len(connections)], uint64(n), from, until) })
	}
	time.Sleep(time.Until(from))
	clientCPU, serverCPU = cpuOfSelf(), l.cluster.cpu()
	group.Wait()
	took := time.Since(from)
	clientCPU, serverCPU = cpuOfSelf()-clientCPU, l.cluster.cpu()-serverCPU
	if l.Work != "load" {
		// Operations that were begun in time and answered later are counted with the time that they took.
		took = max(took, time.Duration(l.Millis)*time.Millisecond)
	}
	all := slices.Concat(times...)
	slices.Sort(all)
	f := figures{
		Operations: int64(len(all)), PerSecond: float64(len(all)) / took.Seconds(), Errors: l.errors.Load(),
		P50Micros: quantile(all, 0.5), P99Micros: quantile(all, 0.99), P999Micros: quantile(all, 0.999),
		MaxMicros: quantile(all, 1), ClientCPUSeconds: clientCPU.Seconds(), ServerCPUSeconds: serverCPU.Seconds(),
	}
	if problem := l.problem.Load(); problem != nil {
		f.FirstError = (*problem).Error()
	}
	return f, nil
}

// client does one operation after the other, and returns the time of each one that was begun between `from` and `until`.
func (l *load) client(ctx context.Context, c *clientv3.Client, number uint64, from, until time.Time) []int64 {
	random := rand.New(rand.NewPCG(l.Seed, number))
	times := make([]int64, 0, 1<<14)
	for l.errors.Load() == 0 {
		index := random.Uint64N(l.Keys)
		if l.Work == "load" {
			if index = l.next.Add(1) - 1; index >= l.Keys {
				break
			}
		}
		began := time.Now()
		if !began.Before(until) {
			break
		}
		if err := l.operation(ctx, c, index); err != nil {
			l.errors.Add(1)
			l.problem.CompareAndSwap(nil, &err)
			break
		}
		if took := time.Since(began); !began.Before(from) {
			times = append(times, int64(took))
		}
	}
	return times
}

func (l *load) operation(ctx context.Context, c *clientv3.Client, index uint64) error {
	key := fmt.Sprintf("key_%010d", index)
	if l.Work != "get" {
		_, err := c.Put(ctx, key, string(l.values.of(index)))
		return err
	}
	var options []clientv3.OpOption
	if l.Level == "stale" {
		options = append(options, clientv3.WithSerializable())
	}
	found, err := c.Get(ctx, key, options...)
	if err != nil {
		return err
	}
	if len(found.Kvs) != 1 || !bytes.Equal(found.Kvs[0].Value, l.values.of(index)) {
		return errors.New("a get returned a value that was not stored")
	}
	return nil
}

// quantile of sorted times, in microseconds.
func quantile(sorted []int64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return float64(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]) / 1000
}
