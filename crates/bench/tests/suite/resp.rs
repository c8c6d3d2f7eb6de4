//! The RESP suite against redis-server, which is skipped where that is missing, and against a server that lies.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
};

use thalweg_bench::{
    BenchError, Quiet, Report,
    report::{Cell, Verdict},
    resp::{self, RespOptions},
};
use thalweg_redis::wire::reply_parser::whole;

use crate::{
    common::{self, options},
    skip::skip,
};

fn run(arguments: &str) -> Result<Report, BenchError> {
    let quick = "--duration 150ms --warmup 30ms --rounds 2 --keys 300 --give-up 5s";
    resp::run(&options::<RespOptions>(&format!("{arguments} {quick}")), &mut Quiet)
}

/// Returns true if a program is there; prints why a test is skipped. `THALWEG_REQUIRE_REDIS=1` makes its absence a
/// failure.
fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    let is_there = command.status().is_ok_and(|status| status.success());
    if !is_there {
        assert!(std::env::var_os("THALWEG_REQUIRE_REDIS").is_none(), "{program} is required and not installed");
        skip(std::thread::current().name().unwrap_or("a comparison"), &format!("{program} is not installed"));
    }
    is_there
}

/// Rows of the table whose title begins so.
fn rows<'a>(report: &'a Report, title: &str) -> &'a [Vec<Cell>] {
    &report.tables.iter().find(|table| table.title.starts_with(title)).unwrap_or_else(|| panic!("{title}")).rows
}

fn text(cell: &Cell) -> &str {
    match cell {
        Cell::Text(text) => text,
        other => panic!("{other:?} is no text"),
    }
}

/// The verdict of a row of the figures, which is its last column.
fn verdict(row: &[Cell]) -> &str {
    text(row.last().unwrap())
}

fn all_good(report: &Report) {
    assert_eq!(report.verdict(), Verdict::Met, "{}", report.to_text());
    for row in rows(report, "figures") {
        assert!(matches!(row[4], Cell::Number(rate) if rate > 100.0), "{row:?}");
        assert!(["good", "lower bound: generator saturated"].contains(&verdict(row)), "{row:?}");
    }
}

#[test]
fn every_operation_is_answered_rightly_by_redis() {
    if !is_installed("redis-server") {
        return;
    }
    let mix = "ping:1,get:5,set:5,incr:2,hget:2,hset:2,mget:1,mset:1,xadd:3";
    for more in ["-c 5 -P 1", "-c 3 -P 16 --resp3"] {
        all_good(&run(&format!("--server redis-none --mix {mix} {more}")).unwrap());
    }
    // A busy machine may answer a schedule late, but it answers each request, and rightly.
    let paced = "-c 4 -P 4 --rate 2000 --arrivals poisson --max-lag 1s";
    let report = run(&format!("--server redis-none --mix {mix} {paced}")).unwrap();
    let validity = verdict(&rows(&report, "figures")[0]);
    assert!(matches!(validity, "good" | "overloaded"), "{}", report.to_text());
    let is_complete = report.checks.iter().all(|check| {
        check.verdict == Verdict::Met || check.measured.ends_with("requests/s answered, 0 left unanswered")
    });
    assert!(is_complete, "{}", report.to_text());
}

#[test]
fn servers_take_turns_and_say_what_they_promise() {
    if !is_installed("redis-server") {
        return;
    }
    let report = run("--server redis-none,redis-always@2 --mix get:1,set:1 -c 8 -P 4 --distribution zipf").unwrap();
    all_good(&report);
    let promises: Vec<&str> = rows(&report, "figures").iter().map(|row| text(&row[3])).collect();
    assert_eq!(promises, ["none: appendonly no, save ''", "appendonly yes, appendfsync always"]);
    assert_eq!(text(&rows(&report, "figures")[1][2]), "redis-always db 2");
    assert!(matches!(rows(&report, "ratios")[0][4], Cell::Number(ratio) if ratio > 0.0));
}

