//! Part of the example `entry_cost`: searches for the most expensive commands about consumer groups of streams.
//!
//! These commands have no budget of steps of work. Limits bound their cost: the maximum numbers of pending records and
//! dead letters, of records in a delivery attempt, of ranges in a command, of members and of groups. The proposer
//! bounds the number of commands in an entry.

use std::{cell::Cell, time::Duration};

use thalweg_types::{
    Attempt, GroupId, Offset, StreamId,
    command::{
        self, Outcome, StreamConfig,
        groups::{
            GroupConfig, GroupOutcome, OffsetRun, Redelivery, Settlement, encode_ack, encode_configure_group,
            encode_create_group, encode_delete_group, encode_extend, encode_fetch, encode_nack, encode_reclaim_group,
            encode_seek,
        },
    },
    limits::{MAX_FETCH_KEYS, MAX_GROUP_PENDING, MAX_GROUPS, MAX_SETTLED_RANGES},
};

use crate::{
    Node, Search, Space,
    data::{GROUPS, ORDERED, STREAM, commit, encoded, one, records, transaction},
    proposed,
};

/// A delivery attempt of a consumer group, and the range of records that it has delivered.
#[derive(Clone, Copy)]
struct Held {
    group: GroupId,
    attempt: Attempt,
    first: Offset,
    count: u32,
}

impl Held {
    /// Returns a settlement (ack or nack) of half of the attempt's records: those with odd numbers if `odd` is true,
    /// and those with even numbers otherwise. Each record is a range of its own, because no two are adjacent.
    fn settled(&self, odd: bool) -> Settlement {
        let runs = (0..self.count).filter(|number| (number % 2 == 1) == odd);
        let runs = runs.map(|number| OffsetRun::one(self.first.plus(number.into()))).collect();
        Settlement { attempt: self.attempt, runs }
    }
}

fn fetch(group: GroupId, max: u32, member: &str) -> Vec<u8> {
    encoded(|out| encode_fetch(out, group, max, Offset(0), &[], member).expect("valid"))
}

/// Acks the dead letters of a group, and moves the group back to the beginning of its stream. Dead letters count
/// towards the maximum of pending records, so without the acks the group could deliver fewer records.
fn rewind(node: &Node, group: GroupId) {
    while let Some(letters) = node.machine.dead_letters(group, None).expect("runs") {
        node.must(encoded(|out| encode_ack(out, group, &[Settlement::all(letters.attempt)]).expect("valid")));
    }
    node.must(encoded(|out| encode_seek(out, group, Some(Offset(0)))));
}

/// Delivers 100 attempts of 1,000 records each to one member. All records have different keys, so the state stores each
/// record as a range of its own.
fn hold_keyed(node: &Node) -> Vec<Held> {
    rewind(node, ORDERED);
    let fetch = |number: u64| {
        let (first, count) = (Offset(1_000 * number), 1_000);
        let keys: Vec<u64> = (0..1_000).map(|key| 1 + first.0 + key).collect();
        let fetch = encoded(|out| encode_fetch(out, ORDERED, count, first, &keys, "m").expect("valid"));
        let Outcome::Group(GroupOutcome::Fetched(fetched)) = node.must(fetch) else { panic!("not fetched") };
        Held { group: ORDERED, attempt: fetched.attempt, first, count }
    };
    (0..100).map(fetch).collect()
}

/// Moves groups back to the beginning of the stream, and fetches `attempts` times `each` records from each group.
/// Returns the delivery attempts.
fn hold(node: &Node, groups: impl Iterator<Item = u32>, attempts: u32, each: u32) -> Vec<Held> {
    let mut held = Vec::new();
    for group in groups.map(GroupId) {
        rewind(node, group);
        let fetches: Vec<_> = (0..attempts).map(|_| fetch(group, each, "m")).collect();
        for outcome in fetches.chunks(5_000).flat_map(|fetches| node.all(fetches)) {
            let Outcome::Group(GroupOutcome::Fetched(fetched)) = outcome else { panic!("{outcome:?}") };
            let Some(run) = fetched.deliveries.first().map(|delivered| delivered.run) else { break };
            held.push(Held { group, attempt: fetched.attempt, first: run.first, count: run.count });
        }
    }
    held
}

