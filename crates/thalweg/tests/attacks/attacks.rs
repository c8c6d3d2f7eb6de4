//! The attacks: each fills one bound of the server, or makes one command as expensive as it can.
//!
//! Owns: expensive commands, announced bytes, and the parts that attacks share. [`bounds`] fills the bounds of the
//! admission, [`crowding`] what clients share without such a bound, [`consumers`] abuses consumer groups, [`slow`] has
//! clients that hardly move, [`passwords`] those that have not authenticated, and [`native`] those of the native
//! protocol.

pub(crate) mod bounds;
pub(crate) mod consumers;
pub(crate) mod crowding;
pub(crate) mod native;
pub(crate) mod passwords;
pub(crate) mod slow;

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use crate::{HANG, Progress, Server, connect, good::exchange, redis::encode};

const MIB: usize = 1 << 20;

/// An attack by one client.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// Threads of the attacker.
    pub(crate) threads: usize,
    /// Flags of the server.
    pub(crate) flags: &'static [&'static str],
    /// True if the good client connects before the attack, and keeps its connections.
    pub(crate) connects_before: bool,
    /// Metrics of the server that must grow during the attack, or counts of the attacker ([`REFUSED`], [`SERVED`],
    /// [`PROOFS`]): they show that the attack reaches its bound.
    pub(crate) reaches: &'static [&'static str],
    /// Metrics of the server that must have at least this value at a time during the attack. They show that the
    /// attacker holds as much as it wants to hold.
    pub(crate) holds: &'static [(&'static str, f64)],
    /// Metrics of the server that must then become 0 while the attack continues: the server takes back what the
    /// attacker holds, also if the attacker cannot notice it.
    pub(crate) loses: &'static [&'static str],
    /// Writes the data that the attack needs.
    pub(crate) prepare: fn(&Server),
    /// Sends the good client's requests that the attack, from the given address, aims at, and checks the replies. The
    /// requests that are measured during all attacks are not among them.
    pub(crate) aim: fn(&Server, Ipv4Addr) -> Result<(), String>,
    /// Attacks from an address until [`Progress::stop`].
    pub(crate) run: fn(&Server, Ipv4Addr, usize, &Progress),
}

/// Stands for the attacker's refused requests and closed connections in [`Attack::reaches`].
pub(crate) const REFUSED: &str = "refused";
/// Stands for the attacker's requests that the server carried out in [`Attack::reaches`].
pub(crate) const SERVED: &str = "served";
/// Stands for the replies in [`Attack::reaches`] that only a request which reaches the attack's bound gets
/// ([`Progress::proofs`]).
pub(crate) const PROOFS: &str = "replies that show that the bound is reached";

/// Attack of one thread that needs nothing.
const PLAIN: Attack = Attack {
    name: "",
    threads: 1,
    flags: &[],
    connects_before: false,
    reaches: &[],
    holds: &[],
    loses: &[],
    prepare: |_| {},
    aim: |_, _| Ok(()),
    run: |_, _, _, _| {},
};

impl Attack {
    /// Describes how the attacker fared.
    pub(crate) fn outcome(progress: &Progress) -> String {
        let of = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        format!("attacker: {} served, {} refused", of(&progress.served), of(&progress.refused))
    }

    /// Returns the values of the metrics that the attack must raise.
    pub(crate) fn reached(&self, server: &Server, progress: &Progress) -> Vec<f64> {
        let value = |name: &&str| match *name {
            REFUSED => progress.refused.load(Ordering::Relaxed) as f64,
            SERVED => progress.served.load(Ordering::Relaxed) as f64,
            PROOFS => progress.proofs.load(Ordering::Relaxed) as f64,
            name => server.metric(name),
        };
        self.reaches.iter().map(value).collect()
    }

