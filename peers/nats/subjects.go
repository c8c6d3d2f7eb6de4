package main

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
)

const subject = "bench.subject"

// patience is how long nothing may arrive before a run has failed.
const patience = 10 * time.Second

// sink is a subscriber with a connection of its own. It checks the order of what it gets.
type sink struct {
	connection *nats.Conn
	received   atomic.Int64
	wrong      atomic.Int64
	// latencies in nanoseconds, if wanted. Written by the subscription's goroutine alone.
	latencies []int64
	last      atomic.Int64
}

// subscribe makes `count` of them. Each message begins with its number and the nanosecond at which it was due.
func subscribe(url string, count int, began time.Time, keep int) ([]*sink, error) {
	sinks := make([]*sink, count)
	for at := range sinks {
		connection, err := nats.Connect(url)
		if err != nil {
			return nil, err
		}
		s := &sink{connection: connection, latencies: make([]int64, 0, keep)}
		subscription, err := connection.Subscribe(subject, func(m *nats.Msg) {
			now := time.Since(began).Nanoseconds()
			number := int64(binary.LittleEndian.Uint64(m.Data))
			if number != s.received.Load() {
				s.wrong.Add(1)
			}
			if len(s.latencies) < cap(s.latencies) {
				s.latencies = append(s.latencies, now-int64(binary.LittleEndian.Uint64(m.Data[8:])))
			}
			s.last.Store(now)
			s.received.Add(1)
		})
		if err != nil {
			return nil, err
		}
		// The client must not drop what it has no time for yet.
		if err := subscription.SetPendingLimits(-1, -1); err != nil {
			return nil, err
		}
		if err := connection.Flush(); err != nil {
			return nil, err
		}
		sinks[at] = s
	}
	return sinks, nil
}

// wait returns when all have `messages`, with the time at which the last one had them.
func wait(sinks []*sink, messages int64) (int64, error) {
	var last, seen int64
	progress := time.Now()
	for {
		var sum int64
		done := true
		for _, s := range sinks {
			received := s.received.Load()
			sum += received
			done = done && received >= messages
		}
		if done {
			break
		}
		if sum != seen {
			seen, progress = sum, time.Now()
		} else if time.Since(progress) > patience {
			return 0, fmt.Errorf("%d of %d deliveries arrived, and no more", sum, messages*int64(len(sinks)))
		}
		time.Sleep(time.Millisecond)
	}
	for _, s := range sinks {
		last = max(last, s.last.Load())
		if wrong := s.wrong.Load(); wrong > 0 || s.received.Load() != messages {
			return 0, fmt.Errorf("a subscriber got %d of %d messages, %d out of order", s.received.Load(), messages, wrong)
		}
	}
	return last, nil
}

func closeAll(sinks []*sink) {
	for _, s := range sinks {
		if s != nil {
			s.connection.Close()
		}
	}
}

// throughput publishes as fast as the client takes it, which gathers messages into large writes by itself. Deliveries count
// until the last subscriber has the last message.
func throughput(payload, fanOut int) func(string, options) (figures, error) {
	return func(url string, o options) (figures, error) {
		// Enough for about the time wanted, from what such a machine does.
		perSecond := 1_000_000 / max(1, fanOut*payload/256)
		messages := int64(max(10_000, int(o.seconds*float64(perSecond))))
		began := time.Now()
		sinks, err := subscribe(url, fanOut, began, 0)
		defer closeAll(sinks)
		if err != nil {
			return figures{}, err
		}
		publisher, err := nats.Connect(url)
		if err != nil {
			return figures{}, err
		}
		defer publisher.Close()
		body := make([]byte, payload)
		first := time.Since(began).Nanoseconds()
		for number := range messages {
			binary.LittleEndian.PutUint64(body, uint64(number))
			if err := publisher.Publish(subject, body); err != nil {
				return figures{}, err
			}
		}
		if err := publisher.Flush(); err != nil {
			return figures{}, err
		}
		last, err := wait(sinks, messages)
		if err != nil {
			return figures{}, err
		}
		seconds := float64(last-first) / 1e9
		return figures{
			Payload:    payload,
			Messages:   messages,
			Deliveries: messages * int64(fanOut),
			PerSecond:  float64(messages*int64(fanOut)) / seconds,
		}, nil
	}
}

// openLoop publishes at fixed times, whatever comes of it; latency counts from the time at which a message was due.
func openLoop(perSecond, payload, fanOut int) func(string, options) (figures, error) {
	return func(url string, o options) (figures, error) {
		messages := int64(max(1000, int(o.seconds*float64(perSecond))))
		warm := messages / 10
		began := time.Now()
		sinks, err := subscribe(url, fanOut, began, int(messages))
		defer closeAll(sinks)
		if err != nil {
			return figures{}, err
		}
		publisher, err := nats.Connect(url)
		if err != nil {
			return figures{}, err
		}
		defer publisher.Close()
		late, err := publishOnTime(publisher, began, perSecond, payload, messages)
		if err != nil {
			return figures{}, err
		}
		if _, err := wait(sinks, messages); err != nil {
			return figures{}, err
		}
		var all []int64
		for _, s := range sinks {
			all = append(all, s.latencies[warm:]...)
		}
		f := figures{Payload: payload, Messages: messages, Deliveries: messages * int64(fanOut), PerSecond: float64(perSecond)}
		f.latencies(all)
		f.LateP99Micros = quantile(late[warm:], 0.99) / 1000
		return f, nil
	}
}

// publishOnTime returns by how much each message left late. The runtime's timers have a grain of a millisecond where its
// poller waits, so a thread of its own sleeps in the kernel.
func publishOnTime(to *nats.Conn, began time.Time, perSecond, payload int, messages int64) ([]int64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const prSetTimerSlack = 29
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetTimerSlack, 1, 0); errno != 0 {
		return nil, errno
	}
	body := make([]byte, payload)
	late := make([]int64, 0, messages)
	interval := int64(time.Second) / int64(perSecond)
	first := time.Since(began).Nanoseconds() + int64(10*time.Millisecond)
	for number := range messages {
		due := first + number*interval
		for {
			left := due - time.Since(began).Nanoseconds()
			if left <= 0 {
				late = append(late, -left)
				break
			}
			span := syscall.NsecToTimespec(left)
			_ = syscall.Nanosleep(&span, nil)
		}
		binary.LittleEndian.PutUint64(body, uint64(number))
		binary.LittleEndian.PutUint64(body[8:], uint64(due))
		if err := to.Publish(subject, body); err != nil {
			return nil, err
		}
	}
	return late, to.Flush()
}