/// Removes all remaining rows of deleted groups and of trimmed records.
pub(crate) fn reclaim_all(node: &Node) {
    for group in node.machine.groups_to_reclaim(usize::MAX).expect("runs") {
        while let Outcome::Reclaimed { more: true, .. } = node.must(reclaim(group)) {}
    }
}

/// Encodes a command that removes rows of a deleted group, as many as one command may remove.
fn reclaim(group: GroupId) -> Vec<u8> {
    encoded(|out| encode_reclaim_group(out, group, u32::MAX))
}

/// Returns settlements (acks or nacks) of all records of the attempts, divided into commands: each item has the group
/// and the settlements of one command, with as many ranges as a command may have.
fn settlements(held: &[Held]) -> Vec<(GroupId, Vec<Settlement>)> {
    let mut all: Vec<(GroupId, Vec<Settlement>)> = Vec::new();
    let mut ranges = 0;
    for odd in [false, true] {
        for one in held {
            let settlement = one.settled(odd);
            let more = settlement.runs.len().max(1);
            match all.last_mut() {
                Some((group, list)) if *group == one.group && ranges + more <= MAX_SETTLED_RANGES => {
                    list.push(settlement);
                    ranges += more;
                }
                _ => {
                    all.push((one.group, vec![settlement]));
                    ranges = more;
                }
            }
        }
    }
    all
}

pub(crate) fn search(search: &mut Search<'_>) {
    fetches(search);
    settling(search);
    groups(search);
}

fn fetches(search: &mut Search<'_>) {
    let node = search.node;
    let seek = || {
        (1..=GROUPS).for_each(|group| _ = node.must(encoded(|out| encode_seek(out, GroupId(group), Some(Offset(0))))));
    };
    search.kind("entry: fetches of 1,000", &|n| {
        seek();
        proposed(Space::Plain, n, &|at| fetch(GroupId(1 + at as u32 % GROUPS), 1_000, "m"))
    });
    search.kind("entry: fetches of 1", &|n| {
        seek();
        proposed(Space::Plain, n, &|_| fetch(GroupId(1), 1, "m"))
    });
    let next = Cell::new(0);
    search.kind("entry: fetches of new members, 100,000 attempts", &|n| {
        hold(node, 1..2, MAX_GROUP_PENDING - 1_000, 1);
        // The members of earlier rounds hold nothing and are idle.
        node.ahead.set(node.ahead.get() + 2 * 3_600_000_000);
        proposed(Space::Plain, n, &|_| {
            next.set(next.get() + 1);
            fetch(GroupId(1), 1, &format!("member{}", next.get()))
        })
    });
    search.kind("entry: fetches after 100,000 deadlines", &|n| {
        hold(node, 1..5, MAX_GROUP_PENDING, 1);
        node.ahead.set(node.ahead.get() + 24 * 3_600_000_000);
        proposed(Space::Plain, n, &|at| fetch(GroupId(1 + at as u32 % 4), 1_000, "m"))
    });
    let keys: Vec<u64> = (0..MAX_FETCH_KEYS as u64).map(|number| 1 + number % 7).collect();
    search.kind("entry: fetches in order per key", &|n| {
        node.must(encoded(|out| encode_seek(out, ORDERED, Some(Offset(0)))));
        proposed(Space::Plain, n, &|at| {
            let window = Offset(at as u64 * MAX_FETCH_KEYS as u64);
            encoded(|out| encode_fetch(out, ORDERED, 1_000, window, &keys, "m").expect("valid"))
        })
    });
}

