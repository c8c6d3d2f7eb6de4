//! Queues: limits, policies, credit and gaps, compared with a model of one queue.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use thalweg_broker::{
    Batch, Broker, BrokerConfig, Budget, Credit, Link, LinkOwner, Losses, Outbound, Policy, SubscribeOptions,
    SubscriptionId, TakeResult,
};

use crate::common::{
    Bell, Received, Rng, broker, message, number, pattern, quiet, received_by, seeds, subject, subscribe, take,
};

fn sized(to: &str, number: u64, bytes: usize, messages: u32) -> Batch {
    let mut encoded = vec![0; bytes.max(8)];
    encoded[..8].copy_from_slice(&number.to_le_bytes());
    Batch::new(subject(to), Bytes::from(encoded), messages).unwrap()
}

fn options(policy: Policy, max_messages: u64, max_bytes: u64) -> SubscribeOptions {
    SubscribeOptions { policy, max_messages, max_bytes, ..SubscribeOptions::DEFAULTS }
}

fn open(broker: &Broker, to: &str, options: &SubscribeOptions) -> Link {
    let link = broker.open_link(quiet()).unwrap();
    link.subscribe(SubscriptionId(1), pattern(to), options).unwrap();
    link
}

/// A minimal model of one queue.
struct Model {
    policy: Policy,
    max: (u64, u64),
    credit: (i64, i64),
    /// Number, messages and bytes of each batch, and messages missed before it.
    queue: VecDeque<(u64, u64, u64, u64)>,
    missed_before: u64,
    missed_after: u64,
}

impl Model {
    fn fits(&self, messages: u64, bytes: u64) -> bool {
        let held = self.queue.iter().fold((0, 0), |held, item| (held.0 + item.1, held.1 + item.2));
        self.queue.is_empty() || (held.0 + messages <= self.max.0 && held.1 + bytes <= self.max.1)
    }

    /// Returns true if the publish succeeds.
    fn publish(&mut self, number: u64, messages: u64, bytes: u64) -> bool {
        while !self.fits(messages, bytes) {
            match self.policy {
                Policy::Block => return false,
                Policy::DropOld => {
                    let (_, messages, _, missed) = self.queue.pop_front().unwrap();
                    self.missed_before += messages + missed;
                }
                Policy::DropNew => {
                    self.missed_after += messages;
                    return true;
                }
                Policy::Disconnect => unreachable!("this test does not use that policy"),
            }
        }
        self.queue.push_back((number, messages, bytes, std::mem::take(&mut self.missed_after)));
        true
    }

    fn take(&mut self) -> Vec<Received> {
        let mut received = Vec::new();
        while self.credit.0 > 0 && self.credit.1 > 0 {
            let Some((number, messages, bytes, missed)) = self.queue.pop_front() else { break };
            let missed = missed + std::mem::take(&mut self.missed_before);
            if missed > 0 {
                received.push(Received::Gap(missed));
            }
            received.push(Received::Message(number));
            self.credit.0 -= messages as i64;
            self.credit.1 -= bytes as i64;
        }
        if self.queue.is_empty() && self.missed_after > 0 {
            received.push(Received::Gap(std::mem::take(&mut self.missed_after)));
        }
        received
    }
}

#[test]
fn each_policy_does_what_its_name_says() {
    for seed in seeds(40) {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        let broker = broker();
        let link = broker.open_link(quiet()).unwrap();
        let mut models = Vec::new();
        for (id, policy) in [Policy::Block, Policy::DropNew, Policy::DropOld].into_iter().enumerate() {
            let max = (1 + rng.below(40), 100 + rng.below(4000));
            let credit = Credit { messages: rng.below(20), bytes: rng.below(5000) };
            let options = SubscribeOptions { credit, ..options(policy, max.0, max.1) };
            // Each subscription matches a subject of its own, and one that all share.
            link.subscribe(SubscriptionId(id as u64), pattern(&format!("own.{id}")), &options).unwrap();
            models.push(Model {
                policy,
                max,
                credit: (credit.messages as i64, credit.bytes as i64),
                queue: VecDeque::new(),
                missed_before: 0,
                missed_after: 0,
            });
        }
        for step in 0..3000 {
            let id = rng.below(3) as usize;
            match rng.below(10) {
                0 => {
                    let credit = Credit { messages: rng.below(60), bytes: rng.below(6000) };
                    link.grant(SubscriptionId(id as u64), credit).unwrap();
                    models[id].credit.0 += credit.messages as i64;
                    models[id].credit.1 += credit.bytes as i64;
                }
                1 => {
                    let out = take(&link);
                    for (id, model) in models.iter_mut().enumerate() {
                        assert_eq!(received_by(id as u64, &out), model.take(), "seed {seed} step {step} queue {id}");
                    }
                }
                _ => {
                    let (messages, bytes) = (1 + rng.below(8), 8 + rng.below(300));
                    let batch = sized(&format!("own.{id}"), step, bytes as usize, messages as u32);
                    let happened = broker.publish(&batch, None).is_ok();
                    assert_eq!(happened, models[id].publish(step, messages, bytes), "seed {seed} step {step}");
                }
            }
            for (id, model) in models.iter().enumerate() {
                let stats = link.queue_stats(SubscriptionId(id as u64)).unwrap();
                let held = model.queue.iter().fold((0, 0), |held, item| (held.0 + item.1, held.1 + item.2));
                assert_eq!((stats.messages, stats.bytes), held, "seed {seed} step {step} queue {id}");
            }
        }
    }
}

