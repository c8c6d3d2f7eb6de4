//! What one put after another costs, and nothing else: nanoseconds a put, for a profiler to look at. First blind ones, of
//! new keys, then those to a keyspace with a history of 10 revisions, of 100,000 keys in turn: such a put reads what it
//! replaces, keeps it as a version, and from the tenth on forgets the oldest.
//!
//! `cargo run --release -p thalweg-engine --example put_cost -- [none|os|interval|disk]`

#![allow(clippy::print_stdout)]

use std::time::Instant;

use thalweg_engine::{Database, Options};
use thalweg_types::{
    Durability,
    command::{KeyspaceConfig, KeyspaceHistory},
};

const PUTS: u64 = 500_000;
const KEYS: u64 = 100_000;

fn main() {
    let level = std::env::args().nth(1).unwrap_or_else(|| "interval".to_owned());
    let durability: Durability = level.parse().expect("none, os, interval or disk");
    let dir = std::env::temp_dir().join(format!("put-cost-{}", std::process::id()));
    let options = Options { durability, ..Options::default() };
    let database = Database::open(&dir, options).expect("opens");
    let (keyspace, _) = database.create_keyspace("k", &KeyspaceConfig::default()).expect("is created");
    let puts = if durability == Durability::Disk { PUTS / 100 } else { PUTS };
    for round in 0..5 {
        let start = Instant::now();
        for number in 0..puts {
            let key = format!("key{:013}", round * puts + number);
            keyspace.put(key.as_bytes(), &[7; 100]).expect("is put");
        }
        println!("{level} {:6.0} ns a put", start.elapsed().as_nanos() as f64 / puts as f64);
    }
    let history = KeyspaceHistory { revisions: Some(10), age: None };
    let (kept, _) =
        database.create_keyspace("kept", &KeyspaceConfig { history, ..KeyspaceConfig::default() }).expect("is created");
    for _ in 0..5 {
        let start = Instant::now();
        for number in 0..puts {
            let key = format!("key{:013}", number % KEYS.min(puts / 5));
            kept.put(key.as_bytes(), &[7; 100]).expect("is put");
        }
        println!("{level} {:6.0} ns a put with history", start.elapsed().as_nanos() as f64 / puts as f64);
    }
    drop((keyspace, kept, database));
    std::fs::remove_dir_all(dir).expect("is removed");
}
