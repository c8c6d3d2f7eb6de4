//! Tests of operations that consist of several requests. The test server returns each line after a while, and sends a
//! ping after each operation.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::*;
use crate::{
    Address, Arrivals, Calls, Decoded, Pace, PendingReply, Validity,
    random::{Distribution, KeyChooser},
};

/// Time that the test server needs for each line.
const WORK: Duration = Duration::from_millis(2);

/// A protocol whose operations have two requests: a line `first`, and after its reply a line `second`. If `BURST` is
/// true, requests share write calls.
struct Twice<const BURST: bool> {
    place: TestServer,
    /// Time that encoding a request takes, to simulate a slow generator.
    encoding: Duration,
}

enum TestServer {
    Server(SocketAddr),
    /// Calls in this process. The vector counts the requests of each connection. Calls of the first connection take a
    /// while on another thread, and those of the others return their replies at once.
    InProcess(Mutex<Vec<Arc<AtomicU64>>>),
}

/// Performs requests in this process: the reply is the line that was sent.
#[derive(Debug)]
struct Echo {
    is_slow: bool,
    requests: Arc<AtomicU64>,
}

impl Calls for Echo {
    fn call(&mut self, request: &[u8], reply: &mut Vec<u8>) -> Option<PendingReply> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if !self.is_slow {
            reply.extend_from_slice(request);
            return None;
        }
        let (tell, told) = tokio::sync::oneshot::channel();
        let request = request.to_vec();
        std::thread::spawn(move || {
            std::thread::sleep(WORK);
            let _ = tell.send(request);
        });
        Some(Box::pin(async { told.await.unwrap() }))
    }
}

impl<const BURST: bool> Protocol for Twice<BURST> {
    type Request = &'static str;
    type Reply = ();
    type Fault = String;
    type State = ();
    type Counts = ();

    const BATCHING: Batching = if BURST { Batching::Burst } else { Batching::PerRequest };
    const ON_LOSS: OnLoss = OnLoss::End;

    fn connect(&self) -> Result<Connection, BenchError> {
        match &self.place {
            TestServer::Server(address) => {
                let connection = Connection::open(&Address::Tcp(*address)).unwrap();
                connection.socket().set_nonblocking(true).unwrap();
                Ok(connection)
            }
            TestServer::InProcess(all) => {
                let (mut all, requests) = (all.lock().unwrap(), Arc::default());
                all.push(Arc::clone(&requests));
                Ok(Connection::in_process(Box::new(Echo { is_slow: all.len() == 1, requests })))
            }
        }
    }

    fn kinds(&self) -> usize {
        1
    }

    fn choose(&self, _: u64, _: &mut Generator) -> &'static str {
        "first\n"
    }

    fn aside(&self, bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        if bytes.starts_with(b"ping\n") {
            out.extend_from_slice(b"pong\n");
            return Some(5);
        }
        if b"ping\n".starts_with(bytes) { None } else { Some(0) }
    }

    fn kind(_: &'static str) -> usize {
        0
    }

    fn encode(&self, request: &'static str, out: &mut Vec<u8>) {
        std::thread::sleep(self.encoding);
        out.extend_from_slice(request.as_bytes());
    }

    fn decode(
        &self,
        request: &'static str,
        (): &mut (),
        bytes: &[u8],
    ) -> Result<Option<Decoded<()>>, BadReply<(), String>> {
        if bytes.starts_with(request.as_bytes()) {
            return Ok(Some(Decoded { bytes: request.len(), reply: (), closes: false }));
        }
        if request.as_bytes().starts_with(bytes) {
            return Ok(None);
        }
        Err(BadReply { fault: format!("{:?}", String::from_utf8_lossy(bytes)), decoded: None })
    }

    fn follow_up(&self, request: &'static str, (): ()) -> Option<&'static str> {
        (request == "first\n").then_some("second\n")
    }

    fn count(&self, (): &mut (), (): (), _: Option<u64>) {}

    fn errors(&self, tally: &Tally<()>) -> Option<String> {
        (tally.wrong + tally.lost > 0).then(|| "errors".to_owned())
    }
}

/// Starts a server that returns each line. It counts the first lines, the second lines, and the pongs.
fn serve() -> (SocketAddr, Arc<[AtomicU64; 3]>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let lines: Arc<[AtomicU64; 3]> = Arc::default();
    let counts = Arc::clone(&lines);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let counts = Arc::clone(&counts);
            std::thread::spawn(move || {
                let (mut reader, mut writer, mut line) = (BufReader::new(&stream), &stream, String::new());
                while reader.read_line(&mut line).is_ok_and(|count| count > 0) {
                    let kind = ["first\n", "second\n", "pong\n"].into_iter().position(|known| known == line).unwrap();
                    counts[kind].fetch_add(1, Ordering::Relaxed);
                    if kind == 2 {
                        line.clear();
                        continue;
                    }
                    // The test needs a server that takes this time for each reply.
                    std::thread::sleep(WORK);
                    if kind == 1 {
                        line.push_str("pi");
                    }
                    if writer.write_all(line.as_bytes()).is_err() || (kind == 1 && writer.write_all(b"ng\n").is_err()) {
                        return;
                    }
                    line.clear();
                }
            });
        }
    });
    (address, lines)
}

fn plan<const BURST: bool>(place: TestServer, pace: Pace, pipeline: usize) -> Plan<Twice<BURST>> {
    Plan {
        protocol: Twice { place, encoding: Duration::ZERO },
        connections: 2,
        workers: 1,
        pipeline,
        pace,
        keys: KeyChooser::new(Distribution::Uniform, 1),
        warmup: Duration::ZERO,
        duration: Duration::from_millis(100),
        window: None,
        give_up: Duration::from_secs(30),
        // Other tests share the machine, so this test may stand still for a second.
        max_lag: Duration::from_secs(30),
        seed: 1,
        server: None,
        fsyncs: None,
    }
}