#[test]
fn a_blocked_publish_happens_for_nobody_and_wakes_its_publisher() {
    let broker = broker();
    let (free, full) =
        (open(&broker, "a", &SubscribeOptions::DEFAULTS), open(&broker, "a", &options(Policy::Block, 2, 99)));
    let bell = Bell::new();
    let waiter: std::sync::Arc<dyn thalweg_broker::Notify> = bell.clone();
    for number in 0..2 {
        broker.publish(&message("a", number), Some(&waiter)).unwrap();
    }
    let blocked = broker.publish(&message("a", 2), Some(&waiter)).unwrap_err();
    assert_eq!((blocked.link, blocked.subscription), (full.id(), SubscriptionId(1)));
    assert_eq!(
        received_by(1, &take(&free)),
        [Received::Message(0), Received::Message(1)],
        "a blocked publish delivers nothing"
    );
    assert_eq!(bell.count(), 0);
    assert_eq!(take(&full).len(), 2);
    assert_eq!(bell.count(), 1, "room");
    broker.publish(&message("a", 2), Some(&waiter)).unwrap();
    assert_eq!(received_by(1, &take(&free)), [Received::Message(2)], "once");
    assert_eq!(received_by(1, &take(&full)), [Received::Message(2)]);
    assert_eq!(bell.count(), 1, "no publisher waits any more");
    assert_eq!(broker.stats().blocked, 1);
}

#[test]
fn room_reserved_for_a_publish_that_failed_is_free_again() {
    let broker = broker();
    let links: Vec<_> = (0..4).map(|_| open(&broker, "a", &options(Policy::Block, 1, 99))).collect();
    for turn in 0..4 {
        // A different link is full in each turn. Links before it in the order get a reservation and lose it.
        let own = links[turn].id();
        links[turn].subscribe(SubscriptionId(2), pattern("own"), &options(Policy::Block, 1, 99)).unwrap();
        broker.publish(&message("own", 0), None).unwrap();
        links[turn].unsubscribe(SubscriptionId(1)).unwrap();
        links[turn].subscribe(SubscriptionId(3), pattern("a"), &options(Policy::Block, 1, 99)).unwrap();
        broker.publish(&message("a", 1), None).unwrap();
        for link in links.iter().filter(|link| link.id() != own) {
            assert_eq!(take(link).len(), 1);
        }
        assert_eq!(broker.publish(&message("a", 2), None).unwrap_err().link, own);
        for link in links.iter().filter(|link| link.id() != own) {
            assert_eq!(link.stats().messages, 0, "no reservation and no message may be left");
        }
        take(&links[turn]);
        links[turn].unsubscribe(SubscriptionId(2)).unwrap();
        links[turn].unsubscribe(SubscriptionId(3)).unwrap();
        links[turn].subscribe(SubscriptionId(1), pattern("a"), &options(Policy::Block, 1, 99)).unwrap();
    }
}

