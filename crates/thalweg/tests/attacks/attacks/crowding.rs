//! Attacks on what all clients share: deleted prefixes that wait to be swept, cursors of scans, the matching of
//! published messages, and the queues of subscribers.

use std::{io::Write, net::Ipv4Addr, time::Duration};

use super::{
    Attack, PLAIN, PROOFS, REFUSED, SERVED,
    bounds::{put, repeat},
    call, fill, post, reply,
};
use crate::{OWN, Progress, Server, connect, redis::encode};

/// Longest of the prefixes, which has as many bytes as deleted prefixes may wait.
const PREFIXES: usize = 1024;
/// Number of deletes by prefix that a transaction may have.
const DELETES_AT_ONCE: usize = 16;
/// Number of keys with a prefix, too many for the delete to remove them immediately.
const KEYS: usize = 65;

/// Deletes the maximum number of prefixes that may wait to be swept, each longer than the one before, so that a few
/// keys suffice. The sweep is busy with other deleted keys meanwhile.
pub(crate) fn deleted_prefixes() -> Attack {
    Attack {
        name: "1,024 deleted prefixes",
        threads: 3,
        reaches: &[PROOFS, "thalweg_swept_rows_total"],
        prepare: |server| {
            // The sweep goes through the keyspaces in the order of their creation.
            fill(server, 20_000);
            check_ok(&put_nested_keys(server, OWN)).unwrap();
        },
        aim: |server, from| {
            // The clients of one address share the deleted prefixes that may wait.
            if from == OWN { Ok(()) } else { delete_a_prefix(server) }
        },
        run: |server, from, number, progress| match number {
            0 => {
                while !progress.is_over() {
                    delete_nested_prefixes(server, from, progress);
                }
            }
            1 => {
                // A key that was put after the deletes is looked up under each prefix.
                let path = format!("/v1/kv/nested/{}x", "a".repeat(1_100));
                let get = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
                while !progress.is_over() {
                    progress.count(call(from, server.http, &put(&path, "v")));
                    (0..20).for_each(|_| progress.count(call(from, server.http, get.as_bytes())));
                }
            }
            _ => {
                while !progress.is_over() {
                    keep_the_sweep_busy(server, from, progress);
                }
            }
        },
        ..PLAIN
    }
}