fn assert_each_operation_counts_once<const BURST: bool>(pace: Pace, pipeline: usize) {
    // If the machine stands still or its host takes the processors, a short run may be void or empty. That does not
    // happen in all of several runs.
    let mut seen = Vec::new();
    let good = (0..15).find_map(|_| {
        let (address, lines) = serve();
        let outcome = crate::run(&plan::<BURST>(TestServer::Server(address), pace, pipeline)).unwrap();
        seen.push((outcome.validity.clone(), outcome.tally.first_problem.clone()));
        (outcome.validity == Validity::Good).then_some((outcome, lines))
    });
    let (outcome, lines) = good.unwrap_or_else(|| panic!("{seen:?}"));
    let [first, second] = [0, 1].map(|line| lines[line].load(Ordering::Relaxed));
    assert_eq!(first, second, "each operation was completed");
    let pongs = lines[2].load(Ordering::Relaxed);
    assert!((1..=second).contains(&pongs), "{pongs} pongs: those after the end of the run are left");
    let tally = &outcome.tally;
    assert_eq!((tally.replies, tally.all_right, tally.unanswered), (first, first, 0));
    // The server returns each line unchanged, so both counts are equal.
    assert_eq!([tally.received_bytes, tally.sent_bytes], [first * "first\nsecond\n".len() as u64; 2]);
    let spectrum = outcome.spectrum("spectrum");
    assert_eq!((spectrum.columns[3], spectrum.rows.len()), ("1/(1-percentile)", 13));
    assert!(outcome.sent_mib() > 0.0 && outcome.received_mib() > 0.0);
    assert!(outcome.times.percentile(0.0) >= WORK * 2, "{:?}", outcome.times.quantiles());
}

#[test]
fn an_operation_of_two_requests_counts_once_with_the_time_of_both() {
    for pipeline in [1, 3] {
        assert_each_operation_counts_once::<false>(Pace::Each { keys: 20 }, pipeline);
        assert_each_operation_counts_once::<true>(Pace::Each { keys: 20 }, pipeline);
        assert_each_operation_counts_once::<false>(Pace::Closed, pipeline);
        assert_each_operation_counts_once::<true>(Pace::Closed, pipeline);
        let open = Pace::Open { rate: 50.0, arrivals: Arrivals::Constant };
        assert_each_operation_counts_once::<false>(open, pipeline);
    }
}

#[test]
fn calls_in_this_process_are_answered_at_once_or_by_another_thread() {
    let open = Pace::Open { rate: 100.0, arrivals: Arrivals::Constant };
    // On a busy machine all operations of a short run can be late, so the test makes several attempts.
    let mut tried = Vec::new();
    for (pace, is_open) in [(Pace::Closed, false), (open, true)] {
        let is_right = (0..30).any(|_| {
            let (right, text) = calls_in_this_process(pace, is_open);
            tried.push(text);
            right
        });
        assert!(is_right, "{tried:?}");
    }
}

/// Checks the counts of a run with calls in this process. Returns true if the run is valid and its operations took the
/// expected times. The text describes the run.
fn calls_in_this_process(pace: Pace, is_open: bool) -> (bool, String) {
    let plan = plan::<false>(TestServer::InProcess(Mutex::default()), pace, 1);
    let outcome = crate::run(&plan).unwrap();
    if outcome.validity != Validity::Good {
        return (false, format!("{:?}, {:?}", outcome.validity, outcome.tally.first_problem));
    }
    let TestServer::InProcess(requests) = &plan.protocol.place else { unreachable!() };
    let requests = requests.lock().unwrap();
    let [slow, fast] = [0, 1].map(|number| requests[number].load(Ordering::Relaxed));
    assert_eq!((outcome.tally.all_right, outcome.tally.unanswered), ((slow + fast) / 2, 0));
    // An operation of the slow connection takes 4 ms. Operations of the other connection, which never waits, must not
    // delay it.
    let are_all_made = slow >= 4 && (is_open || fast > 2 * slow);
    let times = [1.0, 100.0].map(|percentile| outcome.times.percentile(percentile));
    let is_right = are_all_made && times[1] >= WORK * 2 && times[0] < WORK;
    (is_right, format!("{slow} and {fast} requests, p1 and p100 {times:?}"))
}

/// Runs 100 requests, one due each millisecond, on 50 connections. The generator takes 2 ms for each request. Returns
/// the 20th percentile of the generator's lateness.
fn lag_of_a_slow_generator<const BURST: bool>() -> Duration {
    let (address, _) = serve();
    let open = Pace::Open { rate: 1000.0, arrivals: Arrivals::Constant };
    let mut plan = plan::<BURST>(TestServer::Server(address), open, 1);
    (plan.connections, plan.protocol.encoding) = (50, Duration::from_millis(2));
    let outcome = crate::run(&plan).unwrap();
    assert_eq!(outcome.tally.lag.count(), 50, "the others are due while no connection is free");
    outcome.tally.lag.percentile(20.0)
}

#[test]
fn the_lag_of_each_request_is_that_of_its_own_sending() {
    // Request number k is due at k ms and sent at 2 k ms or later.
    let lag = lag_of_a_slow_generator::<false>();
    assert!(lag > Duration::from_millis(8), "{lag:?}");
    // All 50 requests are sent together after 100 ms. The last one was due after 50 ms.
    let lag = lag_of_a_slow_generator::<true>();
    assert!(lag > Duration::from_millis(45), "{lag:?}");
}