#[test]
fn a_publisher_waits_for_a_subscription_that_goes() {
    for how in 0..3 {
        let broker = broker();
        let link = open(&broker, "a", &options(Policy::Block, 1, 99));
        subscribe(&link, 2, "b");
        let bell = Bell::new();
        let waiter: std::sync::Arc<dyn thalweg_broker::Notify> = bell.clone();
        broker.publish(&message("a", 0), Some(&waiter)).unwrap();
        broker.publish(&message("a", 1), Some(&waiter)).unwrap_err();
        match how {
            0 => link.unsubscribe(SubscriptionId(1)).unwrap(),
            1 => drop(link),
            _ => {
                // The link is closed because of another subscription.
                let options = options(Policy::Disconnect, 1, 99);
                link.subscribe(SubscriptionId(3), pattern("c"), &options).unwrap();
                broker.publish(&message("c", 0), None).unwrap();
                broker.publish(&message("c", 1), None).unwrap();
                assert_eq!(received_by(3, &take(&link)), [Received::Disconnect(2)]);
            }
        }
        assert_eq!(bell.count(), 1, "way {how}");
        assert!(!broker.publish(&message("a", 1), Some(&waiter)).unwrap().matched());
    }
}

#[test]
fn disconnect_gives_up_the_link_and_its_memory_at_once() {
    let broker = broker();
    let bell = Bell::new();
    let link = broker.open_link(bell.clone()).unwrap();
    subscribe(&link, 1, "other");
    link.subscribe(SubscriptionId(2), pattern("a"), &options(Policy::Disconnect, 2, 1000)).unwrap();
    broker.publish(&message("other", 0), None).unwrap();
    for number in 0..2 {
        assert_eq!(broker.publish(&message("a", number), None).unwrap().delivered, 1);
    }
    let published = broker.publish(&message("a", 2), None).unwrap();
    assert_eq!((published.delivered, published.missed), (0, 1));
    assert_eq!(broker.stats().queued_bytes, 0);
    assert!(!broker.publish(&message("a", 3), None).unwrap().matched(), "publishers must no longer match the link");
    assert!(link.subscribe(SubscriptionId(5), pattern("x"), &SubscribeOptions::DEFAULTS).is_err());
    let out = take(&link);
    assert!(matches!(&*out, [Outbound::Disconnect { subscription: SubscriptionId(2), messages: 3 }]), "{out:?}");
    assert!(take(&link).is_empty(), "reported only once");
    assert_eq!(bell.count(), 2, "one call for the first message, one for the disconnect");
    drop(link);
    assert_eq!(broker.stats().subscriptions, 0);
}

#[test]
fn a_batch_beyond_the_bounds_is_let_in_when_there_is_nothing_else() {
    for policy in [Policy::Block, Policy::DropNew, Policy::DropOld, Policy::Disconnect] {
        let broker = broker();
        let link = open(&broker, "a", &options(policy, 10, 100));
        let large = sized("a", 7, 5000, 64);
        assert_eq!(broker.publish(&large, None).unwrap().delivered, 1);
        match broker.publish(&message("a", 8), None) {
            Err(_) => assert_eq!(policy, Policy::Block),
            Ok(published) => assert_eq!(published.delivered == 1, policy == Policy::DropOld),
        }
        let expected: &[Received] = match policy {
            Policy::Block => &[Received::Message(7)],
            Policy::DropNew => &[Received::Message(7), Received::Gap(1)],
            Policy::DropOld => &[Received::Gap(64), Received::Message(8)],
            Policy::Disconnect => &[Received::Disconnect(65)],
        };
        assert_eq!(received_by(1, &take(&link)), expected, "{policy:?}");
    }
}

#[test]
fn a_links_bound_counts_all_its_subscriptions() {
    let broker = Broker::new(BrokerConfig { max_link_bytes: 100, ..BrokerConfig::DEFAULTS });
    let link = open(&broker, "a", &options(Policy::DropNew, 100, 1000));
    link.subscribe(SubscriptionId(2), pattern("b"), &options(Policy::Block, 100, 1000)).unwrap();
    link.subscribe(SubscriptionId(3), pattern("c"), &options(Policy::DropOld, 100, 1000)).unwrap();
    assert_eq!(broker.publish(&sized("a", 1, 60, 1), None).unwrap().delivered, 1);
    assert_eq!(broker.publish(&sized("c", 2, 40, 1), None).unwrap().delivered, 1, "the batch fits exactly");
    assert!(broker.publish(&sized("b", 3, 8, 1), None).is_err());
    assert_eq!(broker.publish(&sized("a", 4, 8, 1), None).unwrap().missed, 1);
    assert_eq!(broker.publish(&sized("c", 5, 40, 1), None).unwrap().delivered, 1, "replaces its own oldest batch");
    assert_eq!(broker.publish(&sized("c", 6, 41, 1), None).unwrap().missed, 1, "must not replace batches of others");
    let out = take(&link);
    assert_eq!(received_by(1, &out), [Received::Message(1), Received::Gap(1)]);
    assert_eq!(received_by(3, &out), [Received::Gap(3)], "the gap is reported at the position of the missed message");
    broker.publish(&sized("b", 3, 8, 1), None).unwrap();
}

