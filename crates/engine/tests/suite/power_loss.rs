//! Power loss at every operation of a workload, and again during the recovery that follows.

use std::sync::Arc;

use thalweg_disk::{SimDisk, sim::PowerLoss};
use thalweg_engine::{
    BackendKind, Database, OpenError,
    types::{Durability, command::CommitBuilder},
};

use crate::common::{Model, Rng, batch, check, clock, read_all, seed, small};

/// Acknowledged commits in order. Each commit writes one key and one stream record that contain its number.
#[derive(Clone, Copy, Debug)]
struct Acked {
    number: u64,
    durability: Durability,
}

/// Makes commits until the power is lost, and returns the acknowledged ones. Every fourth is at `disk`, the others are
/// weaker.
fn workload(backend: BackendKind, disk: &SimDisk, commits: u64, seed: u64) -> Vec<Acked> {
    let mut acked = Vec::new();
    let Ok(db) = open(backend, disk, seed) else { return acked };
    let Ok(keyspace) = db.keyspace("keys") else { return acked };
    let Ok(stream) = db.stream("records") else { return acked };
    for number in 0..commits {
        let level = match number % 4 {
            0 => Durability::Os,
            1 => Durability::Interval,
            2 => Durability::None,
            _ => Durability::Disk,
        };
        // Every fifth value is long enough to stay in the log.
        let value = value(number);
        let mut commit = CommitBuilder::new();
        commit.put(keyspace.id(), &number.to_be_bytes(), &value).unwrap();
        commit.append(stream.id(), None, &batch(&[value])).unwrap();
        if let Ok(ack) = db.with_durability(level).commit(&commit) {
            acked.push(Acked { number, durability: ack.durability });
        }
        if number % 7 == 6 {
            let _ = db.maintain();
        }
        if number % 11 == 10 {
            let _ = db.flush();
        }
    }
    let _ = db.close();
    acked
}

fn value(number: u64) -> Vec<u8> {
    Rng(number).bytes(if number.is_multiple_of(5) { 700 } else { 40 })
}

fn open(backend: BackendKind, disk: &SimDisk, seed: u64) -> Result<Database, OpenError> {
    Database::open_on(Arc::new(disk.clone()), clock(), seed, small(backend))
}

/// After recovery the database has a prefix of the commits that includes all those acknowledged at `disk`.
fn check_recovered(db: &Database, acked: &[Acked], context: &str) {
    let must =
        acked.iter().filter(|ack| ack.durability >= Durability::Disk).map(|ack| ack.number + 1).max().unwrap_or(0);
    let payloads = match db.find_stream("records") {
        Some(_) => read_all(db, "records").unwrap_or_else(|error| panic!("{context}: {error}")).1,
        None => Vec::new(),
    };
    let kept = payloads.len() as u64;
    assert!(kept >= must, "{context}: {must} commits were acknowledged at disk, {kept} are there");
    let mut model = Model::default();
    for number in 0..kept {
        model.keys.insert(("keys".to_owned(), number.to_be_bytes().to_vec()), value(number));
        model.streams.entry("records".to_owned()).or_default().records.push(value(number));
    }
    check(db, &model);
    let stats = db.stats();
    assert!(stats.applied_lsn <= stats.durable_lsn, "{context}: the state is ahead of the log");
}

/// Cuts the power after `after` operations, twice with different losses. Each time it also cuts the power during the
/// recovery, and once more directly after it.
fn crash_at(backend: BackendKind, after: u64, total: u64, commits: u64, seed: u64) {
    let disk = SimDisk::new(seed);
    disk.power_off_after(after);
    let acked = workload(backend, &disk, commits, seed);
    for draw in [seed ^ after, !after] {
        let loss = PowerLoss::random(draw, disk.unsynced_changes());
        let context = format!("seed {seed}, power off after {after} of {total}, {loss:?}");
        let crashed = disk.after_power_loss_with(loss);
        crash_in_recovery(backend, &crashed, &acked, seed, draw, &context);
        let db = open(backend, &crashed, seed).unwrap_or_else(|error| panic!("{context}: {error}"));
        check_recovered(&db, &acked, &context);
        drop(db);
        // Data that recovery has shown stays: another power loss directly afterwards changes nothing.
        let settled = crashed.power_loss(after);
        let db = open(backend, &settled, seed).unwrap_or_else(|error| panic!("{context}, reopened: {error}"));
        check_recovered(&db, &acked, &context);
    }
}

fn crash_in_recovery(backend: BackendKind, crashed: &SimDisk, acked: &[Acked], seed: u64, draw: u64, context: &str) {
    let recovery = {
        let counted = crashed.kill_process();
        let before = counted.operations();
        drop(open(backend, &counted, seed));
        counted.operations() - before
    };
    let mut rng = Rng(draw);
    let again = crashed.kill_process();
    let second = rng.below(recovery.max(1));
    again.power_off_after(second);
    drop(open(backend, &again, seed));
    let twice = again.power_loss(rng.next());
    let context = format!("{context}, then after {second} of the recovery's {recovery}");
    let db = open(backend, &twice, seed).unwrap_or_else(|error| panic!("{context}: {error}"));
    check_recovered(&db, acked, &context);
}

fn operations(backend: BackendKind, commits: u64, seed: u64) -> u64 {
    let disk = SimDisk::new(seed);
    workload(backend, &disk, commits, seed);
    disk.operations()
}

#[test]
fn power_loss_at_every_operation_of_a_short_workload() {
    let seed = seed(11);
    let total = operations(BackendKind::Memory, 40, seed);
    println!("{total} operations");
    assert!(total > 100, "the workload writes");
    (0..total).for_each(|after| crash_at(BackendKind::Memory, after, total, 40, seed));
}

/// Longer workloads begin new segments, flush, move and free. `THALWEG_TEST_CRASHES` raises the number of crashes for
/// a soak test.
fn power_loss_at_drawn_operations(backend: BackendKind, seed: u64, crashes: u64) {
    let crashes = std::env::var("THALWEG_TEST_CRASHES").ok().and_then(|text| text.parse().ok()).unwrap_or(crashes);
    let mut rng = Rng(seed);
    for _ in 0..crashes {
        let (commits, seed) = (100 + rng.below(400), rng.next());
        let total = operations(backend, commits, seed);
        crash_at(backend, rng.below(total), total, commits, seed);
    }
}

#[test]
fn power_loss_at_drawn_operations_of_longer_workloads() {
    power_loss_at_drawn_operations(BackendKind::Memory, seed(12), 40);
}

/// redb does its I/O on the simulated disk too. A separate thread makes its transactions, so a seed does not fully
/// determine their timing.
#[test]
#[cfg(feature = "redb")]
fn power_loss_at_drawn_operations_with_redb() {
    power_loss_at_drawn_operations(BackendKind::Redb, seed(13), 25);
}
