// Command redis-check does with a server what Go programs do with go-redis: every family of commands, in both protocols.
//
// Usage: go run . HOST:PORT. Ends with status 0 if all is as with Redis; says what is not and ends with 1 otherwise.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const prefix = "check-go:"

// wrong is what a check panics with.
type wrong string

func must(err error) {
	if err != nil {
		panic(wrong(err.Error()))
	}
}

func same[T any](got T, err error, wanted T) {
	must(err)
	if !reflect.DeepEqual(got, wanted) {
		panic(wrong(fmt.Sprintf("%v instead of %v", got, wanted)))
	}
}

func is(holds bool, what string) {
	if !holds {
		panic(wrong(what))
	}
}

type check struct {
	name string
	run  func(ctx context.Context, r *redis.Client, key string)
}

var checks = []check{
	{"strings", func(ctx context.Context, r *redis.Client, key string) {
		must(r.Set(ctx, key, "v", time.Minute).Err())
		value, err := r.Get(ctx, key).Result()
		same(value, err, "v")
		_, err = r.Get(ctx, key+"none").Result()
		is(errors.Is(err, redis.Nil), "a missing key is Nil")
		set, err := r.SetNX(ctx, key, "w", 0).Result()
		same(set, err, false)
		left, err := r.TTL(ctx, key).Result()
		must(err)
		is(left > 50*time.Second && left <= time.Minute, "time to live: "+left.String())
		number, err := r.IncrBy(ctx, key+"n", 7).Result()
		same(number, err, 7)
		half, err := r.IncrByFloat(ctx, key+"f", 0.5).Result()
		same(half, err, 0.5)
		values, err := r.MGet(ctx, key, key+"none", key+"n").Result()
		same(values, err, []any{"v", nil, "7"})
	}},
	{"hashes", func(ctx context.Context, r *redis.Client, key string) {
		type row struct {
			Name string `redis:"name"`
			Age  int    `redis:"age"`
		}
		added, err := r.HSet(ctx, key, row{"Ada", 36}).Result()
		same(added, err, 2)
		var back row
		must(r.HGetAll(ctx, key).Scan(&back))
		same(back, nil, row{"Ada", 36})
		age, err := r.HIncrBy(ctx, key, "age", 1).Result()
		same(age, err, 37)
		found, _, err := r.HScan(ctx, key, 0, "a*", 10).Result()
		same(found, err, []string{"age", "37"})
	}},
	{"keys", func(ctx context.Context, r *redis.Client, key string) {
		for number := range 40 {
			must(r.Set(ctx, key+strconv.Itoa(number), number, 0).Err())
		}
		found := map[string]bool{}
		for names := r.Scan(ctx, 0, key+"*", 7).Iterator(); names.Next(ctx); {
			found[names.Val()] = true
		}
		is(len(found) == 40, fmt.Sprintf("SCAN found %d of 40", len(found)))
		kind, err := r.Type(ctx, key+"1").Result()
		same(kind, err, "string")
		renamed, err := r.RenameNX(ctx, key+"1", key+"2").Result()
		same(renamed, err, false)
	}},
	{"transactions", func(ctx context.Context, r *redis.Client, key string) {
		replies, err := r.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, key, 1, 0)
			pipe.Incr(ctx, key)
			return nil
		})
		must(err)
		is(len(replies) == 2 && replies[1].(*redis.IntCmd).Val() == 2, "replies of a transaction")
		// Ten add ten each, each addition of which may be repeated.
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				for done := 0; done < 10; {
					err := r.Watch(ctx, func(tx *redis.Tx) error {
						was, err := tx.Get(ctx, key).Int()
						if err != nil {
							return err
						}
						_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
							pipe.Set(ctx, key, was+1, 0)
							return nil
						})
						return err
					}, key)
					if err == nil {
						done++
					} else if !errors.Is(err, redis.TxFailedErr) {
						return
					}
				}
			})
		}
		all.Wait()
		sum, err := r.Get(ctx, key).Int()
		same(sum, err, 102)
	}},
	{"streams", func(ctx context.Context, r *redis.Client, key string) {
		var ids []string
		for number := range 10 {
			id, err := r.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"n", number}}).Result()
			must(err)
			ids = append(ids, id)
		}
		must(r.XGroupCreate(ctx, key, "g", "0").Err())
		read, err := r.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{key, ">"}, Count: 6}).Result()
		must(err)
		is(len(read) == 1 && len(read[0].Messages) == 6 && read[0].Messages[0].ID == ids[0], "six entries of a group")
		acked, err := r.XAck(ctx, key, "g", ids[:4]...).Result()
		same(acked, err, 4)
		pending, err := r.XPending(ctx, key, "g").Result()
		must(err)
		is(pending.Count == 2 && pending.Consumers["c"] == 2, "two are pending")
		claimed, _, err := r.XAutoClaim(ctx, &redis.XAutoClaimArgs{Stream: key, Group: "g", Consumer: "d", Start: "0"}).Result()
		must(err)
		is(len(claimed) == 2 && claimed[0].ID == ids[4], "both are claimed")
		length, err := r.XTrimMaxLen(ctx, key, 3).Result()
		same(length, err, 7)
	}},
	{"waiting", func(ctx context.Context, r *redis.Client, key string) {
		// Nothing comes: nil when the time is up.
		_, err := r.XRead(ctx, &redis.XReadArgs{Streams: []string{key, "$"}, Block: 20 * time.Millisecond}).Result()
		is(errors.Is(err, redis.Nil), "XREAD's time is up")
		must(r.XGroupCreateMkStream(ctx, key, "g", "$").Err())
		// A member that gives up while it waits leaves the entry to another one.
		impatient, giveUp := context.WithTimeout(ctx, 50*time.Millisecond)
		defer giveUp()
		wait := &redis.XReadGroupArgs{Group: "g", Consumer: "gone", Streams: []string{key, ">"}, Block: time.Minute}
		other := redis.NewClient(&redis.Options{Addr: r.Options().Addr, ContextTimeoutEnabled: true})
		_, err = other.XReadGroup(impatient, wait).Result()
		is(err != nil && !errors.Is(err, redis.Nil), "it gave up")
		must(other.Close())
		read := make(chan []redis.XStream, 1)
		go func() {
			wait := &redis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{key, ">"}, Block: 10 * time.Second}
			streams, _ := r.XReadGroup(ctx, wait).Result()
			read <- streams
		}()
		id, err := r.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"n", "late"}}).Result()
		must(err)
		streams := <-read
		is(len(streams) == 1 && len(streams[0].Messages) == 1 && streams[0].Messages[0].ID == id, "the entry that came late")
	}},
	{"bursts", func(ctx context.Context, r *redis.Client, key string) {
		replies, err := r.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for number := range 1000 {
				pipe.Set(ctx, key+strconv.Itoa(number%100), number, 0)
				pipe.HIncrBy(ctx, key+"h", "sum", int64(number))
				pipe.Get(ctx, key+strconv.Itoa(number%100))
			}
			return nil
		})
		must(err)
		for number := range 1000 {
			same(replies[3*number+2].(*redis.StringCmd).Val(), nil, strconv.Itoa(number))
		}
		sum, err := r.HGet(ctx, key+"h", "sum").Int()
		same(sum, err, 499500)
		// An error of one is its own.
		replies, err = r.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, key, "word", 0)
			pipe.Incr(ctx, key)
			pipe.Get(ctx, key)
			return nil
		})
		is(err != nil && replies[1].Err() != nil && replies[2].(*redis.StringCmd).Val() == "word", "an error in a burst")
	}},
	{"channels", func(ctx context.Context, r *redis.Client, key string) {
		subscribed := r.PSubscribe(ctx, key+"*")
		defer subscribed.Close()
		_, err := subscribed.Receive(ctx)
		must(err)
		count, err := r.Publish(ctx, key+"a", "hello").Result()
		same(count, err, 1)
		message, err := subscribed.ReceiveMessage(ctx)
		must(err)
		is(message.Channel == key+"a" && message.Pattern == key+"*" && message.Payload == "hello", "a message")
		must(subscribed.Ping(ctx))
		number, err := r.PubSubNumPat(ctx).Result()
		must(err)
		is(number >= 1, "patterns are counted")
	}},
}

func try(ctx context.Context, r *redis.Client, check check) (problem any) {
	defer func() { problem = recover() }()
	check.run(ctx, r, prefix+check.name+":")
	return nil
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run . HOST:PORT")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	failed := 0
	for _, protocol := range []int{2, 3} {
		r := redis.NewClient(&redis.Options{Addr: os.Args[1], Protocol: protocol, ClientName: "check-go"})
		for _, check := range checks {
			if problem := try(ctx, r, check); problem != nil {
				failed++
				fmt.Printf("RESP%d %s: %v\n", protocol, check.name, problem)
			} else {
				fmt.Printf("RESP%d %s: as with Redis\n", protocol, check.name)
			}
			for names := r.Scan(ctx, 0, prefix+"*", 100).Iterator(); names.Next(ctx); {
				r.Del(ctx, names.Val())
			}
		}
		must(r.Close())
	}
	fmt.Printf("go-redis: %d of %d families differ\n", failed, 2*len(checks))
	if failed > 0 {
		os.Exit(1)
	}
}