/// Puts keys that begin with the longest prefix.
fn put_nested_keys(server: &Server, from: Ipv4Addr) -> std::io::Result<Vec<u8>> {
    let write = |number: usize| {
        let key = format!("{}{number}", "a".repeat(1_100));
        format!(r#"{{"op":"put","keyspace":"nested","key":"{key}","value":"v"}}"#)
    };
    let writes: Vec<_> = (0..KEYS).map(write).collect();
    let body = format!(r#"{{"writes":[{}],"durability":"os"}}"#, writes.join(","));
    call(from, server.http, &post("/v1/commit", &body))
}

fn delete_nested_prefixes(server: &Server, from: Ipv4Addr, progress: &Progress) {
    progress.count(put_nested_keys(server, from));
    let lengths: Vec<usize> = (1..=PREFIXES).collect();
    for lengths in lengths.chunks(DELETES_AT_ONCE) {
        if progress.is_over() {
            return;
        }
        let delete =
            |len: &usize| format!(r#"{{"op":"delete_prefix","keyspace":"nested","prefix":"{}"}}"#, "a".repeat(*len));
        let deletes: Vec<_> = lengths.iter().map(delete).collect();
        let body = format!(r#"{{"then":[{}],"durability":"os"}}"#, deletes.join(","));
        // The first deletes succeed: the shortest prefix replaces those that still wait.
        progress
            .count_proof(call(from, server.http, &post("/v1/txn", &body)), |reply| reply.starts_with(b"HTTP/1.1 200"));
    }
}

/// Writes 20,000 keys and deletes them by their prefix.
fn keep_the_sweep_busy(server: &Server, from: Ipv4Addr, progress: &Progress) {
    let Ok(mut stream) = connect(from, server.resp) else { return };
    for first in (0..20_000).step_by(1000) {
        let pairs: Vec<String> = (first..first + 1000).map(|key| format!("busy{key} v")).collect();
        let answer = stream.write_all(&encode(&format!("MSET {}", pairs.join(" ")))).and_then(|()| reply(&mut stream));
        let is_lost = answer.is_err();
        progress.count(answer);
        if is_lost || progress.is_over() {
            return;
        }
    }
    progress.count(call(from, server.http, &delete("/v1/kv/redis?prefix=busy")));
}

fn delete(target: &str) -> Vec<u8> {
    format!("DELETE {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").into_bytes()
}

/// Deletes as many keys by their prefix that they are not removed immediately.
fn delete_a_prefix(server: &Server) -> Result<(), String> {
    let write = |number: usize| format!(r#"{{"op":"put","keyspace":"good","key":"aimed:{number}","value":"v"}}"#);
    let writes: Vec<_> = (0..KEYS + 5).map(write).collect();
    let body = format!(r#"{{"writes":[{}],"durability":"os"}}"#, writes.join(","));
    check_ok(&call(OWN, server.http, &post("/v1/commit", &body)))?;
    check_ok(&call(OWN, server.http, &delete("/v1/kv/good?prefix=aimed:")))
}

/// Checks that a reply over HTTP has a status of success.
fn check_ok(answer: &std::io::Result<Vec<u8>>) -> Result<(), String> {
    match answer {
        Ok(reply) if reply.starts_with(b"HTTP/1.1 2") => Ok(()),
        Ok(reply) => Err(String::from_utf8_lossy(reply).lines().next().unwrap_or("no reply").to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Scans that begin and never continue, each of which takes a cursor.
pub(crate) fn scan_cursors() -> Attack {
    Attack {
        name: "SCANs that never continue",
        threads: 2,
        reaches: &[SERVED],
        prepare: |server| fill(server, 1_000),
        aim: |server, from| {
            // The clients of one address share its cursors.
            if from == OWN { Ok(()) } else { continue_a_scan(server) }
        },
        run: |server, from, _, progress| repeat(from, server.resp, &encode("SCAN 0 COUNT 1").repeat(1000), progress),
        ..PLAIN
    }
}

/// Begins a scan, and continues it a moment later.
fn continue_a_scan(server: &Server) -> Result<(), String> {
    let scan = |cursor: &str| {
        let answer = call(OWN, server.resp, &encode(&format!("SCAN {cursor} COUNT 10")));
        let text = String::from_utf8_lossy(&answer.map_err(|error| error.to_string())?).into_owned();
        // `*2`, the length of the cursor, the cursor.
        let cursor = text.lines().nth(2).filter(|_| text.starts_with("*2"));
        cursor.map(str::to_owned).ok_or_else(|| text.lines().next().unwrap_or("no reply").to_owned())
    };
    let cursor = scan("0")?;
    std::thread::sleep(Duration::from_millis(300));
    scan(&cursor).map(drop)
}

/// Subscriptions to globs that no channel matches, but that the server must compare with each.
pub(crate) fn broad_globs() -> Attack {
    Attack {
        name: "globs that match the beginning of all channels",
        reaches: &[REFUSED],
        run: |server, from, _, progress| {
            const GLOBS_AT_ONCE: u64 = 500;
            let (mut held, mut next) = (Vec::new(), 0);
            while !progress.is_over() {
                let Ok(mut stream) = connect(from, server.resp) else { continue };
                // Each connection subscribes until it is refused, and stays.
                while !progress.is_over() {
                    let globs: Vec<_> = (next..next + GLOBS_AT_ONCE).map(|number| format!("*a{number}")).collect();
                    next += GLOBS_AT_ONCE;
                    let sent = stream.write_all(&encode(&format!("PSUBSCRIBE {}", globs.join(" "))));
                    let answer = sent.and_then(|()| reply(&mut stream));
                    let is_refused =
                        answer.as_ref().map_or(true, |answer| answer.windows(4).any(|part| part == b"-ERR"));
                    progress.count(answer.map(|answer| if is_refused { b"-".to_vec() } else { answer }));
                    if is_refused {
                        break;
                    }
                }
                held.push(stream);
                held.truncate(100);
                std::thread::sleep(Duration::from_millis(20));
            }
        },
        ..PLAIN
    }
}

/// Redis subscribers that never read, each with a queue just below the size at which it is disconnected. Together they
/// fill the room for the queues of all clients.
pub(crate) fn full_queues() -> Attack {
    Attack {
        name: "Redis subscribers whose queues fill the room",
        reaches: &["thalweg_subject_disconnected_links_total"],
        run: |server, from, _, progress| {
            while !progress.is_over() {
                if fill_queues(server, from, progress).is_err() {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        },
        ..PLAIN
    }
}

/// Subscribes over a few connections, publishes 30 MiB to each of them, and holds them for a moment.
fn fill_queues(server: &Server, from: Ipv4Addr, progress: &Progress) -> std::io::Result<()> {
    const SUBSCRIBERS: usize = 12;
    let mut held = Vec::new();
    for number in 0..SUBSCRIBERS {
        let mut stream = connect(from, server.resp)?;
        stream.write_all(&encode(&format!("SUBSCRIBE flood{number}")))?;
        // The greeting. Messages stay unread.
        reply(&mut stream)?;
        held.push(stream);
    }
    let mut publisher = connect(from, server.resp)?;
    for number in 0..SUBSCRIBERS {
        let message = encode(&format!("PUBLISH flood{number} {}", "m".repeat(512 * 1024)));
        for _ in 0..60 {
            if progress.is_over() {
                return Ok(());
            }
            let answer = publisher.write_all(&message).and_then(|()| reply(&mut publisher));
            let lost = answer.as_ref().err().map(|error| error.kind());
            progress.count(answer);
            if let Some(kind) = lost {
                return Err(kind.into());
            }
        }
    }
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}
