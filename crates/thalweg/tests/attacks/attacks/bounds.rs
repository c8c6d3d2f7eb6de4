//! Attacks that fill one bound of the admission each.
//!
//! Owns: the requests that take the resource of the bound and keep it, or take more of it endlessly. The metric of
//! refusals for the bound shows that it was reached.

use std::{io::Write, net::Ipv4Addr, time::Duration};

use super::{
    Attack, MIB, PLAIN, PROOFS, REFUSED, call, fill, get, hold, is_refusal, never_read, post, reply,
    slow::http2_streams,
};
use crate::{OWN, Progress, Server, connect, redis::encode};

/// Requests over HTTP/2 whose bodies never begin: more than may be in flight, over few connections.
pub(crate) fn requests_over_http2() -> Attack {
    Attack {
        name: "HTTP/2 requests without an end",
        reaches: &[r#"thalweg_http_shed_total{bound="requests"}"#],
        run: |server, from, _, progress| {
            let streams = http2_streams(&[("PUT", "/v1/kv/bad/k")], 65_535);
            hold(server.http, from, 48, &streams, progress);
        },
        ..PLAIN
    }
}

/// Watches that are never read, of a keyspace that changes all the time.
pub(crate) fn unread_watches() -> Attack {
    Attack {
        name: "watches that are never read",
        threads: 3,
        reaches: &[r#"thalweg_http_shed_total{bound="tails"}"#],
        prepare: |server| {
            let mut stream = connect(OWN, server.resp).unwrap();
            stream.write_all(&encode("SET watched 1")).unwrap();
            assert_eq!(reply(&mut stream).unwrap(), b"+OK\r\n");
        },
        run: |server, from, number, progress| match number {
            0 => never_read(server.http, from, 800, &get("/v1/watch/redis", "text/event-stream"), progress),
            1 => never_read(server.http, from, 800, &get("/v1/watch/redis", "application/x-ndjson"), progress),
            _ => {
                let change = encode(&format!("SET watched {}", "w".repeat(16 * 1024)));
                repeat(from, server.resp, &change, progress);
            }
        },
        ..PLAIN
    }
}

/// Watches that are never read, of a key that is set to values of 7 MiB all the time.
pub(crate) fn unread_watches_of_large_values() -> Attack {
    Attack {
        name: "watches of large values that are never read",
        threads: 2,
        reaches: &[PROOFS],
        prepare: |server| {
            let mut stream = connect(OWN, server.resp).unwrap();
            stream.write_all(&encode("SET watched 1")).unwrap();
            assert_eq!(reply(&mut stream).unwrap(), b"+OK\r\n");
        },
        run: |server, from, number, progress| match number {
            0 => never_read(server.http, from, 200, &get("/v1/watch/redis", "text/event-stream"), progress),
            _ => {
                let change = encode(&format!("SET watched {}", "w".repeat(7 * MIB)));
                repeat(from, server.resp, &change, progress);
            }
        },
        ..PLAIN
    }
}

/// Snapshots that are never read, and others whose clients disconnect after the first bytes.
pub(crate) fn snapshots() -> Attack {
    Attack {
        name: "snapshots that are never read",
        threads: 2,
        reaches: &[r#"thalweg_http_shed_total{bound="snapshots"}"#],
        prepare: |server| fill(server, 100_000),
        run: |server, from, number, progress| {
            let request = get("/v1/snapshot?compress=none", "*/*");
            if number == 0 {
                return never_read(server.http, from, 100, &request, progress);
            }
            while !progress.is_over() {
                progress.count(call(from, server.http, &request));
            }
        },
        ..PLAIN
    }
}

/// Subscriptions of Redis clients to more and more channels, with names as long as they may be.
pub(crate) fn subscriptions() -> Attack {
    Attack {
        name: "subscriptions without end",
        threads: 2,
        reaches: &[r#"thalweg_http_shed_total{bound="subscriptions"}"#],
        run: |server, from, number, progress| {
            let mut streams = Vec::new();
            let mut channel = 0_u64;
            while !progress.is_over() {
                let Ok(mut stream) = connect(from, server.resp) else { continue };
                // Each connection subscribes until it is refused, and stays.
                for _ in 0..50 {
                    let names: Vec<_> =
                        (channel..channel + 100).map(|at| format!("{number}.{at}.{:0>450}", at)).collect();
                    channel += 100;
                    let sent = stream.write_all(&encode(&format!("SUBSCRIBE {}", names.join(" "))));
                    let answer = sent.and_then(|()| reply(&mut stream));
                    let is_refused =
                        answer.as_ref().map_or(true, |answer| answer.windows(4).any(|part| part == b"-ERR"));
                    progress.count(answer.map(|answer| if is_refused { b"-".to_vec() } else { answer }));
                    if is_refused || progress.is_over() {
                        std::thread::sleep(Duration::from_millis(10));
                        break;
                    }
                }
                streams.push(stream);
                // A full server stays full, and the attacker tries again with another connection.
                streams.truncate(1000);
            }
        },
        ..PLAIN
    }
}

/// Caches that one client creates and fills with large values, and a database of Redis clients that is a cache.
pub(crate) fn caches() -> Attack {
    Attack {
        name: "caches filled with 900 KiB values",
        threads: 3,
        flags: &["--resp-databases", "16,15=cache:sessions"],
        reaches: &[r#"thalweg_http_shed_total{bound="cache_bytes"}"#],
        run: |server, from, number, progress| {
            let value = "c".repeat(900 * 1024);
            if number == 0 {
                let mut connected = None;
                for key in 0_u64.. {
                    if progress.is_over() {
                        return;
                    }
                    let mut burst = if connected.is_none() { encode("SELECT 15") } else { Vec::new() };
                    burst.extend(encode(&format!("SET {key} {value}")));
                    let stream = match &mut connected {
                        Some(stream) => stream,
                        None => match connect(from, server.resp) {
                            Ok(stream) => connected.insert(stream),
                            Err(_) => continue,
                        },
                    };
                    let answer = stream.write_all(&burst).and_then(|()| reply(stream));
                    let is_lost = answer.is_err();
                    progress.count(answer);
                    if is_lost {
                        connected = None;
                    }
                }
            }
            for key in 0_u64.. {
                if progress.is_over() {
                    return;
                }
                let path = format!("/v1/caches/{from}-{number}-{}/keys/{key}", key % 8);
                progress.count(call(from, server.http, &put(&path, &value)));
            }
        },
        ..PLAIN
    }
}

/// Keyspaces that are created without end, by commits with hundreds of writes and one by one.
pub(crate) fn keyspaces() -> Attack {
    Attack {
        name: "keyspaces created without end",
        threads: 4,
        reaches: &[r#"thalweg_http_shed_total{bound="keyspaces"}"#],
        run: |server, from, number, progress| {
            for round in 0_u64.. {
                if progress.is_over() {
                    return;
                }
                let request = if number == 0 {
                    put(&format!("/v1/keyspaces/{from}-{round}"), "")
                } else {
                    let write = |at| {
                        format!(r#"{{"op":"put","keyspace":"{from}-{number}-{round}-{at}","key":"k","value":"v"}}"#)
                    };
                    let writes: Vec<_> = (0..300).map(write).collect();
                    post("/v1/commit", &format!(r#"{{"writes":[{}],"durability":"os"}}"#, writes.join(",")))
                };
                progress.count(call(from, server.http, &request));
            }
        },
        ..PLAIN
    }
}

/// Values of 8 MiB that many connections request and never read, over HTTP and RESP.
pub(crate) fn unread_replies() -> Attack {
    Attack {
        name: "8 MiB values that are never read",
        threads: 2,
        reaches: &[r#"thalweg_http_shed_total{bound="reply_bytes"}"#],
        prepare: write_large_value,
        run: |server, from, number, progress| {
            if number == 0 {
                never_read(server.http, from, 100, &get("/v1/kv/redis/large", "*/*"), progress);
            } else {
                never_read(server.resp, from, 100, &encode("GET large").repeat(8), progress);
            }
        },
        ..PLAIN
    }
}

/// Writes a value of almost 8 MiB of control characters, which are six times as long in JSON.
fn write_large_value(server: &Server) {
    let mut stream = connect(OWN, server.resp).unwrap();
    stream.write_all(&encode(&format!("SETRANGE large {} x", 8 * MIB - 1000))).unwrap();
    assert!(reply(&mut stream).unwrap().starts_with(b":"));
}

/// Transactions that read a value of 8 MiB, and whose replies are never read.
pub(crate) fn unread_transactions() -> Attack {
    Attack {
        name: "transactions that are never read",
        reaches: &[r#"thalweg_http_shed_total{bound="reply_bytes"}"#],
        prepare: write_large_value,
        run: |server, from, _, progress| {
            let body = r#"{"then":[{"op":"get","keyspace":"redis","key":"large"}]}"#;
            never_read(server.http, from, 200, &post("/v1/txn", body), progress);
        },
        ..PLAIN
    }
}

/// Subscribers over HTTP that never read, and a publisher of messages of 8 MiB to them.
pub(crate) fn unread_http_subscribers() -> Attack {
    Attack {
        name: "HTTP subscribers that are never read",
        threads: 2,
        reaches: &[r#"thalweg_http_in_use{bound="reply_bytes"}"#],
        run: |server, from, number, progress| {
            if number == 0 {
                return never_read(server.http, from, 200, &get("/v1/subjects/flood", "text/event-stream"), progress);
            }
            let message = publication("/v1/subjects/flood", 8 * MIB - 1000);
            while !progress.is_over() {
                progress.count(call(from, server.http, &message));
            }
        },
        ..PLAIN
    }
}

/// Requests for metrics over HTTP/2, whose replies cannot be sent.
pub(crate) fn metrics_over_http2() -> Attack {
    Attack {
        name: "metrics over HTTP/2 without a window",
        reaches: &[r#"thalweg_http_requests_total{operation="metrics",status="2xx"}"#],
        run: |server, from, _, progress| {
            hold(server.http, from, 200, &http2_streams(&[("GET", "/metrics")], 0), progress);
        },
        ..PLAIN
    }
}

/// Subscribers with the policy `block` that never read, and publishers to them that wait.
pub(crate) fn blocking_subscribers() -> Attack {
    Attack {
        name: "policy=block subscribers that never read",
        threads: 3,
        flags: &["--http-blocking-subjects", "flood.>"],
        reaches: &[REFUSED],
        run: |server, from, number, progress| {
            if number == 0 {
                let request = get("/v1/subjects/flood.a?policy=block", "text/event-stream");
                return never_read(server.http, from, 20, &request, progress);
            }
            let message = publication("/v1/subjects/flood.a?timeout=1", 256 * 1024);
            let mut waiting = Vec::new();
            while !progress.is_over() {
                while waiting.len() < 100 {
                    let Ok(mut stream) = connect(from, server.http) else { break };
                    let _ = stream.write_all(&message);
                    waiting.push(stream);
                }
                // The oldest publisher has waited longest.
                progress.count(reply(&mut waiting.remove(0)));
            }
        },
        ..PLAIN
    }
}

pub(super) fn put(path: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    let mut request =
        format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n");
    request.push_str(body);
    request.into_bytes()
}

/// Request that publishes one message of `len` bytes.
fn publication(path: &str, len: usize) -> Vec<u8> {
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n");
    [head.as_bytes(), &vec![b'm'; len]].concat()
}

/// Sends a request of a Redis client repeatedly over one connection.
pub(super) fn repeat(from: Ipv4Addr, to: std::net::SocketAddr, request: &[u8], progress: &Progress) {
    let mut connected = None;
    while !progress.is_over() {
        let Some(stream) = &mut connected else {
            connected = connect(from, to).ok();
            continue;
        };
        let answer = stream.write_all(request).and_then(|()| reply(stream));
        if answer.as_ref().map_or(true, |answer| answer.is_empty() || is_refusal(answer)) {
            connected = None;
        }
        progress.count(answer);
    }
}
