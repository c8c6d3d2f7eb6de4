//! CPU time of a delivery: publishing, queueing and taking, without sockets and encoding. Some lines of the output are
//! measured with several threads.
//!
//! `cargo run --release -p thalweg-broker --example fanout_cost`

#![allow(unreachable_pub, reason = "an example has no interface")]
#![allow(clippy::print_stdout, reason = "figures are printed")]

mod shared;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use shared::{Cpu, stop_counting};
use thalweg_broker::{
    Batch, Batching, Broker, BrokerConfig, Budget, Coalescer, Link, Moment, Notify, Outbound, Pattern, Policy, Subject,
    SubscribeOptions, SubscriptionId, TakeResult,
};

const MESSAGE_BYTES: usize = 128;
const RUN: Duration = Duration::from_millis(700);

fn links(broker: &Broker, subscribers: usize, per_link: usize, policy: Policy, notify: &Arc<dyn Notify>) -> Vec<Link> {
    let links: Vec<Link> =
        (0..subscribers / per_link).map(|_| broker.open_link(Arc::clone(notify)).expect("room")).collect();
    for link in &links {
        for id in 0..per_link {
            let options = SubscribeOptions { policy, max_messages: 8192, ..SubscribeOptions::DEFAULTS };
            let pattern = Pattern::parse(b"bench.*").expect("a pattern");
            link.subscribe(SubscriptionId(id as u64), pattern, &options).expect("room");
        }
    }
    links
}

fn count(out: &[Outbound]) -> u64 {
    let deliveries = out.iter().map(|item| match item {
        Outbound::Batch { batch, subscriptions } => u64::from(batch.messages()) * subscriptions.len() as u64,
        other => panic!("no message may be dropped: {other:?}"),
    });
    deliveries.sum()
}

/// Allocates a new batch, as a connection does for each batch of messages that it reads.
fn fresh(to: &Subject, encoded: &[u8], messages: u32) -> Batch {
    Batch::new(to.clone(), Bytes::copy_from_slice(encoded), messages).expect("a batch")
}

/// Runs the publisher and the drivers (the code that takes batches from links) on one thread, to measure the total work
/// of one core.
fn one_thread(subscribers: usize, per_link: usize, messages: u32) {
    let broker = Broker::new(BrokerConfig { seed: 1, ..BrokerConfig::DEFAULTS });
    let quiet: Arc<dyn Notify> = Arc::new(|| {});
    let links = links(&broker, subscribers, per_link, Policy::Block, &quiet);
    let encoded = vec![7; MESSAGE_BYTES * messages as usize];
    let to = Subject::parse(b"bench.subject").expect("a subject");
    let mut out = Vec::new();
    let (mut published, mut taken) = (Duration::ZERO, Duration::ZERO);
    let (mut batches, mut deliveries) = (0_u64, 0);
    while published + taken < RUN {
        let start = Cpu::start();
        for _ in 0..64 {
            broker.publish(&fresh(&to, &encoded, messages), None).expect("room");
        }
        published += Duration::from_nanos(start.nanos());
        batches += 64;
        let start = Cpu::start();
        for link in &links {
            while link.take(&mut out, Budget::DEFAULT) == TakeResult::More {
                deliveries += count(&out);
                out.clear();
            }
            deliveries += count(&out);
            out.clear();
        }
        taken += Duration::from_nanos(start.nanos());
    }
    assert_eq!(deliveries, batches * u64::from(messages) * subscribers as u64, "each once");
    let each = |span: Duration| span.as_nanos() as f64 / deliveries as f64;
    let publish = published.as_nanos() as f64 / batches as f64;
    println!(
        "  1 → {subscribers:<4} {per_link:>3} a link, batch {messages:<3} {:7.1} ns a delivery: {:6.1} publishing, {:6.1} taking; {publish:8.0} ns a publish",
        each(published + taken),
        each(published),
        each(taken),
    );
}