    /// Waits until all metrics that the attack must raise are above their values `before` the attack, those of what it
    /// holds have their values, and all metrics that it must lower are 0. Returns the metrics that do not get there.
    pub(crate) fn await_bounds(
        &self,
        server: &Server,
        progress: &Progress,
        before: &[f64],
    ) -> Result<(), Vec<&'static str>> {
        let begun = Instant::now();
        loop {
            let reached = self.reached(server, progress);
            let missing = self
                .reaches
                .iter()
                .zip(before.iter().zip(reached))
                .filter(|(_, (before, now))| *now <= before.max(0.0) || now.is_nan());
            let missing = missing.map(|(name, _)| *name);
            let free = self.holds.iter().filter(|(name, least)| {
                let value = server.metric(name);
                value.is_nan() || value < *least
            });
            let held = self.loses.iter().copied().filter(|name| server.metric(name) != 0.0);
            let missing: Vec<_> = missing.chain(free.map(|(name, _)| *name)).chain(held).collect();
            if missing.is_empty() {
                return Ok(());
            }
            if begun.elapsed() >= HANG {
                return Err(missing);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Progress {
    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Counts a reply. Refusals have an error status or begin with `-`.
    fn count(&self, reply: std::io::Result<Vec<u8>>) {
        let is_served = reply.is_ok_and(|reply| !reply.is_empty() && !is_refusal(&reply));
        (if is_served { &self.served } else { &self.refused }).fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a reply like [`count`](Self::count). If `is_proof` returns true for it, it shows that the attack reaches
    /// its bound.
    fn count_proof(&self, reply: std::io::Result<Vec<u8>>, is_proof: impl FnOnce(&[u8]) -> bool) {
        if reply.as_ref().is_ok_and(|reply| is_proof(reply)) {
            self.proofs.fetch_add(1, Ordering::Relaxed);
        }
        self.count(reply);
    }
}

/// Returns true if a reply rejects a transaction over HTTP because it is too large or takes too many steps. A malformed
/// request gets another status.
fn is_too_large(reply: &[u8]) -> bool {
    reply.starts_with(b"HTTP/1.1 413")
}

/// Reads at least one byte of a reply, at most until the server has sent nothing for 300 ms after it.
fn reply(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let (mut reply, mut page) = (Vec::new(), vec![0; 64 * 1024]);
    let read = stream.read(&mut page)?;
    reply.extend_from_slice(&page[..read]);
    stream.set_nonblocking(true)?;
    while let Ok(read @ 1..) = stream.read(&mut page) {
        reply.truncate(64);
        reply.extend_from_slice(&page[..read]);
    }
    stream.set_nonblocking(false)?;
    Ok(reply)
}

/// Sends a request over a connection of its own and returns the beginning or end of the reply.
pub(crate) fn call(from: Ipv4Addr, to: SocketAddr, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = connect(from, to)?;
    stream.write_all(request)?;
    reply(&mut stream)
}

fn post(path: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len}\r\nconnection: close\r\n\r\n{body}")
        .into_bytes()
}

/// Writes this many keys of database 0 over RESP.
fn fill(server: &Server, count: usize) {
    let mut stream = connect(crate::OWN, server.resp).unwrap();
    for first in (0..count).step_by(1000) {
        let pairs: Vec<String> = (first..first + 1000).map(|key| format!("{}{key} v", "a".repeat(200))).collect();
        stream.write_all(&encode(&format!("MSET {}", pairs.join(" ")))).unwrap();
        assert_eq!(reply(&mut stream).unwrap(), b"+OK\r\n");
    }
}

/// `KEYS` with a pattern of 4 KB that backtracks, in the log because a write precedes it.
pub(crate) fn patterns_behind_a_write() -> Attack {
    Attack {
        name: "KEYS with a 4 KB pattern behind a write",
        reaches: &[REFUSED],
        threads: 2,
        prepare: |server| fill(server, 20_000),
        run: |server, from, _, progress| {
            let pattern = "a*".repeat(2000) + "b";
            let burst: Vec<u8> = ["MULTI", "SET x y", &format!("KEYS {pattern}"), "EXEC"]
                .iter()
                .flat_map(|command| encode(command))
                .collect();
            while !progress.is_over() {
                progress.count(call(from, server.resp, &burst).map(|reply| {
                    let is_refused = reply.windows(2).any(|pair| pair == b"\n-");
                    if is_refused { b"-".to_vec() } else { reply }
                }));
            }
        },
        ..PLAIN
    }
}

/// A transaction of 20,000 scans with a limit of one pair over rows that were deleted. The server parses it, and
/// rejects it because of its number of operations.
pub(crate) fn scans_over_deleted_rows() -> Attack {
    Attack {
        name: "20,000 scans over deleted rows in one /v1/txn",
        reaches: &[PROOFS],
        threads: 2,
        prepare: delete_20_000_keys,
        run: |server, from, _, progress| scan_behind_a_put(server, from, progress, 20_000, 1),
        ..PLAIN
    }
}

/// The most scans that a transaction may have, each over deleted rows and a hundred other pairs. They take more steps
/// than a command may take, so the state machine rejects the transaction after it has used all of them.
pub(crate) fn as_many_scans_as_possible() -> Attack {
    Attack {
        name: "1,000 scans over 100 pairs in one /v1/txn",
        reaches: &[PROOFS],
        threads: 2,
        prepare: |server| {
            delete_20_000_keys(server);
            let mut stream = connect(crate::OWN, server.resp).unwrap();
            for key in 0..100 {
                stream.write_all(&encode(&format!("SET z{key} v"))).unwrap();
                assert_eq!(reply(&mut stream).unwrap(), b"+OK\r\n");
            }
        },
        run: |server, from, _, progress| scan_behind_a_put(server, from, progress, 1_000, 100),
        ..PLAIN
    }
}

/// Writes 20,000 keys and deletes them.
fn delete_20_000_keys(server: &Server) {
    fill(server, 20_000);
    let mut stream = connect(crate::OWN, server.resp).unwrap();
    for first in (0..20_000).step_by(1000) {
        let keys: Vec<String> = (first..first + 1000).map(|key| format!("{}{key}", "a".repeat(200))).collect();
        stream.write_all(&encode(&format!("DEL {}", keys.join(" ")))).unwrap();
        assert_eq!(reply(&mut stream).unwrap(), b":1000\r\n");
    }
}

/// Sends transactions of a put and `count` scans of up to `limit` pairs, until the attack is over. Each is rejected.
fn scan_behind_a_put(server: &Server, from: Ipv4Addr, progress: &Progress, count: usize, limit: u32) {
    let scans = vec![format!(r#"{{"op":"scan","keyspace":"redis","limit":{limit}}}"#); count].join(",");
    let body = format!(r#"{{"then":[{{"op":"put","keyspace":"redis","key":"zz","value":"v"}},{scans}]}}"#);
    let request = post("/v1/txn", &body);
    while !progress.is_over() {
        progress.count_proof(call(from, server.http, &request), is_too_large);
    }
}

/// `APPEND` and `SETRANGE` to a value of nearly 8 MiB, hundreds of times in one transaction.
pub(crate) fn growing_values_in_one_transaction() -> Attack {
    Attack {
        name: "SETRANGE/APPEND chains on an 8 MiB value",
        reaches: &[PROOFS, r#"thalweg_resp_commands_total{command="exec"}"#],
        threads: 2,
        run: |server, from, number, progress| {
            const PAIRS: usize = 500;
            let mut burst = encode("MULTI");
            burst.extend(encode(&format!("SETRANGE big{number} {} x", 8 * MIB - 2000)));
            for _ in 0..PAIRS {
                burst.extend(encode(&format!("APPEND big{number} y")));
                burst.extend(encode(&format!("SETRANGE big{number} 5 z")));
            }
            burst.extend(encode("EXEC"));
            let has = |reply: &[u8], part: &[u8]| reply.windows(part.len()).any(|window| window == part);
            // A line for `MULTI`, `SETRANGE`, each other command, and `EXEC`, and the first of its replies.
            let lines = 2 * PAIRS + 4;
            let is_whole = |reply: &[u8]| {
                reply.ends_with(b"\r\n")
                    && (has(reply, b"\n-") || reply.iter().filter(|byte| **byte == b'\n').count() >= lines)
            };
            while !progress.is_over() {
                let answer = connect(from, server.resp)
                    .map_err(|error| error.to_string())
                    .and_then(|mut stream| exchange(&mut stream, &burst, is_whole));
                let answer = answer.map_err(std::io::Error::other);
                let is_proof = answer.as_ref().is_ok_and(|reply| has(reply, b"\n-ERR too expensive"));
                let is_refused = answer.as_ref().is_ok_and(|reply| has(reply, b"\n-"));
                let answer = answer.map(|reply| if is_refused { b"-".to_vec() } else { reply });
                progress.count_proof(answer, |_| is_proof);
            }
        },
        ..PLAIN
    }
}

/// Heads of `PUT` that announce a body of 16 MiB, the most that `max_body_bytes` permits, and send none of it. The
/// server must wait for all of these bodies.
pub(crate) fn announced_bodies_over_http() -> Attack {
    Attack {
        name: "PUT heads that announce 16 MiB",
        holds: &[(r#"thalweg_http_in_use{bound="requests"}"#, 60.0)],
        run: |server, from, _, progress| {
            let announced = 16 * MIB;
            let head = format!("PUT /v1/kv/bad/k HTTP/1.1\r\nhost: localhost\r\ncontent-length: {announced}\r\n\r\n");
            hold(server.http, from, 64, head.as_bytes(), progress);
        },
        ..PLAIN
    }
}

/// Handshakes on the native port, each followed by the header of a frame of 16 MiB and nothing else. The server must
/// wait for all of these frames.
pub(crate) fn announced_frames_over_native() -> Attack {
    Attack {
        name: "native headers that announce 16 MiB",
        holds: &[("thalweg_native_connections", 60.0)],
        run: |server, from, _, progress| {
            // As in docs/formats/wire.md: magic, versions, largest frame, keepalive, name, no features.
            let hello = [&b"TLWG"[..], &[1, 0, 1, 0], &(1_u32 << 20).to_le_bytes(), &[0; 4], &[1, 0], b"a", &[0; 4]];
            // A frame begins with len u32, kind u16, fields u16, id u32. The second one is a write.
            let head = |len: u32, kind: u16, id: u8| {
                [&len.to_le_bytes()[..], &kind.to_le_bytes(), &[0, 0, id, 0, 0, 0]].concat()
            };
            let bytes = [head(23, 1, 0), hello.concat(), head(16 << 20, 0x0100, 1)].concat();
            hold(server.native, from, 64, &bytes, progress);
        },
        ..PLAIN
    }
}

/// Opens connections, sends each the same bytes, and keeps them open until the end; opens a closed one again.
fn hold(to: SocketAddr, from: Ipv4Addr, count: usize, bytes: &[u8], progress: &Progress) {
    let mut streams: Vec<TcpStream> = Vec::new();
    while !progress.is_over() {
        while streams.len() < count {
            match connect(from, to) {
                Ok(mut stream) => {
                    progress.served.fetch_add(1, Ordering::Relaxed);
                    let _ = stream.write_all(bytes);
                    let _ = stream.set_nonblocking(true);
                    streams.push(stream);
                }
                Err(_) => break,
            }
        }
        // The attack holds connections. Opening them as fast as possible would be another attack.
        std::thread::sleep(Duration::from_millis(20));
        // A server that closes a connection, or answers with an error, refuses it.
        let mut page = [0; 4096];
        streams.retain_mut(|stream| {
            let is_open = match stream.read(&mut page) {
                Ok(0) => false,
                Ok(read) => !page[..read].starts_with(b"HTTP/1.1 "),
                Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
            };
            if !is_open {
                progress.refused.fetch_add(1, Ordering::Relaxed);
            }
            is_open
        });
    }
}

/// Connections that send nothing, on all ports, more than the server accepts.
pub(crate) fn idle_connections() -> Attack {
    Attack {
        name: "idle connections on all ports",
        reaches: &[REFUSED],
        threads: 3,
        run: |server, from, number, progress| {
            hold([server.http, server.resp, server.native][number], from, 6000, b"", progress);
        },
        ..PLAIN
    }
}

/// Sends a request over each of `count` connections and never reads the replies. A refused request is sent again after
/// a while. A reply that has begun and stays unread counts as a proof.
fn never_read(to: SocketAddr, from: Ipv4Addr, count: usize, request: &[u8], progress: &Progress) {
    const AGAIN: usize = 10;
    let mut streams: Vec<(TcpStream, bool)> = Vec::new();
    let mut left = count;
    while !progress.is_over() {
        while left > 0 && !progress.is_over() {
            left -= 1;
            if let Ok(mut stream) = connect(from, to) {
                let _ = stream.write_all(request);
                let _ = stream.set_nonblocking(true);
                streams.push((stream, false));
            }
        }
        std::thread::sleep(Duration::from_millis(20));
        streams.retain_mut(|(stream, is_served)| {
            if *is_served {
                return true;
            }
            // The bytes stay unread.
            let mut head = [0; 12];
            match stream.peek(&mut head) {
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => true,
                Ok(1..) if !is_refusal(&head) => {
                    progress.served.fetch_add(1, Ordering::Relaxed);
                    progress.proofs.fetch_add(1, Ordering::Relaxed);
                    *is_served = true;
                    true
                }
                _ => {
                    progress.refused.fetch_add(1, Ordering::Relaxed);
                    false
                }
            }
        });
        left = (count - streams.len()).min(AGAIN);
    }
}

fn get(target: &str, accept: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n\r\n").into_bytes()
}

/// Returns true if a reply is an error.
fn is_refusal(reply: &[u8]) -> bool {
    [&b"-"[..], b"HTTP/1.1 4", b"HTTP/1.1 5"].iter().any(|refusal| reply.starts_with(refusal))
}

/// Scans of a large keyspace whose replies are never read.
pub(crate) fn unread_scans() -> Attack {
    Attack {
        name: "scans that are never read",
        reaches: &[r#"thalweg_http_shed_total{bound="scans"}"#],
        prepare: |server| fill(server, 100_000),
        run: |server, from, _, progress| {
            never_read(server.http, from, 500, &get("/v1/kv/redis", "application/x-ndjson"), progress);
        },
        ..PLAIN
    }
}

/// Tails of a stream that are never read.
pub(crate) fn unread_tails() -> Attack {
    Attack {
        name: "tails that are never read",
        reaches: &[r#"thalweg_http_shed_total{bound="tails"}"#],
        prepare: |server| {
            let record = format!(r#"[{{"payload":"{}"}}]"#, "x".repeat(MIB));
            let reply = call(crate::OWN, server.http, &post("/v1/streams/long/records", &record)).unwrap();
            assert!(reply.starts_with(b"HTTP/1.1 20"), "{}", String::from_utf8_lossy(&reply));
        },
        run: |server, from, _, progress| {
            let request = get("/v1/streams/long/records?from=0", "text/event-stream");
            never_read(server.http, from, 2000, &request, progress);
        },
        ..PLAIN
    }
}

/// Subscribers of a Redis channel that hardly read, and a publisher of long messages to them. Their queues overflow.
pub(crate) fn unread_subscriptions() -> Attack {
    Attack {
        name: "subscribers that are never read",
        reaches: &["thalweg_subject_disconnected_links_total"],
        threads: 2,
        run: |server, from, number, progress| {
            if number == 0 {
                return hold(server.resp, from, 200, &encode("SUBSCRIBE flood"), progress);
            }
            let message = encode(&format!("PUBLISH flood {}", "m".repeat(64 * 1024)));
            let mut stream = connect(from, server.resp).unwrap();
            while !progress.is_over() {
                if stream.write_all(&message).is_err() || reply(&mut stream).is_err() {
                    progress.refused.fetch_add(1, Ordering::Relaxed);
                    match connect(from, server.resp) {
                        Ok(next) => stream = next,
                        Err(_) => std::thread::sleep(Duration::from_millis(10)),
                    }
                }
            }
        },
        ..PLAIN
    }
}

/// Passwords that are tried one after the other. The server has none, so each is refused; [`passwords`] has servers
/// with one.
pub(crate) fn wrong_passwords() -> Attack {
    Attack {
        name: "passwords tried without pause",
        reaches: &[REFUSED],
        threads: 2,
        run: |server, from, _, progress| {
            let attempts = encode("AUTH wrong").repeat(100);
            while !progress.is_over() {
                progress.count(call(from, server.resp, &attempts));
            }
        },
        ..PLAIN
    }
}
