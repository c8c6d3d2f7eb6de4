//! Part of the example `entry_cost`: searches for commands that become expensive by data that a hostile client leaves
//! behind. Such data are very many dead letters, delivery attempts that consist of many separate ranges of records,
//! deleted prefixes, and deleted rows.
//!
//! Each kind of command prepares its data when the search for its cost begins. Some preparations take seconds. If a
//! limit ends a preparation early, the command is measured with the data prepared so far.

use std::{cell::OnceCell, time::Duration};

use thalweg_state::groups::DeadParcel;
use thalweg_types::{
    Attempt, GroupId, KeyspaceId, Offset, SpaceTime,
    command::{
        self, KeyspaceConfig, Outcome, RedisBuilder, ScanOperation, TransactionBuilder,
        groups::{
            Fetched, GroupConfig, GroupOrder, GroupOutcome, OffsetRun, Redelivery, Settlement, encode_ack,
            encode_create_group, encode_delete_group, encode_fetch, encode_nack, encode_seek,
        },
    },
    limits::{
        MAX_EAGER_PREFIX_ROWS, MAX_FETCH_KEYS, MAX_FETCH_RECORDS, MAX_GROUP_PENDING, MAX_PENDING_CLEARS,
        MAX_SETTLED_RANGES, RECLAIMED_PER_COMMAND,
    },
};

use crate::{
    Node, Search, Space,
    consumers::reclaim_all,
    data::{STREAM, commit, encoded, one, put_all, transaction},
    proposed,
};

/// Number of dead letters that a group collects before the measurement. Each dead letter has a row of its own.
const LETTERS: u64 = 1_000_000;
/// Number of deleted rows that a measured scan must skip.
const DELETED_ROWS: usize = 2_000_000;
/// Number of records that one fetch parks: each cannot be delivered yet, because it waits for an earlier record with
/// its key.
const PARKED: u64 = MAX_FETCH_KEYS as u64;

pub(crate) fn search(search: &mut Search<'_>) {
    // The groups of other kinds leave no room for another group.
    reclaim_all(search.node);
    dead_letters(search);
    large_parcels(search);
    lookups(search);
    scans(search);
}

/// Returns the group of `STREAM` with this name, and creates it if it does not exist.
fn group(node: &Node, name: &str, order: GroupOrder) -> GroupId {
    let config = GroupConfig {
        order,
        max_pending: MAX_GROUP_PENDING,
        ack_deadline: Duration::from_secs(12 * 3600),
        dead_letters: Some("dead".to_owned()),
        ..GroupConfig::default()
    };
    match node.must(encoded(|out| encode_create_group(out, STREAM, name, Some(Offset(0)), &config).expect("valid"))) {
        Outcome::Group(GroupOutcome::Created { id, .. }) => id,
        other => panic!("{other:?}"),
    }
}

/// Encodes a fetch of at most `max` records. `keys` are the key hashes of consecutive records, the first of which has
/// the offset `window`.
fn fetch(group: GroupId, max: u32, window: u64, keys: &[u64]) -> Vec<u8> {
    encoded(|out| encode_fetch(out, group, max, Offset(window), keys, "m").expect("valid"))
}

fn fetched(node: &Node, fetch: Vec<u8>) -> Fetched {
    match node.must(fetch) {
        Outcome::Group(GroupOutcome::Fetched(fetched)) => *fetched,
        other => panic!("{other:?}"),
    }
}

fn seek(group: GroupId) -> Vec<u8> {
    encoded(|out| encode_seek(out, group, Some(Offset(0))))
}

fn ack(group: GroupId, settlements: &[Settlement]) -> Vec<u8> {
    encoded(|out| encode_ack(out, group, settlements).expect("valid"))
}

fn nack(group: GroupId, again: Redelivery, settlements: &[Settlement]) -> Vec<u8> {
    encoded(|out| encode_nack(out, group, again, "", settlements).expect("valid"))
}

fn whole(attempts: &[Attempt]) -> Vec<Settlement> {
    attempts.iter().copied().map(Settlement::all).collect()
}

/// Delivers as many records as a group may have pending. Each record has a key of its own, so the state stores each as
/// a separate range. Returns the delivery attempts.
fn deliver_with_keys(node: &Node, group: GroupId) -> Vec<Attempt> {
    node.must(seek(group));
    let mut attempts = Vec::new();
    for first in (0..u64::from(MAX_GROUP_PENDING)).step_by(MAX_FETCH_RECORDS as usize) {
        let keys: Vec<u64> = (first..first + u64::from(MAX_FETCH_RECORDS)).map(|offset| offset + 1).collect();
        let fetched = fetched(node, fetch(group, MAX_FETCH_RECORDS, first, &keys));
        if fetched.deliveries.is_empty() {
            break;
        }
        attempts.push(fetched.attempt);
    }
    attempts
}