/// Runs each publisher on its own thread, and one driver for all links on another thread, to measure contention on the
/// mutexes.
fn threads(publishers: usize, subscribers: usize, messages: u32, subjects: usize) {
    let broker = Broker::new(BrokerConfig { seed: 1, ..BrokerConfig::DEFAULTS });
    let ready = Arc::new(AtomicBool::new(false));
    let bell = Arc::clone(&ready);
    let notify: Arc<dyn Notify> = Arc::new(move || bell.store(true, Ordering::Release));
    let links = links(&broker, subscribers, 1, Policy::Block, &notify);
    let running = AtomicU64::new(publishers as u64);
    let start = Instant::now();
    let deliveries = thread::scope(|scope| {
        for publisher in 0..publishers {
            let (broker, running) = (&broker, &running);
            scope.spawn(move || {
                let waiter: Arc<dyn Notify> = Arc::new(|| {});
                let encoded = vec![7; MESSAGE_BYTES * messages as usize];
                let to: Vec<Subject> = (0..subjects)
                    .map(|at| Subject::parse(format!("bench.{publisher}-{at}").as_bytes()).expect("a subject"))
                    .collect();
                let mut at = 0;
                while start.elapsed() < RUN {
                    for _ in 0..64 {
                        let batch = fresh(&to[at % subjects], &encoded, messages);
                        while broker.publish(&batch, Some(&waiter)).is_err() {
                            thread::yield_now();
                        }
                        at += 1;
                    }
                }
                running.fetch_sub(1, Ordering::Release);
            });
        }
        let mut out = Vec::new();
        let mut deliveries = 0;
        loop {
            let over = running.load(Ordering::Acquire) == 0;
            if !ready.swap(false, Ordering::AcqRel) && !over {
                thread::yield_now();
                continue;
            }
            for link in &links {
                while link.take(&mut out, Budget::DEFAULT) == TakeResult::More {
                    deliveries += count(&out);
                    out.clear();
                }
                deliveries += count(&out);
                out.clear();
            }
            if over {
                return deliveries;
            }
        }
    });
    let rate = deliveries as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!(
        "  {publishers} publishers, {subjects:>3} subjects each → {subscribers:<3} batch {messages:<3} {rate:8.2} M deliveries/s, {:7.1} ns each",
        1e3 / rate
    );
}

/// Publishes single messages through a coalescer, which gathers them into batches, and prints the CPU time of each.
fn coalesced(name: &str, batching: Batching) {
    let broker = Broker::new(BrokerConfig { seed: 1, ..BrokerConfig::DEFAULTS });
    let quiet: Arc<dyn Notify> = Arc::new(|| {});
    let links = links(&broker, 1, 1, Policy::Block, &quiet);
    let to = Subject::parse(b"bench.subject").expect("a subject");
    let mut coalescer = Coalescer::<Vec<u8>>::new(batching);
    let (mut complete, mut out) = (Vec::new(), Vec::new());
    let mut messages = 0_usize;
    let start = Cpu::start();
    while Duration::from_nanos(start.nanos()) < RUN {
        for _ in 0..1024 {
            let add = |into: &mut Vec<u8>| {
                into.extend_from_slice(&[7; MESSAGE_BYTES]);
                Ok(())
            };
            let begin = |guess| Ok::<_, thalweg_broker::BatchError>(Vec::with_capacity(guess));
            coalescer.push(Moment::from_nanos(0), &to, MESSAGE_BYTES, begin, add, &mut complete).expect("small");
        }
        coalescer.flush(&mut complete);
        for batch in complete.drain(..) {
            broker.publish(&batch, None).expect("room");
        }
        messages += 1024;
        while links[0].take(&mut out, Budget::DEFAULT) == TakeResult::More {}
        out.clear();
    }
    println!("  {name:<11} {:7.1} ns a message, encoding by copying included", start.each(messages));
}

fn main() {
    stop_counting();
    println!("one thread does all; {MESSAGE_BYTES} B messages, a fresh batch for each publish");
    for messages in [1, 16, 64] {
        for (subscribers, per_link) in [(1, 1), (10, 1), (10, 10), (100, 1), (100, 100)] {
            one_thread(subscribers, per_link, messages);
        }
    }
    println!("publishers on threads, one driver that yields when there is nothing");
    for (publishers, subscribers) in [(1, 1), (1, 10), (2, 1), (2, 10)] {
        for messages in [1, 64] {
            threads(publishers, subscribers, messages, 1);
        }
    }
    threads(2, 10, 64, 50);
    println!("single messages of one publisher, 1 → 1");
    for (name, batching) in [
        ("unbatched", Batching { max_messages: 1, ..Batching::BALANCED }),
        ("latency", Batching::LATENCY),
        ("balanced", Batching::BALANCED),
        ("throughput", Batching::THROUGHPUT),
    ] {
        coalesced(name, batching);
    }
}
