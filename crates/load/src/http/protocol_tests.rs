//! Tests of the load generator against small HTTP servers, one of which stalls on purpose.

use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{Outcome, *};
use crate::{
    Arrivals, Pace, Plan, Schedule, Validity,
    data::Values,
    http::Api,
    random::{Distribution, KeyChooser},
};

/// Chooses how a test server treats a request, given the request's number on its connection, from 0. The server first
/// performs the request, and then answers, stalls, or changes the reply.
type Trick = fn(u64) -> Act;

enum Act {
    Answer,
    Stall(Duration),
    Status(u16),
    Corrupt,
    HangUp,
}

/// Starts a test server that runs until the test process ends. It serves the entity API from a map in memory.
fn serve(trick: Trick) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let map: Arc<Mutex<HashMap<String, Vec<u8>>>> = Arc::default();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let map = Arc::clone(&map);
            std::thread::spawn(move || serve_one(&stream, &map, trick));
        }
    });
    address
}

fn serve_one(stream: &TcpStream, map: &Mutex<HashMap<String, Vec<u8>>>, trick: Trick) {
    stream.set_nodelay(true).unwrap();
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    for number in 0.. {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let (is_put, key) = (line.starts_with("PUT"), line.split(' ').nth(1).unwrap().to_owned());
        let mut len = 0;
        while line.trim() != "" {
            line.clear();
            reader.read_line(&mut line).unwrap();
            if let Some(value) = line.strip_prefix("Content-Length: ") {
                len = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body).unwrap();
        let (mut status, mut value) = (if is_put { 201 } else { 200 }, Vec::new());
        if is_put {
            map.lock().unwrap().insert(key, body);
        } else {
            match map.lock().unwrap().get(&key) {
                Some(stored) => value = stored.clone(),
                None => status = 404,
            }
        }
        match trick(number) {
            Act::Answer => {}
            // The test needs a server that stalls.
            Act::Stall(time) => std::thread::sleep(time),
            Act::Status(other) => status = other,
            Act::Corrupt => value.iter_mut().for_each(|byte| *byte ^= 1),
            Act::HangUp => return,
        }
        let mut out = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", value.len()).into_bytes();
        out.extend_from_slice(&value);
        if writer.write_all(&out).is_err() {
            return;
        }
    }
}

fn run(load: &Plan<Http>) -> Outcome {
    crate::run(load).unwrap()
}

/// Repeats a run until its validity is an expected one. If the machine stands still or its host takes the processors,
/// one run may be late or have unusable times. That does not happen in all of several runs.
fn run_until(is_expected: impl Fn(&Validity) -> bool, plan: impl Fn() -> Plan<Http>) -> Outcome {
    let mut seen = Vec::new();
    for _ in 0..15 {
        let outcome = run(&plan());
        if is_expected(&outcome.validity) {
            return outcome;
        }
        assert!(!matches!(outcome.validity, Validity::Errors(_)), "{:?}", outcome.validity);
        seen.push(outcome.validity);
    }
    panic!("{seen:?}");
}

fn is_good(validity: &Validity) -> bool {
    *validity == Validity::Good
}

fn load(address: SocketAddr, pace: Pace, get_percent: u8) -> Plan<Http> {
    let requests = Arc::new(Requests::new(Api::Entity, "test", None, Values::new(20, 1)));
    Plan {
        protocol: Http { address, requests, get_percent, missing: MissingKeyPolicy::Allowed },
        connections: 1,
        workers: 1,
        pipeline: 1,
        pace,
        keys: KeyChooser::new(Distribution::Uniform, 100),
        warmup: Duration::ZERO,
        duration: Duration::from_millis(600),
        window: None,
        give_up: Duration::from_secs(5),
        // Other tests share the machine, so the lateness says nothing. These tests check only the logic.
        max_lag: Duration::from_secs(30),
        seed: 1,
        server: None,
        fsyncs: None,
    }
}

fn open(rate: f64) -> Pace {
    Pace::Open { rate, arrivals: Arrivals::Constant }
}

/// Tests for coordinated omission. One stall of 300 ms happens in a run of 600 ms at 1000 requests/s. About 300 of the
/// 600 requests are due during the stall, so the 90th percentile must show most of it. A generator that waits for each
/// reply before the next request would see one slow request among hundreds.
#[test]
fn one_stall_shows_in_the_percentiles() {
    let stalls = |number: u64| if number == 100 { Act::Stall(Duration::from_millis(300)) } else { Act::Answer };
    let outcome = run_until(is_good, || load(serve(stalls), open(1000.0), 0));
    assert_eq!(outcome.tally.replies, 600);
    let response = &outcome.times;
    assert!(response.percentile(90.0) > Duration::from_millis(150), "{:?}", response.quantiles());
    assert!(response.percentile(60.0) > Duration::from_millis(5), "{:?}", response.quantiles());
    let service = &outcome.tally.own.service;
    assert!(service.percentile(90.0) < response.percentile(90.0) / 2, "{:?}", service.quantiles());
}

#[test]
fn a_schedule_with_few_requests_is_no_overload() {
    let address = serve(|_| Act::Answer);
    let rate = 1000.0;
    let due = |seed| {
        let mut schedule = Schedule::new(Arrivals::Poisson, rate, 0, 0, 1, seed);
        std::iter::from_fn(|| Some(schedule.take())).take_while(|due| *due < 600_000_000).count()
    };
    let seed = (0..1000).find(|seed| due(*seed) < 560).expect("one of many schedules is 7 % below its rate");
    let pace = Pace::Open { rate, arrivals: Arrivals::Poisson };
    let outcome = run_until(is_good, || Plan { seed, ..load(address, pace, 0) });
    assert_eq!(outcome.tally.unanswered, 0, "every request was answered");
}

#[test]
fn a_slow_server_is_overloaded_and_what_it_left_is_counted() {
    let address = serve(|_| Act::Stall(Duration::from_millis(20)));
    let give_up = Duration::from_millis(200);
    let is_overloaded = |validity: &Validity| matches!(validity, Validity::Overloaded(_));
    let outcome = run_until(is_overloaded, || Plan { give_up, ..load(address, open(1000.0), 0) });
    assert!(outcome.tally.unanswered > 100, "{}", outcome.tally.unanswered);
    assert!(outcome.times.max() >= Duration::from_millis(200));
}

#[test]
fn a_generator_that_cannot_keep_up_voids_the_run() {
    let address = serve(|_| Act::Answer);
    let is_saturated = |validity: &Validity| matches!(validity, Validity::Saturated(_));
    run_until(is_saturated, || Plan { max_lag: Duration::ZERO, ..load(address, open(2000.0), 0) });
}

#[test]
fn each_key_is_put_once_and_read_back_byte_for_byte() {
    let address = serve(|_| Act::Answer);
    let mut put = load(address, Pace::Each { keys: 100 }, 0);
    (put.connections, put.workers, put.pipeline) = (3, 2, 4);
    let outcome = run(&put);
    assert_eq!((&outcome.validity, outcome.tally.replies), (&Validity::Good, 100));
    assert_eq!(outcome.tally.own.statuses, [(201, 100)].into());
    let outcome = run_until(is_good, || {
        let mut get = load(address, open(2000.0), 100);
        (get.connections, get.workers, get.protocol.missing) = (4, 2, MissingKeyPolicy::Lost);
        get
    });
    assert_eq!(outcome.tally.right, 1200);
}

#[test]
fn wrong_bytes_bad_statuses_and_lost_keys_fail_the_verdict() {
    let address = serve(|number| if number == 150 { Act::Corrupt } else { Act::Answer });
    assert_eq!(run(&load(address, Pace::Each { keys: 300 }, 0)).validity, Validity::Good);
    let corrupt = run(&load(address, Pace::Each { keys: 300 }, 100));
    assert_eq!(corrupt.tally.own.wrong_bytes, 1);
    assert!(matches!(corrupt.validity, Validity::Errors(_)));

    let status = run(&load(serve(|number| Act::Status(if number == 5 { 503 } else { 200 })), Pace::Closed, 0));
    assert_eq!(status.tally.own.statuses[&503], 1);
    assert!(matches!(status.validity, Validity::Errors(_)));

    let mut lost = load(serve(|_| Act::Answer), Pace::Each { keys: 10 }, 100);
    lost.protocol.missing = MissingKeyPolicy::Lost;
    let lost = run(&lost);
    assert!(matches!(&lost.validity, Validity::Errors(why) if why.contains("10 stored keys not found")));
    // Refused gets are no fast successes: neither they nor their times count as right.
    assert_eq!((lost.tally.right, lost.times.count(), lost.tally.own.lost_keys), (0, 0, 10));
    assert!(lost.tally.error_share() > 0.99, "{}", lost.tally.error_share());
}

#[test]
fn a_wrong_reply_of_the_warm_up_fails_the_run() {
    let address = serve(|number| Act::Status(if number == 5 { 503 } else { 201 }));
    // The sixth request is due after 50 ms, which is in the warm-up.
    let mut load = load(address, open(100.0), 0);
    (load.warmup, load.duration) = (Duration::from_millis(400), Duration::from_millis(200));
    let outcome = run(&load);
    assert!(matches!(outcome.validity, Validity::Errors(_)), "{:?}", outcome.validity);
    assert_eq!((outcome.tally.own.bad_status, outcome.tally.wrong, outcome.tally.replies), (1, 1, 20));
}

#[test]
fn a_lost_connection_is_an_error_and_the_run_goes_on() {
    let address = serve(|number| if number == 50 { Act::HangUp } else { Act::Answer });
    let outcome = run(&load(address, open(500.0), 0));
    assert!(outcome.tally.lost >= 1 && outcome.tally.replies > 250, "{:?}", outcome.tally.first_problem);
    assert!(matches!(outcome.validity, Validity::Errors(_)));
}

#[test]
fn nobody_listens() {
    // The system gives port 1 to no other test.
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    assert!(matches!(run(&load(address, open(500.0), 0)).validity, Validity::Errors(_)));
}
