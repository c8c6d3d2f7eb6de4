//! Publishers and subscribers on several threads: one order, no duplicates, no losses, no endless waits.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use thalweg_broker::{
    Broker, Budget, Credit, Link, Notify, Outbound, Policy, SubscribeOptions, SubscriptionId, TakeResult,
};

use crate::common::{Bell, Rng, broker, message, number, pattern, quiet, seeds, subscribe};

const PUBLISHERS: u64 = 3;

/// Publisher in the high 32 bits, its message count in the low 32 bits.
fn stamp(publisher: u64, count: u64) -> u64 {
    publisher << 32 | count
}

/// Takes the items of a link until `done` is set and nothing is left.
fn drain(link: &Link, bell: &Bell, done: &AtomicBool) -> Vec<Outbound> {
    let mut out = Vec::new();
    let mut seen = 0;
    loop {
        let over = done.load(Ordering::SeqCst);
        while link.take(&mut out, Budget { batches: 16, bytes: 1 << 16 }) == TakeResult::More {}
        if over {
            return out;
        }
        seen = bell.wait(seen);
    }
}

/// Publishes `count` messages, and waits for room whenever a publish is blocked.
fn publish_all(broker: &Broker, publisher: u64, count: u64, subjects: &[&str], seed: u64) {
    let bell = Bell::new();
    let waiter: Arc<dyn Notify> = bell.clone();
    let mut rng = Rng(seed ^ publisher);
    let mut seen = 0;
    for number in 0..count {
        let batch = message(rng.pick(subjects), stamp(publisher, number));
        while broker.publish(&batch, Some(&waiter)).is_err() {
            seen = bell.wait(seen);
        }
    }
}

