//! Outcomes, steps and running hash of commands at the limits of version 1 of the state machine.
//!
//! All nodes must decide equally, also those of another release, and a replay must decide as the first application did.
//! So a change that alters a line of the golden file needs another version of the state machine, or another kind of
//! command. Before the first release it needs an entry in `docs/decisions.md`. `THALWEG_BLESS=1` rewrites the file.

use std::{fmt::Write as _, path::Path};

use thalweg_types::{
    GroupId, Offset, Revision, StreamId,
    command::{
        CommitBuilder, Expect, Outcome, ScanOperation, StreamConfig, TransactionBuilder, UnchangedRange,
        encode_create_stream, encode_trim_stream,
        groups::{
            GroupConfig, GroupOutcome, OffsetRun, Redelivery, Settlement, encode_ack, encode_create_group,
            encode_delete_group, encode_extend, encode_fetch, encode_nack, encode_reclaim_group, encode_seek,
        },
    },
    limits::{MAX_COMMIT_WRITES, MAX_GROUP_PENDING, MAX_REDIS_COPY_PARTS, MAX_SETTLED_RANGES, MAX_VALUE_BYTES},
    reply::Reply,
};

use crate::{
    budget::{KS, fill, joint, key, node, redis, stream},
    groups::{append, fetched},
    random::node::Node,
    support::command,
};

/// Time of the entries that a case consists of, after those that prepare it.
const NOW: u64 = 9;

fn words(text: &str) -> Vec<&[u8]> {
    text.split(' ').map(str::as_bytes).collect()
}

/// Encodes a burst of Redis commands, given as words.
fn burst(commands: &[&str]) -> Vec<u8> {
    let commands: Vec<Vec<&[u8]>> = commands.iter().map(|text| words(text)).collect();
    redis(&commands.iter().map(|words| &words[..]).collect::<Vec<_>>())
}

/// Describes a reply by its kind and size, an error by its first words.
fn reply_text(reply: &Reply) -> String {
    match reply {
        Reply::Error(text) => text.split(' ').take(3).collect::<Vec<_>>().join(" "),
        Reply::Bulk(bytes) if bytes.len() > 40 => format!("{} bytes", bytes.len()),
        Reply::Array(items) => format!("array of {}, {} bytes", items.len(), reply.content_bytes()),
        Reply::Pairs(_) => format!("pairs of {} bytes", reply.content_bytes()),
        other => format!("{other:?}"),
    }
}

fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Redis(Some(replies)) => {
            let mut runs: Vec<(String, usize)> = Vec::new();
            for text in replies.iter().map(reply_text) {
                match runs.last_mut() {
                    Some((last, count)) if *last == text => *count += 1,
                    _ => runs.push((text, 1)),
                }
            }
            runs.iter().map(|(text, count)| format!("{count} × {text}")).collect::<Vec<_>>().join("; ")
        }
        Outcome::Transacted(done) => format!("transacted, {} results", done.results.len()),
        Outcome::Group(GroupOutcome::Settled { settled, lapsed }) => {
            format!("{settled} settled, {} lapsed", lapsed.len())
        }
        Outcome::Group(GroupOutcome::Extended { lapsed, .. }) => format!("extended, {} lapsed", lapsed.len()),
        Outcome::Group(GroupOutcome::Fetched(fetched)) => {
            let records: u32 = fetched.deliveries.iter().map(|delivered| delivered.run.count).sum();
            format!("{records} records in attempt {}", fetched.attempt.0)
        }
        other => format!("{other:?}"),
    }
}

/// Applies the commands of a case, each in an entry of its own, and adds a line for each. No client waits for the
/// outcomes, so reads behind a write are not performed: their replies are no part of the version.
fn note(lines: &mut String, name: &str, node: &mut Node, commands: &[Vec<u8>]) {
    node.is_awaited = false;
    for encoded in commands {
        let before = node.machine().steps().unwrap();
        let outcome = node.apply(NOW, &[encoded]).remove(0);
        let (steps, hash) = (node.machine().steps().unwrap() - before, node.machine().applied().running_hash);
        writeln!(lines, "{name}: {steps} steps, hash {hash:016x}: {}", outcome_text(&outcome)).unwrap();
    }
}

fn transaction(add: impl FnOnce(&mut TransactionBuilder)) -> Vec<u8> {
    let mut builder = TransactionBuilder::new();
    add(&mut builder);
    command(|out| builder.encode(out).unwrap())
}

fn commit(add: impl FnOnce(&mut CommitBuilder)) -> Vec<u8> {
    let mut builder = CommitBuilder::new();
    add(&mut builder);
    command(|out| builder.encode(out))
}