fn settling(search: &mut Search<'_>) {
    let node = search.node;
    let ready = || settlements(&hold(node, 1..=GROUPS, MAX_GROUP_PENDING / 1_000, 1_000));
    search.kind("entry: acks of 10,000 ranges", &|n| {
        let ready = ready();
        let acks = proposed(Space::Plain, n.min(ready.len()), &|at| {
            encoded(|out| encode_ack(out, ready[at].0, &ready[at].1).expect("valid"))
        });
        acks.filter(|_| n <= ready.len())
    });
    let again = Redelivery::After(Duration::from_secs(60));
    for (name, again) in
        [("entry: nacks of 10,000 ranges", again), ("entry: nacks of 10,000 ranges to dead letters", Redelivery::Never)]
    {
        search.kind(name, &|n| {
            let ready = ready();
            let nacks = proposed(Space::Plain, n.min(ready.len()), &|at| {
                encoded(|out| encode_nack(out, ready[at].0, again, "reason", &ready[at].1).expect("valid"))
            });
            nacks.filter(|_| n <= ready.len())
        });
    }
    search.kind("entry: acks of one record", &|n| {
        let held = hold(node, 1..2, 5_000, 1);
        proposed(Space::Plain, n, &|at| {
            let one = held[at % held.len()];
            encoded(|out| encode_ack(out, one.group, &[Settlement::all(one.attempt)]).expect("valid"))
        })
    });
    search.kind("entry: acks of one record of 1,000 runs", &|n| {
        let held = hold_keyed(node);
        proposed(Space::Plain, n, &|at| {
            let (one, number) = (held[at % held.len()], (at / held.len()) as u64);
            let settlement = Settlement::one(one.attempt, one.first.plus(number));
            encoded(|out| encode_ack(out, one.group, &[settlement]).expect("valid"))
        })
    });
    for (name, again) in
        [("entry: nacks of 1,000 runs", again), ("entry: nacks of 1,000 runs, dead", Redelivery::Never)]
    {
        search.kind(name, &|n| {
            let held = hold_keyed(node);
            let nacks = proposed(Space::Plain, n.min(held.len()), &|at| {
                let all = [Settlement::all(held[at].attempt)];
                encoded(|out| encode_nack(out, ORDERED, again, "reason", &all).expect("valid"))
            });
            nacks.filter(|_| n <= held.len())
        });
    }
    search.kind("entry: extensions of 10,000 attempts", &|n| {
        let held = hold(node, 1..5, MAX_GROUP_PENDING, 1);
        let attempts: Vec<Vec<Attempt>> =
            held.chunks(MAX_SETTLED_RANGES).map(|held| held.iter().map(|held| held.attempt).collect()).collect();
        let extensions = proposed(Space::Plain, n.min(attempts.len()), &|at| {
            let group = held[at * MAX_SETTLED_RANGES].group;
            encoded(|out| encode_extend(out, group, Duration::from_secs(3_600), &attempts[at]).expect("valid"))
        });
        extensions.filter(|_| n <= attempts.len())
    });
    search.kind("commit: acks of 10,000 ranges", &|n| {
        let ready = ready();
        one(commit(n, |commit, at| commit.ack(ready.get(at)?.0, &ready[at].1).ok().map(drop)))
    });
    search.kind("commit: nacks of 10,000 ranges", &|n| {
        let ready = ready();
        one(commit(n, |commit, at| commit.nack(ready.get(at)?.0, again, "reason", &ready[at].1).ok().map(drop)))
    });
    search.kind("commit: acks of whole attempts", &|n| {
        let held = hold(node, 1..2, 20_000, 1);
        one(commit(n, |commit, at| {
            let one = held.get(at)?;
            commit.ack(one.group, &[Settlement::all(one.attempt)]).ok().map(drop)
        }))
    });
    search.kind("transaction: acks of 10,000 ranges", &|n| {
        let ready = ready();
        one(transaction(n, |transaction, at| transaction.then().ack(ready.get(at)?.0, &ready[at].1).ok().map(drop)))
    });
}

