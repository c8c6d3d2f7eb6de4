//! Attacks by clients that hardly move: bodies and replies that trickle, and HTTP/2 streams without progress.
//!
//! The servers have timeouts of a second, so that short attacks reach them.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use socket2::SockRef;

use super::{Attack, MIB, PLAIN, REFUSED, fill, get, hold, reply};
use crate::{OWN, Progress, connect, redis::encode};

const IMPATIENT: &[&str] = &["--header-timeout", "1s", "--body-timeout", "1s", "--write-timeout", "1s"];
/// Time between two bytes of a client that trickles.
const TRICKLE: Duration = Duration::from_secs(1);

/// Bodies over HTTP/1 and arguments over RESP that arrive a byte a second, behind a part that the server has accepted.
pub(crate) fn trickling_bodies() -> Attack {
    Attack {
        name: "bodies of a byte a second",
        threads: 2,
        flags: IMPATIENT,
        reaches: &[REFUSED],
        run: |server, from, number, progress| {
            let part = vec![b'b'; 100 * 1024];
            if number == 0 {
                let head = b"PUT /v1/kv/bad/k HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n";
                trickle(server.http, from, &[head, &part[..]].concat(), progress);
            } else {
                let head = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n";
                trickle(server.resp, from, &[head, &part[..]].concat(), progress);
            }
        },
        ..PLAIN
    }
}

/// Keeps 200 connections that have sent `first`, and sends a byte more over each every [`TRICKLE`].
fn trickle(to: SocketAddr, from: Ipv4Addr, first: &[u8], progress: &Progress) {
    each_tick(from, to, first, progress, |stream| match stream.write(b"b") {
        // The server's reply comes before its end.
        Ok(_) => matches!(stream.read(&mut [0; 4096]), Err(error) if error.kind() == std::io::ErrorKind::WouldBlock),
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    });
}

/// Values of 8 MiB that are read a byte a second.
pub(crate) fn trickling_replies() -> Attack {
    Attack {
        name: "replies read a byte a second",
        threads: 2,
        flags: IMPATIENT,
        reaches: &[r#"thalweg_http_shed_total{bound="reply_bytes"}"#],
        loses: &[r#"thalweg_http_in_use{bound="reply_bytes"}"#],
        prepare: |server| {
            let mut stream = connect(OWN, server.resp).unwrap();
            stream.write_all(&encode(&format!("SETRANGE large {} x", 8 * MIB - 1000))).unwrap();
            assert!(reply(&mut stream).unwrap().starts_with(b":"));
        },
        run: |server, from, number, progress| {
            let (to, request) = match number {
                0 => (server.http, get("/v1/kv/redis/large", "*/*")),
                _ => (server.resp, encode("GET large").repeat(4)),
            };
            // Megabytes that the client has not read hide the end of the connection.
            each_tick(from, to, &request, progress, |stream| !matches!(stream.read(&mut [0; 1]), Ok(0)));
        },
        ..PLAIN
    }
}

/// Keeps 200 connections with small buffers, sends `first` over each, and calls `moves` for each every [`TRICKLE`]. It
/// returns false once the server has closed the connection or refused the request.
fn each_tick(
    from: Ipv4Addr,
    to: SocketAddr,
    first: &[u8],
    progress: &Progress,
    moves: impl Fn(&mut TcpStream) -> bool,
) {
    let mut streams: Vec<(TcpStream, Instant)> = Vec::new();
    while !progress.is_over() {
        while streams.len() < 200 && !progress.is_over() {
            let Ok(mut stream) = connect(from, to) else { break };
            let _ = SockRef::from(&stream).set_recv_buffer_size(4096);
            if stream.write_all(first).is_err() {
                progress.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            progress.served.fetch_add(1, Ordering::Relaxed);
            let _ = stream.set_nonblocking(true);
            streams.push((stream, Instant::now()));
        }
        std::thread::sleep(Duration::from_millis(20));
        streams.retain_mut(|(stream, moved_at)| {
            if moved_at.elapsed() < TRICKLE {
                return true;
            }
            *moved_at = Instant::now();
            let is_open = moves(stream);
            if !is_open {
                progress.refused.fetch_add(1, Ordering::Relaxed);
            }
            is_open
        });
    }
}

/// HTTP/2 connections with a window of no bytes: each stream has a large reply that cannot be sent.
pub(crate) fn stalled_streams_over_http2() -> Attack {
    Attack {
        name: "HTTP/2 streams without a window",
        flags: IMPATIENT,
        reaches: &[REFUSED, r#"thalweg_http_shed_total{bound="scans"}"#],
        prepare: |server| fill(server, 20_000),
        run: |server, from, _, progress| {
            let targets =
                [("GET", "/v1/kv/redis"), ("GET", "/v1/streams/none/records?from=0"), ("GET", "/v1/watch/redis")];
            hold(server.http, from, 40, &http2_streams(&targets, 0), progress);
        },
        ..PLAIN
    }
}

/// Bytes of an HTTP/2 connection that opens as many streams as it may, each with one of the requests in turn. Streams
/// have windows of `window` bytes; requests other than GET have bodies that never begin.
pub(super) fn http2_streams(requests: &[(&str, &str)], window: u32) -> Vec<u8> {
    const SETTINGS: u8 = 4;
    const HEADERS: u8 = 1;
    const INITIAL_WINDOW_SIZE: [u8; 2] = [0, 4];
    const END_STREAM: u8 = 1;
    const END_HEADERS: u8 = 4;
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let len = (payload.len() as u32).to_be_bytes();
        [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    // A field with an indexed name, as in RFC 7541, 6.2.2, without Huffman code.
    let field = |index: u8, value: &str| [&[index, u8::try_from(value.len()).unwrap()], value.as_bytes()].concat();
    let (authority, method, path, scheme_http) = (1, 2, 4, 0x86);
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[&INITIAL_WINDOW_SIZE[..], &window.to_be_bytes()].concat()));
    for (at, (verb, target)) in (0..128).zip(requests.iter().cycle()) {
        let fields =
            [field(method, verb), vec![scheme_http], field(path, target), field(authority, "localhost")].concat();
        let end = if *verb == "GET" { END_STREAM } else { 0 };
        bytes.extend(frame(HEADERS, END_HEADERS | end, 2 * at + 1, &fields));
    }
    bytes
}