#[test]
fn the_brokers_bound_counts_all_links() {
    let step = 64 * 1024;
    let broker = Broker::new(BrokerConfig { max_queued_bytes: 3 * step, ..BrokerConfig::DEFAULTS });
    let links: Vec<_> =
        (0..3).map(|at| open(&broker, &format!("s{at}"), &options(Policy::DropNew, 100, 1 << 40))).collect();
    let publish = |at: usize| broker.publish(&sized(&format!("s{at}"), 0, step as usize, 1), None).unwrap().delivered;
    assert_eq!((publish(0), publish(0), publish(1)), (1, 1, 1));
    assert_eq!((publish(0), publish(1)), (0, 0), "full");
    assert_eq!(publish(2), 1, "an empty link accepts one batch above the limit");
    assert_eq!(publish(2), 0);
    assert_eq!(broker.stats().queued_bytes, 4 * step);
    let _ = take(&links[0]);
    let _ = take(&links[2]);
    assert_eq!(broker.stats().queued_bytes, step);
    assert_eq!(publish(1), 1, "room again");
    drop(links);
    assert_eq!(broker.stats().queued_bytes, 0);
}

#[test]
fn an_owner_that_reads_nothing_leaves_room_for_others() {
    let step = 64 * 1024;
    let config = BrokerConfig { max_queued_bytes: 40 * step, reserve_percent: 10, ..BrokerConfig::DEFAULTS };
    let broker = Broker::new(config);
    let subscribed = |owner: &Arc<LinkOwner>, subject: &str, policy| {
        let link = broker.open_link_of(quiet(), Arc::clone(owner)).unwrap();
        link.subscribe(SubscriptionId(1), pattern(subject), &options(policy, 100, 1 << 40)).unwrap();
        link
    };
    let publish = |subject: &str| broker.publish(&sized(subject, 0, step as usize, 1), None).unwrap().delivered;
    let greedy = Arc::default();
    let unread = [(); 3].map(|()| subscribed(&greedy, "g", Policy::DropNew));
    while publish("g") > 0 {}
    assert_eq!(broker.stats().queued_bytes, 36 * step, "all but the reserve");
    let good = subscribed(&Arc::default(), "a", Policy::Disconnect);
    assert_eq!([publish("a"), publish("a")], [1, 1], "the second batch needs room, which the reserve has");
    assert_eq!(take(&good).len(), 2);
    assert_eq!(publish("g"), 0);
    drop(unread);
    assert_eq!(broker.stats().queued_bytes, 0);
}

/// The blocking link holds a batch for which its receiver grants no credit, so nothing ever leaves its queue. Only the
/// other links free room.
#[test]
fn a_publisher_that_waits_for_the_brokers_memory_is_woken_by_any_link() {
    for how in 0..3 {
        let step = 64 * 1024;
        let broker = Broker::new(BrokerConfig { max_queued_bytes: 2 * step, ..BrokerConfig::DEFAULTS });
        let stuck = open(&broker, "stuck", &SubscribeOptions { credit: Credit::NONE, ..SubscribeOptions::DEFAULTS });
        stuck.subscribe(SubscriptionId(2), pattern("a"), &options(Policy::Block, 9, 1 << 40)).unwrap();
        broker.publish(&sized("stuck", 0, step as usize, 1), None).unwrap();
        let other = open(&broker, "other", &SubscribeOptions::DEFAULTS);
        broker.publish(&sized("other", 0, step as usize, 1), None).unwrap();
        let bell = Bell::new();
        let waiter: std::sync::Arc<dyn thalweg_broker::Notify> = bell.clone();
        broker.publish(&message("a", 1), Some(&waiter)).unwrap_err();
        assert_eq!(bell.count(), 0);
        match how {
            0 => assert_eq!(take(&other).len(), 1),
            1 => other.unsubscribe(SubscriptionId(1)).unwrap(),
            _ => drop(other),
        }
        assert_eq!(bell.count(), 1, "way {how}");
        assert_eq!(broker.publish(&message("a", 1), Some(&waiter)).unwrap().delivered, 1);
        assert_eq!(received_by(2, &take(&stuck)), [Received::Message(1)]);
    }
}