#[test]
fn one_order_for_all_subscribers_of_a_subject() {
    for seed in seeds(8) {
        println!("seed {seed}");
        let broker = broker();
        let done = AtomicBool::new(false);
        // Literal and wildcard subscriptions, with large and tiny queues, created in mixed order.
        let wanted: &[(&str, u64)] = &[("a.x", 9999), ("a.*", 3), (">", 9999), ("*.x", 7), ("a.x", 2), ("a.>", 9999)];
        let links: Vec<_> = wanted
            .iter()
            .map(|(text, room)| {
                let bell = Bell::new();
                let link = broker.open_link(bell.clone()).unwrap();
                let options =
                    SubscribeOptions { policy: Policy::Block, max_messages: *room, ..SubscribeOptions::DEFAULTS };
                link.subscribe(SubscriptionId(1), pattern(text), &options).unwrap();
                (link, bell)
            })
            .collect();
        let got: Vec<Vec<u64>> = thread::scope(|scope| {
            let readers: Vec<_> = links
                .iter()
                .map(|(link, bell)| scope.spawn(|| drain(link, bell, &done).iter().map(sole).collect()))
                .collect();
            let writers: Vec<_> = (0..PUBLISHERS)
                .map(|publisher| {
                    let broker = &broker;
                    scope.spawn(move || publish_all(broker, publisher, 2000, &["a.x"], seed))
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            done.store(true, Ordering::SeqCst);
            links.iter().for_each(|(_, bell)| bell.notify());
            readers.into_iter().map(|reader| reader.join().unwrap()).collect()
        });
        assert_eq!(got[0].len() as u64, PUBLISHERS * 2000, "seed {seed}: each message must arrive once");
        assert_publishers_in_order(&got[0], seed);
        for other in &got[1..] {
            assert!(*other == got[0], "seed {seed}: the orders differ");
        }
    }
}

fn sole(item: &Outbound) -> u64 {
    match item {
        Outbound::Batch { batch, .. } => number(batch),
        other => panic!("no message may be dropped: {other:?}"),
    }
}

fn assert_publishers_in_order(got: &[u64], seed: u64) {
    let mut last = BTreeMap::new();
    for number in got {
        let before = last.insert(number >> 32, number & 0xffff_ffff);
        assert!(before.is_none_or(|before| before < number & 0xffff_ffff), "seed {seed}: out of order");
    }
}

#[test]
fn a_publishers_order_holds_over_subjects() {
    for seed in seeds(8) {
        println!("seed {seed}");
        let broker = broker();
        let done = AtomicBool::new(false);
        let bell = Bell::new();
        let link = broker.open_link(bell.clone()).unwrap();
        subscribe(&link, 1, "s.*");
        let got = thread::scope(|scope| {
            let reader = scope.spawn(|| drain(&link, &bell, &done));
            let writers: Vec<_> = (0..PUBLISHERS)
                .map(|publisher| {
                    let broker = &broker;
                    scope.spawn(move || publish_all(broker, publisher, 3000, &["s.a", "s.b", "s.c", "s.d"], seed))
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            done.store(true, Ordering::SeqCst);
            bell.notify();
            reader.join().unwrap()
        });
        let got: Vec<u64> = got.iter().map(sole).collect();
        assert_eq!(got.len() as u64, PUBLISHERS * 3000);
        assert_publishers_in_order(&got, seed);
    }
}

#[test]
fn a_group_under_fire_delivers_each_once_while_members_block() {
    for seed in seeds(6) {
        println!("seed {seed}");
        let broker = broker();
        let done = AtomicBool::new(false);
        let links: Vec<_> = (0..3)
            .map(|_| {
                let bell = Bell::new();
                let link = broker.open_link(bell.clone()).unwrap();
                let options = SubscribeOptions {
                    policy: Policy::Block,
                    max_messages: 4,
                    group: Some(b"workers".to_vec()),
                    ..SubscribeOptions::DEFAULTS
                };
                link.subscribe(SubscriptionId(1), pattern("jobs.*"), &options).unwrap();
                (link, bell)
            })
            .collect();
        let mut got: Vec<u64> = thread::scope(|scope| {
            let readers: Vec<_> = links.iter().map(|(link, bell)| scope.spawn(|| drain(link, bell, &done))).collect();
            let writers: Vec<_> = (0..PUBLISHERS)
                .map(|publisher| {
                    let broker = &broker;
                    scope.spawn(move || publish_all(broker, publisher, 2000, &["jobs.a", "jobs.b"], seed))
                })
                .collect();
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            done.store(true, Ordering::SeqCst);
            links.iter().for_each(|(_, bell)| bell.notify());
            readers.into_iter().flat_map(|reader| reader.join().unwrap()).map(|item| sole(&item)).collect()
        });
        got.sort_unstable();
        let expected: Vec<u64> = (0..PUBLISHERS).flat_map(|of| (0..2000).map(move |at| stamp(of, at))).collect();
        assert!(
            got == expected,
            "seed {seed}: each message must arrive exactly once; received {} of {}",
            got.len(),
            expected.len()
        );
    }
}

#[test]
fn storms_of_subscriptions_while_others_publish() {
    for seed in seeds(4) {
        println!("seed {seed}");
        let broker = broker();
        let bell = Bell::new();
        let constant = broker.open_link(bell).unwrap();
        let options = SubscribeOptions { policy: Policy::DropOld, max_messages: 50, ..SubscribeOptions::DEFAULTS };
        constant.subscribe(SubscriptionId(1), pattern("storm.>"), &options).unwrap();
        let running = AtomicUsize::new(3);
        let subjects = ["storm.a", "storm.b", "storm.c.d"];
        thread::scope(|scope| {
            for thread in 0..3_u64 {
                let (broker, running) = (&broker, &running);
                scope.spawn(move || {
                    storm(broker, Rng(seed * 100 + thread));
                    running.fetch_sub(1, Ordering::SeqCst);
                });
            }
            for publisher in 0..2_u64 {
                let (broker, running, bell) = (&broker, &running, Bell::new());
                scope.spawn(move || {
                    let waiter: Arc<dyn Notify> = bell;
                    let mut rng = Rng(seed ^ publisher);
                    while running.load(Ordering::SeqCst) > 0 {
                        // A blocked publisher gives up, because no driver drains these links for long.
                        let _ = broker.publish(&message(rng.pick(&subjects), 1), Some(&waiter));
                    }
                });
            }
        });
        let stats = broker.stats();
        assert_eq!((stats.subscriptions, stats.links), (1, 1), "seed {seed}");
        for text in subjects {
            assert_eq!(
                broker.publish(&message(text, 1), None).unwrap().delivered,
                1,
                "seed {seed}: the subscription that stayed must get all messages"
            );
        }
        drop(constant);
        assert_eq!(broker.stats().queued_bytes, 0, "seed {seed}");
        assert!(!broker.publish(&message("storm.a", 1), None).unwrap().matched());
    }
}

fn storm(broker: &Broker, mut rng: Rng) {
    const PATTERNS: &[&str] = &["storm.a", "storm.*", "storm.c.*", "*.b", ">", "storm.b"];
    let mut link = broker.open_link(quiet()).unwrap();
    let mut ids = Vec::new();
    let mut out = Vec::new();
    for id in 0..3000 {
        match rng.below(16) {
            0 => {
                link = broker.open_link(quiet()).unwrap();
                ids.clear();
            }
            1..=5 if !ids.is_empty() => {
                let at = rng.below(ids.len() as u64) as usize;
                link.unsubscribe(ids.swap_remove(at)).unwrap();
            }
            6..=8 => {
                out.clear();
                let _ = link.take(&mut out, Budget::DEFAULT);
            }
            _ => {
                let policy = rng.pick(&[Policy::Block, Policy::DropNew, Policy::DropOld, Policy::Disconnect]);
                let group = (rng.below(3) == 0).then(|| b"g".to_vec());
                let credit = if rng.below(2) == 0 { Credit::UNLIMITED } else { Credit { messages: 9, bytes: 99 } };
                let max_messages = 1 + rng.below(1000);
                let options = SubscribeOptions { policy, group, credit, max_messages, ..SubscribeOptions::DEFAULTS };
                match link.subscribe(SubscriptionId(id), pattern(rng.pick(PATTERNS)), &options) {
                    Ok(()) => ids.push(SubscriptionId(id)),
                    Err(_) => {
                        link = broker.open_link(quiet()).unwrap();
                        ids.clear();
                    }
                }
            }
        }
    }
}
