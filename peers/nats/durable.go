package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// connectStream gives a connection's view of the stream, which is made if it is not there.
func connectStream(url string, pending int) (*nats.Conn, jetstream.JetStream, error) {
	connection, err := nats.Connect(url)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(pending))
	if err == nil {
		_, err = js.CreateOrUpdateStream(context.Background(), jetstream.StreamConfig{
			Name: "bench", Subjects: []string{"durable.>"}, Storage: jetstream.FileStorage,
		})
	}
	if err != nil {
		connection.Close()
		return nil, nil, err
	}
	return connection, js, nil
}

// checkStored: what was acknowledged must be in the stream.
func checkStored(js jetstream.JetStream, messages int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := js.Stream(ctx, "bench")
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return err
	}
	if int64(info.State.Msgs) != messages {
		return fmt.Errorf("%d messages were acknowledged, the stream has %d", messages, info.State.Msgs)
	}
	return nil
}

// durableSync: publishers with a connection each, which wait for an ack before they publish the next.
func durableSync(publishers, payload int) func(string, options) (figures, error) {
	return func(url string, o options) (figures, error) {
		var connections []*nats.Conn
		var streams []jetstream.JetStream
		defer func() {
			for _, connection := range connections {
				connection.Close()
			}
		}()
		for range publishers {
			connection, js, err := connectStream(url, 1)
			if err != nil {
				return figures{}, err
			}
			connections, streams = append(connections, connection), append(streams, js)
		}
		var sum atomic.Int64
		errs := make(chan error, publishers)
		all := make([][]int64, publishers)
		began := time.Now()
		until := began.Add(time.Duration(o.seconds * float64(time.Second)))
		var group sync.WaitGroup
		for at, js := range streams {
			group.Add(1)
			go func() {
				defer group.Done()
				body := make([]byte, payload)
				for sent := time.Now(); sent.Before(until); sent = time.Now() {
					if _, err := js.Publish(context.Background(), "durable.subject", body); err != nil {
						errs <- err
						return
					}
					all[at] = append(all[at], time.Since(sent).Nanoseconds())
					sum.Add(1)
				}
			}()
		}
		group.Wait()
		seconds := time.Since(began).Seconds()
		select {
		case err := <-errs:
			return figures{}, err
		default:
		}
		messages := sum.Load()
		if err := checkStored(streams[0], messages); err != nil {
			return figures{}, err
		}
		f := figures{Payload: payload, Messages: messages, PerSecond: float64(messages) / seconds}
		var together []int64
		for _, one := range all {
			together = append(together, one...)
		}
		f.latencies(together)
		return f, nil
	}
}

// durableBatches: one publisher that publishes a batch, waits for all its acks, and goes on with the next.
func durableBatches(batch, payload int) func(string, options) (figures, error) {
	return func(url string, o options) (figures, error) {
		connection, js, err := connectStream(url, batch)
		if err != nil {
			return figures{}, err
		}
		defer connection.Close()
		body := make([]byte, payload)
		var messages int64
		var each []int64
		began := time.Now()
		until := began.Add(time.Duration(o.seconds * float64(time.Second)))
		for sent := time.Now(); sent.Before(until); sent = time.Now() {
			acks := make([]jetstream.PubAckFuture, batch)
			for at := range acks {
				if acks[at], err = js.PublishAsync("durable.subject", body); err != nil {
					return figures{}, err
				}
			}
			for _, ack := range acks {
				select {
				case <-ack.Ok():
				case err := <-ack.Err():
					return figures{}, err
				case <-time.After(patience):
					return figures{}, fmt.Errorf("no ack within %s", patience)
				}
			}
			messages += int64(batch)
			each = append(each, time.Since(sent).Nanoseconds())
		}
		seconds := time.Since(began).Seconds()
		if err := checkStored(js, messages); err != nil {
			return figures{}, err
		}
		f := figures{Payload: payload, Messages: messages, PerSecond: float64(messages) / seconds}
		f.latencies(each)
		return f, nil
	}
}