fn cases_of_keys(lines: &mut String) {
    let mut rows = node();
    fill(&mut rows, 30_000);
    let scan = |operations: &mut TransactionBuilder, limit: u32| {
        _ = operations.then().scan(KS, &ScanOperation { limit, ..ScanOperation::default() }).unwrap();
    };
    let unchanged = Expect::Unchanged(UnchangedRange { end: Some(b"02"), since: Revision(99), count: 20_000 });
    note(
        lines,
        "keys",
        &mut rows,
        &[
            commit(|commit| _ = commit.expect(KS, b"", unchanged).unwrap().put(KS, b"x", b"").unwrap()),
            transaction(|all| {
                all.then().put(KS, b"x", b"").unwrap();
                (0..120).for_each(|_| scan(all, 500));
            }),
            transaction(|all| {
                all.then().put(KS, b"x", b"").unwrap();
                (0..200).for_each(|_| scan(all, 500));
            }),
            burst(&["MULTI", "SET x 1", "KEYS *1*2*", "KEYS *1*2*", "KEYS *1*2*", "EXEC"]),
            burst(&["MULTI", "SET x 1", "KEYS *1*2*", "KEYS *1*2*", "KEYS *1*2*", "KEYS *1*2*", "EXEC"]),
            joint(burst(&["SET x 1", "KEYS *1*2*", "KEYS *1*2*", "KEYS *1*2*", "KEYS *1*2*", "INCR x"])),
            burst(&["SET x 1", "KEYS *1*2*", "KEYS *1*2*", "KEYS *1*2*", "KEYS *1*2*", "INCR x"]),
            commit(|all| (0..MAX_COMMIT_WRITES).for_each(|number| _ = all.delete(KS, &key(number)).unwrap())),
        ],
    );
}

fn cases_of_large_values(lines: &mut String) {
    let mut node = node();
    let (large, name) = (vec![b'v'; MAX_VALUE_BYTES - 64], key(1));
    let set = |command: &[u8], key: &[u8]| redis(&[&[command, key, &large]]);
    let append = "APPEND large v";
    note(
        lines,
        "large values",
        &mut node,
        &[
            set(b"SET", b"large"),
            burst(&[append; 4]),
            burst(&["SETRANGE large 8388000 v", "COPY large copy", "COPY large other", append]),
            burst(&["MULTI", "SET x 1", "MGET large large large large", "EXEC"]),
            burst(&["MULTI", "SET x 1", "MGET large large large large large", "EXEC"]),
            redis(&[&[b"HSET", b"hash", &name, &large]]),
            redis(&[&[b"XADD", b"stream", b"1-1", b"field", &large[..large.len() - 64]]]),
            burst(&["RENAME large moved", "EXPIRE moved 100", "EXPIRE copy 100", "DEL moved copy"]),
        ],
    );
}

fn cases_of_copies(lines: &mut String) {
    for (name, fields, bytes) in [
        ("as many fields as may be copied", MAX_REDIS_COPY_PARTS, 255),
        ("one field more", MAX_REDIS_COPY_PARTS + 1, 1),
        ("as many bytes as may be copied", 1_100, 8_500),
        ("more bytes", 1_200, 8_192),
    ] {
        let mut node = node();
        let value = vec![b'v'; bytes];
        let names: Vec<Vec<u8>> = (0..fields).map(key).collect();
        for names in names.chunks((1 << 20) / (bytes + 100) + 1) {
            let mut set: Vec<&[u8]> = vec![b"HSET", b"h"];
            names.iter().for_each(|name| set.extend([&name[..], &value]));
            node.apply(2, &[&redis(&[&set])]);
        }
        note(lines, name, &mut node, &[burst(&["COPY h copy", "HLEN copy", "HDEL h 000001"])]);
    }
}

fn cases_of_streams(lines: &mut String) {
    for (name, entries, bytes) in [("short entries", 12_000, 1), ("long entries", 700, 16_384)] {
        let mut node = node();
        stream(&mut node, entries, bytes, false);
        let commands = [
            "XGROUP CREATE s g 0",
            "XREADGROUP GROUP g a STREAMS s >",
            "XREADGROUP GROUP g a STREAMS s 0",
            "XAUTOCLAIM s g b 0 0 COUNT 100000",
            "XGROUP DELCONSUMER s g b",
            "XTRIM s MAXLEN 0",
        ];
        note(lines, name, &mut node, &commands.map(|text| burst(&[text])));
    }
}

/// Every second record of an attempt of 1,000 records, each as a range of its own.
fn ranges(held: &[(u64, u64)], odd: u64) -> Vec<Settlement> {
    let runs = |first: u64| (0..500).map(move |number| OffsetRun::one(Offset(first + 2 * number + odd))).collect();
    held.iter().map(|&(attempt, first)| Settlement { attempt: attempt.into(), runs: runs(first) }).collect()
}

/// A node with a stream of 200,000 records.
fn stream_of_records() -> Node {
    let mut node = node();
    node.apply(2, &[&command(|out| encode_create_stream(out, "s", &StreamConfig::default()).unwrap())]);
    (0..200).for_each(|_| _ = node.apply(2, &[&append(StreamId(1), 1_000)]));
    node
}