/// Returns the dead letters of a group, one item for each delivery attempt.
fn dead(node: &Node, group: GroupId) -> Vec<DeadParcel> {
    let mut all: Vec<DeadParcel> = Vec::new();
    while let Some(next) = node.machine.dead_letters(group, all.last().map(|last| last.attempt)).expect("runs") {
        all.push(next);
    }
    all
}

/// Acks all dead letters of a group, which removes them.
fn ack_dead(node: &Node, group: GroupId) {
    for parcel in dead(node, group) {
        node.must(ack(group, &[Settlement::all(parcel.attempt)]));
    }
}

/// Returns the lists of settlements for acks of all records in `dead`. Each list is for one command and has as many
/// ranges as allowed; each range has one record.
fn acks_of_each(dead: &[DeadParcel]) -> Vec<Vec<Settlement>> {
    let mut letters = Vec::new();
    for parcel in dead {
        for run in parcel.records.iter().map(|delivered| delivered.run) {
            letters.extend((0..run.count).map(|number| (parcel.attempt, run.first.plus(number.into()))));
        }
    }
    let of_ack = |letters: &[(Attempt, Offset)]| {
        let mut settlements: Vec<Settlement> = Vec::new();
        for &(attempt, offset) in letters {
            match settlements.last_mut() {
                Some(last) if last.attempt == attempt => last.runs.push(OffsetRun::one(offset)),
                _ => settlements.push(Settlement::one(attempt, offset)),
            }
        }
        settlements
    };
    letters.chunks(MAX_SETTLED_RANGES).map(of_ack).collect()
}

fn dead_letters(search: &mut Search<'_>) {
    let node = search.node;
    search.kind("entry: acks of 10,000 of 100,000 dead letters", &|n| {
        let group = group(node, "hostile-keys", GroupOrder::PerKey);
        ack_dead(node, group);
        let attempts = deliver_with_keys(node, group);
        node.must(nack(group, Redelivery::Never, &whole(&attempts)));
        let acks = acks_of_each(&dead(node, group));
        proposed(Space::Plain, n.min(acks.len()), &|at| ack(group, &acks[at])).filter(|_| n <= acks.len())
    });
    let buried = OnceCell::new();
    search.fixed("group with up to 1,000,000 dead letters moved", 1, &|_| {
        let group = *buried.get_or_init(|| bury(node));
        Some(vec![seek(group)])
    });
    if let Some(&group) = buried.get() {
        node.must(encoded(|out| encode_delete_group(out, group)));
        reclaim_all(node);
    }
}

/// Creates a group with very many dead letters, and returns it. The function nacks records one by one and moves the
/// group back to the beginning of the stream, until the group has [`LETTERS`] dead letters or their number no longer
/// grows.
fn bury(node: &Node) -> GroupId {
    let group = group(node, "hostile-letters", GroupOrder::Competing);
    let mut before = 0;
    loop {
        node.must(seek(group));
        for _ in 0..MAX_GROUP_PENDING / MAX_FETCH_RECORDS {
            let fetched = fetched(node, fetch(group, MAX_FETCH_RECORDS, 0, &[]));
            let runs = fetched.deliveries.iter().map(|delivered| delivered.run);
            let offsets = runs.flat_map(|run| (0..run.count).map(move |number| run.first.plus(number.into())));
            let nacks =
                offsets.map(|offset| nack(group, Redelivery::Never, &[Settlement::one(fetched.attempt, offset)]));
            let nacks: Vec<_> = nacks.collect();
            if nacks.is_empty() {
                break;
            }
            node.all(&nacks);
        }
        let info = node.machine.group(group, SpaceTime(0)).expect("runs").expect("it exists");
        if info.dying <= before || info.dying >= LETTERS {
            return group;
        }
        before = info.dying;
    }
}

fn large_parcels(search: &mut Search<'_>) {
    let node = search.node;
    search.kind("entry: fetches of 1 of 100,000 nacked records", &|n| {
        let group = group(node, "hostile-keys", GroupOrder::PerKey);
        ack_dead(node, group);
        let attempts = deliver_with_keys(node, group);
        node.must(nack(group, Redelivery::After(Duration::ZERO), &whole(&attempts)));
        proposed(Space::Plain, n, &|_| fetch(group, 1, 0, &[]))
    });
    search.kind("entry: fetches of 1,000 freed records", &|n| {
        let group = group(node, "hostile-keys", GroupOrder::PerKey);
        ack_dead(node, group);
        free(node, group);
        proposed(Space::Plain, n, &|_| fetch(group, MAX_FETCH_RECORDS, 0, &[]))
    });
}