fn groups(search: &mut Search<'_>) {
    let (node, next) = (search.node, Cell::new(0));
    search.kind("entry: groups moved, 100,000 attempts each", &|n| {
        hold(node, 1..=(n as u32).min(2), MAX_GROUP_PENDING, 1);
        proposed(Space::Plain, n, &|at| encoded(|out| encode_seek(out, GroupId(1 + at as u32), Some(Offset(0)))))
            .filter(|_| n <= 2)
    });
    let config = GroupConfig { max_pending: MAX_GROUP_PENDING, ..GroupConfig::default() };
    let create = |stream: StreamId| {
        next.set(next.get() + 1);
        let name = format!("created{}", next.get());
        encoded(|out| encode_create_group(out, stream, &name, Some(Offset(0)), &config).expect("valid"))
    };
    let created = |stream: StreamId, count: usize| {
        let outcomes = node.all(&(0..count).map(|_| create(stream)).collect::<Vec<_>>());
        let ids = outcomes.iter().map(|outcome| match outcome {
            Outcome::Group(GroupOutcome::Created { id, .. }) => *id,
            other => panic!("{other:?}"),
        });
        ids.collect::<Vec<_>>()
    };
    search.kind("entry: groups with 100,000 attempts deleted", &|n| {
        reclaim_all(node);
        let groups = created(STREAM, n.min(2));
        groups.iter().for_each(|group| _ = hold(node, group.0..group.0 + 1, MAX_GROUP_PENDING, 1));
        proposed(Space::Plain, n, &|at| encoded(|out| encode_delete_group(out, *groups.get(at).unwrap_or(&groups[0]))))
            .filter(|_| n <= 2)
    });
    search.kind("entry: groups configured", &|n| {
        let config = GroupConfig { dead_letters: Some("dead".to_owned()), ..config.clone() };
        proposed(Space::Plain, n, &|at| {
            encoded(|out| encode_configure_group(out, GroupId(1 + at as u32 % GROUPS), &config).expect("valid"))
        })
    });
    let stream = |records_count: usize| {
        next.set(next.get() + 1);
        let name = format!("of-groups-{}", next.get());
        let config = StreamConfig::default();
        let Outcome::Stream { id, .. } =
            node.must(encoded(|out| command::encode_create_stream(out, &name, &config).expect("valid")))
        else {
            panic!("no stream")
        };
        let batch = records(1_000, b"v");
        for _ in 0..records_count / 1_000 {
            node.must(encoded(|out| command::encode_append(out, id, None, &batch)));
        }
        id
    };
    // Creates a stream whose groups have 100,000 attempts each.
    let held = |groups: usize| {
        reclaim_all(node);
        let id = stream(100_000);
        let groups = created(id, groups);
        hold(node, groups.iter().map(|group| group.0), MAX_GROUP_PENDING, 1);
        (id, groups)
    };
    for groups in [1, 3] {
        search.fixed(&format!("stream with {groups} × 100,000 attempts trimmed"), groups, &|groups| {
            Some(vec![encoded(|out| command::encode_trim_stream(out, held(groups).0, Offset(100_000)))])
        });
        search.fixed(&format!("stream with {groups} × 100,000 attempts deleted"), groups, &|groups| {
            Some(vec![encoded(|out| command::encode_delete_stream(out, held(groups).0))])
        });
    }
    search.fixed("trimmed records of a group removed", 1, &|_| {
        let (id, groups) = held(1);
        node.must(encoded(|out| command::encode_trim_stream(out, id, Offset(100_000))));
        Some(vec![reclaim(groups[0])])
    });
    search.fixed("rows of a deleted group removed", 1, &|_| {
        let groups = held(1).1;
        node.must(encoded(|out| encode_delete_group(out, groups[0])));
        Some(vec![reclaim(groups[0])])
    });
    reclaim_all(node);
    search.kind("entry: groups created", &|n| {
        proposed(Space::Plain, n.min(300), &|_| create(STREAM)).filter(|_| n <= 300)
    });
    let many = stream(10_000);
    let id = Cell::new(0_u64);
    let have = node.machine.groups(None).expect("runs").len();
    created(many, MAX_GROUPS.saturating_sub(have + 1));
    search.kind("entry: trims of a stream with many groups", &|n| {
        proposed(Space::Plain, n, &|_| {
            id.set(id.get() + 1);
            encoded(|out| command::encode_trim_stream(out, many, Offset(id.get() % 10_000)))
        })
    });
    // The groups of this stream leave no room for other groups.
    node.must(encoded(|out| command::encode_delete_stream(out, many)));
    search.fixed("stream with many groups deleted", 1, &|_| {
        reclaim_all(node);
        let have = node.machine.groups(None).expect("runs").len();
        let many = stream(1_000);
        created(many, MAX_GROUPS.saturating_sub(have + 1).min(5_000));
        Some(vec![encoded(|out| command::encode_delete_stream(out, many))])
    });
}
