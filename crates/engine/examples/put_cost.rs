//! Measures the cost of sequential puts in nanoseconds per put, for use with a profiler. Each round makes 50,000 puts
//! into a fresh database. The first case puts new keys in order, without reading. The second case puts 2,500 keys in
//! turn into a keyspace with a history of 10 revisions. Such a put reads the value that it replaces and keeps this
//! value as a version. From the tenth put of a key on, it also removes the oldest version.
//!
//! `cargo run --release -p thalweg-engine --example put_cost -- [none|os|interval|disk]`

#![allow(clippy::print_stdout)]

use std::time::Instant;

use thalweg_engine::{Database, Options};
use thalweg_types::{
    Durability,
    command::{KeyspaceConfig, KeyspaceHistory},
};

const PUTS: u64 = 50_000;
const ROUNDS: u64 = 20;
const KEYS_WITH_HISTORY: u64 = PUTS / 20;

fn main() {
    let level = std::env::args().nth(1).unwrap_or_else(|| "interval".to_owned());
    let durability: Durability = level.parse().expect("none, os, interval or disk");
    let puts = if durability == Durability::Disk { PUTS / 100 } else { PUTS };
    let history = KeyspaceHistory { revisions: Some(10), age: None };
    let kept = KeyspaceConfig { history, ..KeyspaceConfig::default() };
    for (what, config, keys) in
        [("blind", KeyspaceConfig::default(), u64::MAX), ("with history", kept, KEYS_WITH_HISTORY)]
    {
        let mut costs: Vec<u64> = (0..ROUNDS).map(|_| round(durability, puts, &config, keys)).collect();
        costs.sort_unstable();
        let (median, best) = (costs[costs.len() / 2], costs[0]);
        println!("{level}, {what}: {median} ns a put at the median of {ROUNDS} rounds, {best} at best");
    }
}

/// Returns the nanoseconds per put of `puts` puts to `keys` keys in turn, in a fresh directory.
fn round(durability: Durability, puts: u64, config: &KeyspaceConfig, keys: u64) -> u64 {
    let dir = std::env::temp_dir().join(format!("put-cost-{}", std::process::id()));
    let options = Options { durability, ..Options::default() };
    let database = Database::open(&dir, options).expect("opens");
    let (keyspace, _) = database.create_keyspace("k", config).expect("is created");
    let keys: Vec<String> = (0..puts).map(|number| format!("key_{:010}", number % keys)).collect();
    let start = Instant::now();
    for key in &keys {
        keyspace.put(key.as_bytes(), &[7; 100]).expect("is put");
    }
    let cost = start.elapsed().as_nanos() as u64 / puts;
    drop((keyspace, database));
    std::fs::remove_dir_all(dir).expect("is removed");
    cost
}