/// Creates a group, and fetches all records that it may hold, `each` with one attempt. Returns the attempts, each with
/// its first record.
fn hold(node: &mut Node, group: GroupId, attempts: u32, each: u32) -> Vec<(u64, u64)> {
    let config =
        GroupConfig { max_pending: MAX_GROUP_PENDING, dead_letters: Some("dead".into()), ..GroupConfig::default() };
    let name = format!("g{}", group.0);
    node.apply(3, &[&command(|out| encode_create_group(out, StreamId(1), &name, Some(Offset(0)), &config).unwrap())]);
    let fetch = command(|out| encode_fetch(out, group, each, Offset(0), &[], "m").unwrap());
    let mut held = Vec::new();
    for first in (0..attempts).step_by(1_000) {
        let fetches = vec![&fetch[..]; (attempts - first).min(1_000) as usize];
        held.extend(node.apply(4, &fetches).iter().map(|outcome| {
            let fetched = fetched(outcome);
            (fetched.attempt.0, fetched.deliveries[0].run.first.0)
        }));
    }
    held
}

fn cases_of_settlements(lines: &mut String) {
    let mut node = stream_of_records();
    let groups = [1, 2, 3].map(GroupId);
    let held = groups.map(|group| hold(&mut node, group, 100, 1_000));
    let most = held.each_ref().map(|held| held.chunks(MAX_SETTLED_RANGES / 500).collect::<Vec<_>>());
    let ack = |group: usize, part: usize, odd| {
        command(|out| encode_ack(out, groups[group], &ranges(most[group][part], odd)).unwrap())
    };
    let nack = |part: usize, again| {
        command(|out| encode_nack(out, groups[0], again, "why", &ranges(most[0][part], 0)).unwrap())
    };
    let acks = |all: &[(usize, usize)]| {
        commit(|commit| {
            for &(group, part) in all {
                commit.ack(groups[group], &ranges(most[group][part], 1)).unwrap();
            }
        })
    };
    // Ten acks of 10,000 ranges take more than a command may, and eight do where the attempts have many runs.
    let parts: Vec<_> = (0..3).flat_map(|group| (0..5).map(move |part| (group, part))).collect();
    let commands = [
        ack(0, 0, 0),
        ack(0, 0, 0),
        nack(1, Redelivery::Uncounted),
        nack(2, Redelivery::Never),
        command(|out| encode_fetch(out, groups[0], 1_000, Offset(0), &[], "other").unwrap()),
        acks(&parts[..10]),
        acks(&parts[..7]),
        acks(&parts[..1]),
        transaction(|all| _ = all.then().ack(groups[2], &ranges(most[2][4], 0)).unwrap()),
        command(|out| encode_seek(out, groups[1], Some(Offset(7)))),
    ];
    note(lines, "settlements of groups", &mut node, &commands);
}

fn cases_of_attempts(lines: &mut String) {
    // More than a delete or a trim removes at once. Acks of all attempts of four groups take more steps than a command
    // may.
    const EACH: u32 = 11_700;
    let mut node = stream_of_records();
    let groups = [1, 2, 3, 4].map(GroupId);
    let held = groups.map(|group| hold(&mut node, group, EACH, 1));
    let attempts = |group: usize| held[group].iter().map(|&(attempt, _)| attempt.into());
    let extended: Vec<_> = attempts(0).take(MAX_SETTLED_RANGES).collect();
    let acks = |of: &[usize]| {
        commit(|commit| {
            for &group in of {
                let wholes: Vec<_> = attempts(group).map(Settlement::all).collect();
                wholes.chunks(MAX_SETTLED_RANGES).for_each(|some| _ = commit.ack(groups[group], some).unwrap());
            }
        })
    };
    let reclaim = |group: usize| command(|out| encode_reclaim_group(out, groups[group], 1_000));
    let trim = |before| command(|out| encode_trim_stream(out, StreamId(1), Offset(before)));
    let commands = [
        command(|out| encode_extend(out, groups[0], std::time::Duration::from_secs(60), &extended).unwrap()),
        acks(&[0, 1, 2, 3]),
        trim(11_000),
        reclaim(0),
        reclaim(1),
        command(|out| encode_delete_group(out, groups[2])),
        reclaim(2),
        acks(&[3]),
        reclaim(3),
    ];
    note(lines, "attempts of groups", &mut node, &commands);
}

#[test]
fn outcomes_at_the_limits_are_those_of_version_1() {
    let mut lines = String::new();
    cases_of_keys(&mut lines);
    cases_of_large_values(&mut lines);
    cases_of_copies(&mut lines);
    cases_of_streams(&mut lines);
    cases_of_settlements(&mut lines);
    cases_of_attempts(&mut lines);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machine/golden/version-1.txt");
    if std::env::var_os("THALWEG_BLESS").is_some() {
        std::fs::write(&path, &lines).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    for (found, expected) in lines.lines().zip(golden.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(lines.lines().count(), golden.lines().count());
}
