//! CPU time of a publish by one client while another client, at another address, has very many subscriptions. These
//! subscriptions match every subject, and the client that has them reads nothing.
//!
//! `cargo run --release -p thalweg-broker --example overlap_cost`

#![allow(unreachable_pub, reason = "an example has no interface")]
#![allow(clippy::print_stdout, reason = "figures are printed")]

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use thalweg_broker::{Batch, Broker, BrokerConfig, Notify, Pattern, Subject, SubscribeOptions, SubscriptionId};

const SUBSCRIPTIONS: usize = 90_000;
const PUBLISHES: usize = 200;

/// Creates subscriptions over `links` connections, which use the patterns in turn. Then measures publishes to several
/// subjects, and prints the results.
fn measure(name: &str, links: usize, patterns: &[&str]) {
    let config = BrokerConfig { seed: 1, max_subscriptions: 100_000, ..BrokerConfig::DEFAULTS };
    let broker = Broker::new(config);
    let quiet: Arc<dyn Notify> = Arc::new(|| {});
    let links: Vec<_> = (0..links).map(|_| broker.open_link(Arc::clone(&quiet)).expect("room")).collect();
    let options = SubscribeOptions { max_messages: 100, max_bytes: 10_000, ..SubscribeOptions::DEFAULTS };
    let mut made = 0;
    for number in 0..SUBSCRIPTIONS {
        let pattern = Pattern::parse(patterns[number % patterns.len()].as_bytes()).expect("a pattern");
        match links[number % links.len()].subscribe(SubscriptionId(number as u64), pattern, &options) {
            Ok(()) => made += 1,
            Err(error) => panic!("{error}"),
        }
    }
    let publish = |subject: String| {
        let to = Subject::parse(subject.as_bytes()).expect("a subject");
        let batch = Batch::new(to, Bytes::from_static(&[7; 128]), 1).expect("a batch");
        let begun = Instant::now();
        broker.publish_now(&batch);
        begun.elapsed().as_secs_f64() * 1e6
    };
    let report = |kind: &str, subject: &dyn Fn(usize) -> String| {
        let mut times: Vec<_> = (0..PUBLISHES).map(|number| publish(subject(number))).collect();
        times.sort_by(f64::total_cmp);
        println!(
            "{name:<34} {made:>6} subscriptions, {kind:<15} median {:9.1} µs, largest {:9.1} µs a publish",
            times[PUBLISHES / 2],
            times[PUBLISHES - 1]
        );
    };
    report("one subject", &|_| "a.b.c".to_owned());
    report("other subjects", &|number| format!("a.{number}.c"));
    report("them again", &|number| format!("a.{number}.c"));
    report("and again", &|number| format!("a.{number}.c"));
}

fn main() {
    measure("> over one connection", 1, &[">"]);
    measure("> over 1000 connections", 1000, &[">"]);
    measure("eight patterns over one connection", 1, &[">", "*.>", "*.*.>", "*.*.*", "a.>", "a.*.>", "a.*.*", "*.*.c"]);
}