/// The room that a blocked publish reserved and releases suffices neither for it nor for others that have failed
/// before. A notification about this room would make them retry forever, each woken by the other.
#[test]
fn a_blocked_publish_wakes_neither_its_own_publisher_nor_those_that_waited_before() {
    let step = 64 * 1024;
    for is_memory_full in [true, false] {
        let max_queued_bytes = if is_memory_full { 5 * step } else { 1 << 30 };
        let broker = Broker::new(BrokerConfig { max_queued_bytes, ..BrokerConfig::DEFAULTS });
        // Both block, and hold a message. There is memory for one of them, or the second subscription of the link is
        // full.
        let first = open(&broker, "a", &options(Policy::Block, 9, 1 << 40));
        let second = is_memory_full.then(|| open(&broker, "a", &options(Policy::Block, 9, 1 << 40)));
        if !is_memory_full {
            first.subscribe(SubscriptionId(2), pattern("a"), &options(Policy::Block, 9, step)).unwrap();
        }
        broker.publish(&sized("a", 0, 100, 1), None).unwrap();
        let batch = sized("a", 0, 3 * step as usize + 1000, 1);
        let bells = [(); 3].map(|()| Bell::new());
        for _ in 0..3 {
            for bell in &bells {
                let waiter: std::sync::Arc<dyn thalweg_broker::Notify> = bell.clone();
                broker.publish(&batch, Some(&waiter)).unwrap_err();
            }
            assert_eq!(bells.each_ref().map(|bell| bell.count()), [0; 3], "memory is full: {is_memory_full}");
        }
        drop(second);
        assert!(!take(&first).is_empty());
        assert!(bells.iter().all(|bell| bell.count() > 0), "room that others release is reported");
    }
}

