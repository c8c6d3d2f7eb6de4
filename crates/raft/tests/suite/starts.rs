//! The search for memberships at a start of openraft.

use std::collections::{BTreeMap, BTreeSet};

use openraft::{EntryPayload, RaftLogReader, storage::RaftLogStorage};
use thalweg_disk::SimDisk;
use thalweg_raft::{LogReader, RaftEntry, RaftLogId, RaftMembership};
use thalweg_replica::NodeInfo;

use crate::common::*;

/// Number of entries that openraft reads at a time.
const STEP: u64 = 64;

fn membership(term: u64, index: u64) -> RaftEntry {
    let nodes = BTreeMap::from([(1, NodeInfo::at("a".to_owned()))]);
    let membership = RaftMembership::new(vec![BTreeSet::from([1])], nodes).unwrap();
    RaftEntry { log_id: log_id(term, index), payload: EntryPayload::Membership(membership) }
}

/// Searches as openraft does. Returns the newest two memberships from `since` on, and the number of entries read for
/// that.
async fn newest_two(mut reader: LogReader, since: u64) -> (Vec<RaftLogId>, usize) {
    let (mut found, mut read) = (Vec::new(), 0);
    let mut end = reader.last().map_or(0, |last| last.index.0 + 1);
    while since < end {
        let range = since.max(end.saturating_sub(STEP))..end;
        let entries = RaftLogReader::<Types>::try_get_log_entries(&mut reader, range).await.unwrap();
        read += entries.len();
        let memberships = entries.iter().rev().filter(|entry| matches!(entry.payload, EntryPayload::Membership(_)));
        found.extend(memberships.map(|entry| entry.log_id));
        if found.len() >= 2 {
            break;
        }
        end = end.saturating_sub(STEP);
    }
    found.truncate(2);
    (found, read)
}

#[test]
fn a_start_finds_the_same_memberships_without_reading_the_other_entries() {
    run(async {
        for seed in 1..=40 {
            let mut rng = Rng(seed * 2 + 1);
            let disk = SimDisk::new(seed);
            let mut log = SpaceLog::open(&disk);
            let (mut term, mut next) = (1, 0);
            for _ in 0..rng.below(6) {
                let entries = (0..1 + rng.below(150)).map(|at| match rng.below(60) {
                    0 => membership(term, next + at),
                    _ => entry(term, next + at, 20),
                });
                let entries: Vec<_> = entries.collect();
                next += entries.len() as u64;
                log.append(entries).await.unwrap();
                if rng.below(3) == 0 {
                    // Another leader replaces the last entries.
                    next = next.saturating_sub(rng.below(100)).max(1);
                    let last = log.entries(next - 1..next).await[0].log_id;
                    log.store.truncate_after(Some(last)).await.unwrap();
                    term += 1;
                }
            }
            // Once with the memory of the truncated entries, once as a new start finds the log.
            let check = async |log: &SpaceLog| {
                for since in [0, next / 2, next.saturating_sub(1), next] {
                    let (expected, _) = newest_two(log.store.reader(), since).await;
                    log.store.reader().begin_start();
                    let (found, _) = newest_two(log.store.reader(), since).await;
                    log.store.reader().end_start();
                    assert_eq!(found, expected, "seed {seed} from {since}");
                }
            };
            check(&log).await;
            drop(log);
            check(&SpaceLog::open(&disk)).await;
        }
    });
}

#[test]
fn a_start_reads_no_entries_of_a_log_without_memberships() {
    run(async {
        let mut log = SpaceLog::open(&SimDisk::new(1));
        log.append((0..10_000).map(|index| entry(1, index, 10)).collect()).await.unwrap();
        log.store.reader().begin_start();
        assert_eq!(newest_two(log.store.reader(), 0).await, (Vec::new(), 0));
        // A single entry is read as ever, and so is everything after the start.
        assert_eq!(log.entries(7..8).await.len(), 1);
        log.store.reader().end_start();
        assert_eq!(log.entries(0..64).await.len(), 64);
    });
}
