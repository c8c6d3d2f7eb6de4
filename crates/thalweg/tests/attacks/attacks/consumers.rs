//! Abuse of consumer groups: records that are nacked again and again, dead letters that cannot be moved, and seeks.

use std::{
    io::{Read, Result, Write},
    net::{Ipv4Addr, TcpStream},
};

use super::{Attack, PLAIN, call, post};
use crate::{OWN, Progress, Server, connect};

/// Group that delivers in order per key, so that each record is a run of its own.
const KEYS: &str = "/v1/streams/abused/groups/keys";
/// Group whose dead letters cannot be moved: no record fits into their stream.
const LETTERS: &str = "/v1/streams/abused/groups/letters";

/// Nacks of many records with keys, fetches of few of them, dead letters one by one, seeks, and descriptions of the
/// groups.
pub(crate) fn nacks_and_seeks() -> Attack {
    Attack {
        name: "nacks, dead letters and seeks of groups",
        threads: 3,
        reaches: &[r#"thalweg_group_redeliveries_total{stream="abused",group="keys"}"#],
        prepare,
        run: |server, from, number, progress| {
            for round in 0_u64.. {
                if progress.is_over() {
                    return;
                }
                let done = Http::connect(server, from).and_then(|mut http| match number {
                    0 => nack_and_fetch(&mut http, round, progress),
                    1 => make_dead_letters(&mut http, progress),
                    _ => describe(&mut http, progress),
                });
                if done.is_err() {
                    progress.count(done.map(|()| Vec::new()));
                }
            }
        },
        ..PLAIN
    }
}

fn prepare(server: &Server) {
    let must = |request: &[u8]| {
        let reply = call(OWN, server.http, request).unwrap();
        assert!(reply.starts_with(b"HTTP/1.1 20"), "{}", String::from_utf8_lossy(&reply));
    };
    for first in (0..100_000).step_by(5_000) {
        let record = |number: usize| format!(r#"{{"key":"k{number}","payload":"p"}}"#);
        let records: Vec<_> = (first..first + 5_000).map(record).collect();
        must(&post("/v1/streams/abused/records", &format!("[{}]", records.join(","))));
    }
    must(&put("/v1/streams/narrow", r#"{"max_record_bytes":1}"#));
    let config = r#""max_pending":100000,"ack_deadline_seconds":3600,"dead_letters":"narrow""#;
    must(&put(KEYS, &format!(r#"{{"order":"per_key",{config}}}"#)));
    must(&put(LETTERS, &format!("{{{config}}}")));
}

fn put(path: &str, body: &str) -> Vec<u8> {
    let len = body.len();
    let head = format!("PUT {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
    format!("{head}content-length: {len}\r\nconnection: close\r\n\r\n{body}").into_bytes()
}

/// Fetches many records, in later rounds all that may be pending, nacks them together, and fetches them one by one.
fn nack_and_fetch(http: &mut Http, round: u64, progress: &Progress) -> Result<()> {
    seek(http, KEYS, progress)?;
    let mut attempts = Vec::new();
    for _ in 0..(10 * (round + 1)).min(100) {
        let Some(attempt) = number_after(&http.fetch(KEYS, 1000, progress)?, "\"attempt\":") else { break };
        attempts.push(format!(r#"{{"attempt":{attempt}}}"#));
        if progress.is_over() {
            return Ok(());
        }
    }
    http.post(&format!("{KEYS}/nack"), &format!(r#"{{"attempts":[{}]}}"#, attempts.join(",")), progress)?;
    for _ in 0..100 {
        http.fetch(KEYS, 1, progress)?;
        if progress.is_over() {
            return Ok(());
        }
    }
    Ok(())
}

/// Makes each of 5,000 records a dead letter with a long reason, each with a nack of its own, and goes back to them.
fn make_dead_letters(http: &mut Http, progress: &Progress) -> Result<()> {
    let reason = "r".repeat(1000);
    seek(http, LETTERS, progress)?;
    for _ in 0..5 {
        let reply = http.fetch(LETTERS, 1000, progress)?;
        let (Some(attempt), Some(first)) = (number_after(&reply, "\"attempt\":"), number_after(&reply, "\"offset\":"))
        else {
            return Ok(());
        };
        let count = reply.matches("\"offset\":").count() as u64;
        let nack = |offset: u64| {
            let attempts = format!(r#"[{{"attempt":{attempt},"ranges":[[{offset},{offset}]]}}]"#);
            let nack = r#""op":"nack","stream":"abused","group":"letters","reject":true"#;
            format!(r#"{{{nack},"attempts":{attempts},"reason":"{reason}"}}"#)
        };
        let nacks: Vec<_> = (first..first + count).map(nack).collect();
        let body = format!(r#"{{"writes":[{}],"durability":"os"}}"#, nacks.join(","));
        http.post("/v1/commit", &body, progress)?;
        if progress.is_over() {
            return Ok(());
        }
    }
    Ok(())
}

/// Requests the descriptions of the groups, which count all pending records.
fn describe(http: &mut Http, progress: &Progress) -> Result<()> {
    for group in [KEYS, LETTERS] {
        http.request(&format!("GET {group} HTTP/1.1\r\nhost: localhost\r\n\r\n"), progress)?;
    }
    Ok(())
}

fn seek(http: &mut Http, group: &str, progress: &Progress) -> Result<()> {
    http.post(&format!("{group}/seek"), r#"{"to":"start"}"#, progress).map(drop)
}

/// Returns the first number that follows `name` in a JSON text.
fn number_after(text: &str, name: &str) -> Option<u64> {
    let rest = &text[text.find(name)? + name.len()..];
    let digits = rest.trim_start().split(|char: char| !char.is_ascii_digit()).next()?;
    digits.parse().ok()
}

/// A connection that is kept over several requests, whose replies are read completely.
struct Http(TcpStream);

impl Http {
    fn connect(server: &Server, from: Ipv4Addr) -> Result<Self> {
        connect(from, server.http).map(Self)
    }

    fn fetch(&mut self, group: &str, max: u32, progress: &Progress) -> Result<String> {
        self.post(&format!("{group}/fetch"), &format!(r#"{{"member":"m","max_records":{max}}}"#), progress)
    }

    fn post(&mut self, path: &str, body: &str, progress: &Progress) -> Result<String> {
        let len = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        self.request(&format!("{head}content-length: {len}\r\n\r\n{body}"), progress)
    }

    /// Sends a request, and returns its reply with its head. Counts it as served or refused.
    fn request(&mut self, request: &str, progress: &Progress) -> Result<String> {
        self.0.write_all(request.as_bytes())?;
        let (mut reply, mut page) = (Vec::new(), vec![0; 64 * 1024]);
        while !is_whole(&reply) {
            match self.0.read(&mut page)? {
                0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                read => reply.extend_from_slice(&page[..read]),
            }
        }
        let text = String::from_utf8_lossy(&reply).into_owned();
        progress.count(Ok(reply));
        Ok(text)
    }
}

/// Returns true if a reply over HTTP/1.1 has arrived completely.
fn is_whole(reply: &[u8]) -> bool {
    let Some(head) = reply.windows(4).position(|part| part == b"\r\n\r\n") else { return false };
    let text = String::from_utf8_lossy(&reply[..head]).to_ascii_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    match length {
        Some(length) => reply.len() >= head + 4 + length,
        None => !text.contains("transfer-encoding: chunked") || reply.ends_with(b"\r\n0\r\n\r\n"),
    }
}