/// Publishers on subjects of different shards reserve and release room at the same time, so each may fail because of
/// room that another one gives back.
#[test]
fn publishers_that_block_each_other_for_a_moment_all_finish() {
    const MESSAGES: u64 = 2_000;
    let step = 64 * 1024;
    let broker = Broker::new(BrokerConfig { max_queued_bytes: 4 * step, ..BrokerConfig::DEFAULTS });
    let links = [(); 2].map(|()| open(&broker, ">", &options(Policy::Block, 9, 2 * step)));
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (broker, done) = (&broker, &done);
            scope.spawn(move || {
                let (rung, bell) = std::sync::mpsc::sync_channel(1);
                let waiter: std::sync::Arc<dyn thalweg_broker::Notify> =
                    std::sync::Arc::new(move || _ = rung.try_send(()));
                for message in 0..MESSAGES {
                    let batch = sized(&format!("s{number}"), message, step as usize / 2, 1);
                    while broker.publish(&batch, Some(&waiter)).is_err() {
                        bell.recv_timeout(Duration::from_secs(60)).expect("a notification, if there is room again");
                    }
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        for link in &links {
            let done = &done;
            scope.spawn(move || {
                while done.load(Ordering::SeqCst) < 4 {
                    if take(link).is_empty() {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
}

#[test]
fn a_driver_is_told_once_until_it_looks() {
    let broker = broker();
    let bell = Bell::new();
    let link = broker.open_link(bell.clone()).unwrap();
    let without = SubscribeOptions { credit: Credit::NONE, ..SubscribeOptions::DEFAULTS };
    link.subscribe(SubscriptionId(1), pattern("a"), &without).unwrap();
    broker.publish(&message("a", 0), None).unwrap();
    assert_eq!(bell.count(), 0, "without credit there is no notification");
    link.grant(SubscriptionId(1), Credit { messages: 3, bytes: 1000 }).unwrap();
    assert_eq!(bell.count(), 1);
    broker.publish(&message("a", 1), None).unwrap();
    broker.publish(&message("a", 2), None).unwrap();
    assert_eq!(bell.count(), 1, "already notified");
    let mut out = Vec::new();
    assert_eq!(
        link.take(&mut out, Budget { batches: 1, bytes: 0 }),
        TakeResult::More,
        "the first batch is always taken"
    );
    assert_eq!(out.len(), 1);
    broker.publish(&message("a", 3), None).unwrap();
    assert_eq!(bell.count(), 1, "after `More` there is no further notification");
    assert_eq!(link.take(&mut out, Budget { batches: 9, bytes: 15 }), TakeResult::More);
    assert_eq!(link.take(&mut out, Budget::UNLIMITED), TakeResult::All, "the fourth has no credit");
    assert_eq!(out.len(), 3);
    broker.publish(&message("a", 4), None).unwrap();
    assert_eq!(bell.count(), 1);
    link.grant(SubscriptionId(1), Credit::UNLIMITED).unwrap();
    assert_eq!((bell.count(), take(&link).len()), (2, 2));
}

#[test]
fn subscriptions_of_a_link_share_a_copy_and_keep_the_order_of_publishes() {
    for seed in seeds(20) {
        println!("seed {seed}");
        let mut rng = Rng(seed);
        let broker = broker();
        let link = broker.open_link(quiet()).unwrap();
        subscribe(&link, 1, "a");
        subscribe(&link, 2, "*");
        subscribe(&link, 3, ">");
        subscribe(&link, 4, "b.*");
        let mut expected = Vec::new();
        for step in 0..200 {
            let (to, ids): (_, &[u64]) = rng.pick(&[("a", &[1, 2, 3][..]), ("c", &[2, 3]), ("b.c", &[3, 4])]);
            broker.publish(&message(to, step), None).unwrap();
            expected.push((step, ids.to_vec()));
        }
        let mut out = Vec::new();
        while link.take(&mut out, Budget { batches: 1 + rng.below(9) as usize, bytes: 1 << 20 }) == TakeResult::More {}
        let got = out.iter().map(|item| match item {
            Outbound::Batch { batch, subscriptions } => {
                let mut ids: Vec<_> = subscriptions.iter().map(|id| id.0).collect();
                ids.sort_unstable();
                (number(batch), ids)
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(got.collect::<Vec<_>>(), expected, "seed {seed}");
    }
}

#[test]
fn gaps_come_before_the_shared_copy_that_follows_them() {
    let broker = broker();
    let link = broker.open_link(quiet()).unwrap();
    subscribe(&link, 1, "a");
    link.subscribe(SubscriptionId(2), pattern("a"), &options(Policy::DropOld, 2, 999)).unwrap();
    link.subscribe(SubscriptionId(3), pattern("a"), &options(Policy::DropNew, 2, 999)).unwrap();
    for number in 0..5 {
        broker.publish(&message("a", number), None).unwrap();
    }
    let out = take(&link);
    assert_eq!(
        out.iter().filter(|item| matches!(item, Outbound::Batch { .. })).count(),
        5,
        "one copy of each batch: {out:?}"
    );
    assert_eq!(received_by(1, &out), [0, 1, 2, 3, 4].map(Received::Message));
    assert_eq!(received_by(2, &out), [Received::Gap(3), Received::Message(3), Received::Message(4)]);
    assert_eq!(received_by(3, &out), [Received::Message(0), Received::Message(1), Received::Gap(3)]);
}

#[test]
fn a_storm_of_subscriptions_under_a_driver_that_is_away_leaves_nothing_behind() {
    let broker = broker();
    let link = broker.open_link(quiet()).unwrap();
    subscribe(&link, 0, "stays");
    broker.publish(&message("stays", 7), None).unwrap();
    for id in 1..20_000 {
        subscribe(&link, id, "a");
        broker.publish(&message("a", id), None).unwrap();
        link.unsubscribe(SubscriptionId(id)).unwrap();
    }
    assert_eq!(link.stats().messages, 1);
    assert_eq!(received_by(0, &take(&link)), [Received::Message(7)]);
}

#[test]
fn what_is_lost_is_counted_by_policy_and_what_waits_is_known() {
    let broker = broker();
    let links: Vec<_> = [Policy::DropNew, Policy::DropOld, Policy::Disconnect]
        .map(|policy| open(&broker, "a", &options(policy, 2, 1000)))
        .into();
    for number in 0..2 {
        broker.publish(&message("a", number), None).unwrap();
    }
    assert_eq!((broker.stats().losses, broker.stats().queued_messages), (Losses::default(), 6));
    for number in 2..5 {
        broker.publish(&message("a", number), None).unwrap();
    }
    let wanted = Losses { drop_new: 3, drop_old: 3, disconnect: 3, slow_subscriptions: 3, disconnected_links: 1 };
    assert_eq!((broker.stats().losses, broker.stats().queued_messages), (wanted, 4));
    drop(links);
    assert_eq!((broker.stats().losses, broker.stats().queued_messages), (wanted, 0));
}