#[test]
fn deliveries_are_counted_whoever_publishes() {
    if !is_installed("redis-server") {
        return;
    }
    for more in ["", "--resp3"] {
        all_good(&run(&format!("--server redis-none --subscribers 3 -P 16 -d 128 {more}")).unwrap());
    }
    if is_installed("redis-benchmark") {
        let other = "--server redis-none --subscribers 3 -P 16 -d 128 --generator redis-benchmark";
        all_good(&run(other).unwrap());
    }
}

#[test]
fn redis_benchmark_is_a_generator() {
    if !is_installed("redis-server") || !is_installed("redis-benchmark") {
        return;
    }
    for mix in ["ping", "get", "set", "incr", "hget", "hset", "mget", "mset", "xadd"] {
        let line = format!("--server redis-none --generator own,redis-benchmark --mix {mix} -c 5 -P 4 -d 3");
        let report = run(&line).unwrap();
        all_good(&report);
        let generators: Vec<&str> = rows(&report, "figures").iter().map(|row| text(&row[1])).collect();
        assert_eq!(generators, ["own", "redis-benchmark"], "{mix}");
    }
}

#[test]
fn the_knee_is_searched_for() {
    if !is_installed("redis-server") {
        return;
    }
    let line = "--server redis-none --mix set -c 4 -P 4 --search p50<1s --rate 500 --max-rate 1000 --max-lag 1s";
    let highest = "1000/s, limited by the highest rate allowed (--max-rate)";
    let reached_highest = || {
        let report = run(line).unwrap();
        report.checks[0].measured == highest && report.verdict() == Verdict::Met
    };
    // A busy machine can miss the pace of one short search.
    assert!((0..5).any(|_| reached_highest()), "no search of five reached the highest rate");
}

/// A server that answers each request with the same bytes, but PING and INFO as they should be.
fn liar(reply: &'static [u8]) -> SocketAddr {
    common::listen(move |stream| lie(stream, reply))
}

fn lie(mut stream: TcpStream, reply: &[u8]) {
    let (mut bytes, mut block) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut block) {
        bytes.extend_from_slice(&block[..count]);
        // A request looks like a reply that is an array.
        while let Some(len) = whole(&bytes).unwrap() {
            let request = String::from_utf8_lossy(&bytes[..len]).into_owned();
            let known: [(&str, &[u8]); 3] =
                [("PING", b"+PONG\r\n"), ("INFO", b"$6\r\nnobody\r\n"), ("CONFIG", b"-ERR no\r\n")];
            let answer = known.iter().find(|(name, _)| request.contains(name)).map_or(reply, |(_, answer)| answer);
            if stream.write_all(answer).is_err() {
                return;
            }
            bytes.drain(..len);
        }
    }
}

#[test]
fn a_wrong_reply_ends_the_run_or_voids_its_figures() {
    for (reply, said) in [
        (&b"$3\r\nbad\r\n"[..], "may not answer"),
        (b"-ERR out of order\r\n", "ERR out of order"),
        (b"HTTP/1.1 400\r\n\r\n", "a reply cannot begin with"),
    ] {
        let error = run(&format!("--server {} --mix set -c 2 -P 3", liar(reply))).unwrap_err();
        assert!(matches!(&error, BenchError::WrongData { message, .. } if message.contains(said)), "{error}");
    }
    let report = run(&format!("--server {} --mix set -c 2 -P 3 --keep-going", liar(b"-ERR no\r\n"))).unwrap();
    assert_eq!(report.verdict(), Verdict::Missed);
    assert!(report.checks[0].measured.contains("wrong replies; first: SET of key"), "{:?}", report.checks);
    assert_eq!(text(&rows(&report, "figures")[0][3]), "unknown: it does not say");
}

#[test]
fn more_replies_than_requests_are_noticed() {
    let error = run(&format!("--server {} --mix set -c 1", liar(b"+OK\r\n+OK\r\n"))).unwrap_err();
    assert!(error.to_string().contains("without a request"), "{error}");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    for line in ["--server redis-none --generator redis-benchmark --rate 5", "--connections 0", "--subscribers 2 -d 3"]
    {
        assert!(matches!(run(line), Err(BenchError::Option { .. })), "{line}");
    }
}
