//! CPU time of finding a subject's subscriptions, and of subscribing and unsubscribing, with a million
//! subscriptions.
//!
//! `cargo run --release -p thalweg-broker --example match_cost`

#![allow(unreachable_pub, reason = "an example has no interface")]
#![allow(clippy::print_stdout, reason = "figures are printed")]

mod shared;

use std::sync::Arc;

use shared::{Cpu, Rng, allocated};
use thalweg_broker::{
    Batch, Broker, BrokerConfig, Budget, Credit, Link, Pattern, Policy, Subject, SubscribeOptions, SubscriptionId,
};

const SUBSCRIPTIONS: u64 = 1_000_000;
const LINKS: u64 = 1000;
const PUBLISHES: usize = 1_000_000;

/// Returns the pattern of subscription `number`. Of every ten subscriptions, `wild` have a pattern with a wildcard.
fn pattern(number: u64, wild: u64) -> Pattern {
    let (region, user, kind) = (number % 50, number / 10, number % 10);
    let text = if number % 10 < wild {
        match number % 3 {
            0 => format!("region{region}.user{user}.*.kind{kind}"),
            1 => format!("region{region}.user{user}.>"),
            _ => format!("region{region}.*.user{user}.kind{kind}"),
        }
    } else {
        format!("region{region}.user{user}.event.kind{kind}")
    };
    Pattern::parse(text.as_bytes()).expect("a pattern")
}

fn subject(number: u64) -> Subject {
    let (region, user, kind) = (number % 50, number / 10, number % 10);
    Subject::parse(format!("region{region}.user{user}.event.kind{kind}").as_bytes()).expect("a subject")
}

fn options() -> SubscribeOptions {
    // The subscriptions have no credit and a queue of one message. So almost nothing is queued or sent, and the figures
    // measure only the lookup.
    SubscribeOptions { policy: Policy::DropNew, max_messages: 1, credit: Credit::NONE, ..SubscribeOptions::DEFAULTS }
}

fn publish(broker: &Broker, batches: &[Batch]) -> (f64, f64) {
    let start = Cpu::start();
    let mut delivered = 0;
    for batch in batches {
        let published = broker.publish(batch, None).expect("no subscription blocks");
        delivered += published.delivered + published.missed;
    }
    (start.each(batches.len()), delivered as f64 / batches.len() as f64)
}

fn batches(rng: &mut Rng, distinct: u64) -> Vec<Batch> {
    let subjects: Vec<Subject> = (0..distinct)
        .map(|at| subject(at * (SUBSCRIPTIONS / distinct) + rng.below(SUBSCRIPTIONS / distinct)))
        .collect();
    let made: Vec<Batch> = subjects
        .iter()
        .map(|to| Batch::new(to.clone(), bytes::Bytes::from_static(&[7; 128]), 1).expect("a batch"))
        .collect();
    (0..PUBLISHES).map(|_| made[rng.below(distinct) as usize].clone()).collect()
}

fn main() {
    for wild in [0, 1, 5] {
        for cached_subjects in [65_536, 0] {
            run(wild, cached_subjects);
        }
    }
}

fn run(wild: u64, cached_subjects: usize) {
    println!("{} % with wildcards, {cached_subjects} subjects cached", wild * 10);
    let broker = Broker::new(BrokerConfig { seed: 1, cached_subjects, ..BrokerConfig::DEFAULTS });
    let links: Vec<Link> = (0..LINKS).map(|_| broker.open_link(Arc::new(|| {})).expect("room")).collect();
    let patterns: Vec<Pattern> = (0..SUBSCRIPTIONS).map(|number| pattern(number, wild)).collect();
    let options = options();
    let before = allocated();
    let start = Cpu::start();
    for (number, pattern) in (0..).zip(patterns) {
        let id = SubscriptionId(number / LINKS);
        links[(number % LINKS) as usize].subscribe(id, pattern, &options).expect("room");
    }
    println!("  subscribe            {:7.0} ns", start.each(SUBSCRIPTIONS as usize));
    // Bytes of the patterns themselves. They were allocated before the measurement, and the subscriptions keep them.
    let own = SUBSCRIPTIONS as usize * 48;
    println!(
        "  memory               {:7.0} B each, 48 of them for the pattern",
        (allocated() - before + own) as f64 / SUBSCRIPTIONS as f64
    );
    let mut rng = Rng(1);
    for distinct in [1000, 100_000, 1_000_000] {
        let batches = batches(&mut rng, distinct);
        publish(&broker, &batches);
        let (cost, each) = publish(&broker, &batches);
        println!("  publish to {distinct:>9} {cost:7.0} ns, {each:.2} subscriptions each");
    }
    let text =
        |number: u64, wild: bool| format!("region{}.extra{number}.{}", number % 50, if wild { "*" } else { "x" });
    for (name, wild) in [("literal", false), ("wildcard", true)] {
        let patterns: Vec<_> =
            (0..100_000).map(|number| Pattern::parse(text(number, wild).as_bytes()).expect("a pattern")).collect();
        let start = Cpu::start();
        for (number, pattern) in patterns.iter().enumerate() {
            links[number % LINKS as usize]
                .subscribe(SubscriptionId((1 << 40) + number as u64), pattern.clone(), &options)
                .expect("room");
        }
        let subscribed = start.each(patterns.len());
        let start = Cpu::start();
        for number in 0..patterns.len() {
            links[number % LINKS as usize].unsubscribe(SubscriptionId((1 << 40) + number as u64)).expect("there");
        }
        println!("  {name:<8} more        {subscribed:7.0} ns, and removal {:.0} ns", start.each(patterns.len()));
    }
    let mut out = Vec::new();
    let _ = links[0].take(&mut out, Budget::DEFAULT);
    let start = Cpu::start();
    drop(links);
    println!("  all links closed     {:7.0} ns a subscription", start.each(SUBSCRIPTIONS as usize));
}