/// Makes as many parked records as possible deliverable. The function first parks records behind earlier records with
/// the same keys, [`PARKED`] at a time. Then it acks the earlier records.
fn free(node: &Node, group: GroupId) {
    node.must(seek(group));
    let mut first = Vec::new();
    for block in 0..u64::from(MAX_GROUP_PENDING) / (2 * PARKED) {
        // The second half of a block has the keys of the first half.
        let (begin, half) = (2 * block * PARKED, (2 * block + 1) * PARKED);
        let keys = |from: u64, end: u64| -> Vec<u64> {
            (from..end).map(|offset| 1 + block * PARKED + (offset - begin) % PARKED).collect()
        };
        let mut at = begin;
        while at < half {
            let fetched = fetched(node, fetch(group, MAX_FETCH_RECORDS, at, &keys(at, half)));
            assert!(!fetched.deliveries.is_empty(), "the group has room");
            first.push(fetched.attempt);
            at = fetched.cursor.0;
        }
        node.must(fetch(group, MAX_FETCH_RECORDS, half, &keys(half, half + PARKED)));
    }
    node.must(ack(group, &whole(&first)));
}

fn keyspace(node: &Node, name: &str) -> KeyspaceId {
    let config = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
    match node.must(encoded(|out| command::encode_create_keyspace(out, name, &config).expect("valid"))) {
        Outcome::Keyspace { id, .. } => id,
        other => panic!("{other:?}"),
    }
}

/// Removes all rows of deleted prefixes.
fn sweep_all(node: &Node) {
    let sweep = || encoded(|out| command::encode_sweep(out, RECLAIMED_PER_COMMAND));
    while let Outcome::Reclaimed { more: true, .. } = node.must(sweep()) {}
}

/// Returns a key that begins with all prefixes that [`delete_prefixes`] deletes, and ends with `end`.
fn long_key(end: &str) -> Vec<u8> {
    [&[b'a'; 1_100][..], end.as_bytes()].concat()
}

/// Creates a keyspace with as many deleted prefixes as possible, each longer than the one before. Each hides the same
/// few rows. A key that is put later begins with all these prefixes and is visible.
fn delete_prefixes(node: &Node) -> KeyspaceId {
    sweep_all(node);
    let id = keyspace(node, "hostile-prefixes");
    let keys: Vec<_> = (0..=MAX_EAGER_PREFIX_ROWS).map(|number| long_key(&number.to_string())).collect();
    put_all(node, id, &keys);
    for len in 1..=MAX_PENDING_CLEARS {
        let mut delete = TransactionBuilder::new();
        delete.then().delete_prefix(id, &vec![b'a'; len]).expect("valid");
        // The delete may be rejected.
        node.apply(&[encoded(|out| delete.encode(out).expect("valid"))]);
    }
    put_all(node, id, &[long_key("x")]);
    id
}

fn lookups(search: &mut Search<'_>) {
    let (node, key) = (search.node, long_key("x"));
    let deleted = OnceCell::new();
    let prefixes = || *deleted.get_or_init(|| delete_prefixes(node));
    search.kind("MULTI: EXISTS under 1,024 deleted prefixes", &|n| {
        let mut builder = RedisBuilder::new(prefixes());
        let mut exists = vec![&b"EXISTS"[..]];
        exists.resize(n + 1, &key);
        builder.push(&[b"MULTI"]).ok()?.push(&[b"SET", b"x", b"y"]).ok()?.push(&exists).ok()?.push(&[b"EXEC"]).ok()?;
        one(Some(builder.finish()))
    });
    search.kind("transaction: gets under 1,024 deleted prefixes", &|n| {
        let id = prefixes();
        one(transaction(n, |transaction, _| transaction.then().get(id, &key).ok().map(drop)))
    });
    if deleted.get().is_some() {
        sweep_all(node);
    }
}

/// Creates a keyspace, puts [`DELETED_ROWS`] keys into it, and deletes all of them.
fn delete_rows(node: &Node) -> KeyspaceId {
    const AT_ONCE: usize = 5_000;
    let id = keyspace(node, "hostile-rows");
    for first in (0..DELETED_ROWS).step_by(AT_ONCE) {
        let puts = commit(AT_ONCE, |commit, at| commit.put(id, &row_key(first + at), b"v").ok().map(drop));
        node.must(puts.expect("few"));
    }
    for first in (0..DELETED_ROWS).step_by(AT_ONCE) {
        let deletes = commit(AT_ONCE, |commit, at| commit.delete(id, &row_key(first + at)).ok().map(drop));
        node.must(deletes.expect("few"));
    }
    id
}

fn row_key(number: usize) -> Vec<u8> {
    format!("{number:07}").into_bytes()
}

fn scans(search: &mut Search<'_>) {
    let node = search.node;
    let deleted = OnceCell::new();
    for scans in [1, 100] {
        search.fixed("transaction: scans over 2,000,000 deleted rows", scans, &|n| {
            let id = *deleted.get_or_init(|| delete_rows(node));
            // Each scan begins at a lower key than the scan before it.
            one(transaction(n, |transaction, at| {
                let start = row_key(DELETED_ROWS - (at + 1) * DELETED_ROWS / n);
                let scan = ScanOperation { start: Some(&start), limit: 1, ..ScanOperation::default() };
                transaction.then().scan(id, &scan).ok().map(drop)
            }))
        });
    }
}
