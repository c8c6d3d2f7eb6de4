//! Attacks by one client, and the service that another client gets in the meantime.
//!
//! Each attack runs twice: from the good client's own address and from another loopback address. The good client sends
//! 100 requests per second on schedule, over HTTP and RESP, and measures response times from when a request was due. It
//! also holds a subscription over each of the two, which must get every message that it publishes. Some attacks aim at
//! a further request, which the good client then sends as well ([`Attack::aim`]).
//!
//! In a normal run the bound on these times only catches a server that stops serving. Measure on an idle machine:
//!
//! ```text
//! THALWEG_ATTACK_SECONDS=10 cargo test --release -p thalweg --test attacks -- --nocapture
//! ```
//!
//! With `THALWEG_ATTACK_SECONDS` the bounds are those that the server promises: no request of the good client refused,
//! p99 below 50 ms, and at most [`MAX_TIMES`] times the p99 of the same client before the attack ([`allowed`]). The
//! test prints both figures in any case.
//!
//! The attacker's threads and the server's work for them take processors and the disk from every program of the
//! machine. So the test also attacks a second server, measures the client of the first one meanwhile, and prints that
//! as *beside*: no server could shield its client from it. A bound that is missed counts only if the p99 is also above
//! [`MAX_BESIDE`] times that one. A thread that only sleeps runs beside the good client, too. The table has its
//! lateness, and a failed bound says how many of the slow requests fell into it.
//!
//! Each attack names what shows that it reaches its bound, and lasts until this has grown: metrics of the server, or
//! counts of the attacker's replies where no metric belongs to the attacker alone.
//!
//! Owns: the good client and its bounds ([`good`], [`subscribers`]), the attacks ([`attacks`]), and the table of
//! results. Does not own: tests of each limit itself, which are in `server/tests`.

#![allow(unreachable_pub, reason = "a test program has no interface")]
#![allow(clippy::print_stdout, reason = "figures are printed")]

mod attacks;
mod good;
#[path = "../node/mod.rs"]
mod node;
#[path = "../redis/mod.rs"]
mod redis;
mod subscribers;

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use attacks::Attack;
use good::{Clients, Service};
use node::Node;
use socket2::{Domain, Protocol, Socket, Type};

/// Address of the good client, and of an attacker behind the same address.
const OWN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
/// Address of an attacker elsewhere.
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Longest 99th percentile that the server promises to a good client, on an idle machine.
const PROMISED_P99: Duration = Duration::from_millis(50);
/// Longest 99th percentile of a good client during an attack, in multiples of that without the attack.
const MAX_TIMES: u32 = 5;
/// Percentile that is allowed in any case. The p99 of ten seconds is the time of ten requests, of which a quarter wait
/// for an fsync and all of them for threads of the client, which the attacker's threads on the same machine delay by a
/// few milliseconds.
const FLOOR_P99: Duration = Duration::from_millis(5);
/// Longest 99th percentile of a good client during an attack, in multiples of that while the same attack is directed at
/// another server of the machine.
const MAX_BESIDE: u32 = 2;
/// Longest response time in a normal run, on a machine that may be busy.
const HANG: Duration = Duration::from_secs(60);

/// A server under attack.
pub(crate) struct Server {
    node: Node,
    http: SocketAddr,
    resp: SocketAddr,
    native: SocketAddr,
    /// Password of Redis clients, if the server has one.
    password: Option<&'static str>,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start(flags: &[&'static str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start_with(&dir.path().join("data"), &[&["--resp", "127.0.0.1:0"], flags].concat());
        let of = |scheme: &str| -> SocketAddr {
            let address = node.line.split_whitespace().find_map(|word| word.strip_prefix(scheme));
            address.expect("the startup line names all addresses").trim_end_matches(',').parse().unwrap()
        };
        let password = flags.iter().position(|flag| *flag == "--resp-password").map(|at| flags[at + 1]);
        Self { http: of("http://"), resp: of("redis://"), native: of("thalweg://"), node, password, _dir: dir }
    }

    /// Returns the value of a metric, or NaN if the server does not answer now.
    fn metric(&self, name: &str) -> f64 {
        let mut text = String::new();
        let answered = connect(OWN, self.http).and_then(|mut stream| {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
            stream.read_to_string(&mut text)
        });
        if answered.is_err() {
            return f64::NAN;
        }
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or(f64::NAN)
    }

    /// Returns these kinds of the process's memory in bytes, as in `/proc/PID/status`, all of the same moment.
    fn memory<const KINDS: usize>(&self, kinds: [&str; KINDS]) -> [u64; KINDS] {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.node.pid())).expect("the process runs");
        kinds.map(|kind| {
            let line = status.lines().find(|line| line.starts_with(kind)).expect("Linux");
            line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
        })
    }
}

/// Largest memory of a server during an attack, without mapped files.
///
/// Samples alone would miss a short peak, because the good client takes only a few of them a second. The kernel misses
/// none (`VmHWM`), but counts the mapped files too, and does not say how much of the peak they were. So this is the
/// kernel's peak without the largest amount of mapped files that a sample had, or the largest sample if that is more.
#[derive(Default)]
pub(crate) struct Peak {
    anonymous: AtomicU64,
    files: AtomicU64,
}

impl Peak {
    /// Makes the kernel forget the server's earlier peak.
    fn begin(server: &Server) -> Self {
        std::fs::write(format!("/proc/{}/clear_refs", server.node.pid()), "5").expect("a process of ours");
        Self::default()
    }

    pub(crate) fn sample(&self, server: &Server) {
        let [anonymous, files, shared] = server.memory(["RssAnon:", "RssFile:", "RssShmem:"]);
        self.anonymous.fetch_max(anonymous, Ordering::Relaxed);
        self.files.fetch_max(files + shared, Ordering::Relaxed);
    }

    /// Returns the peak in bytes.
    fn bytes(&self, server: &Server) -> u64 {
        self.sample(server);
        let [whole] = server.memory(["VmHWM:"]);
        whole.saturating_sub(self.files.load(Ordering::Relaxed)).max(self.anonymous.load(Ordering::Relaxed))
    }
}

/// Sum in bytes of the memory that `serve --explain` states for a server with these flags.
fn explained(flags: &[&str]) -> u64 {
    let text = node::run(node::command().args(["serve", "--explain"]).args(flags), b"").ok();
    let sum = text.lines().find(|line| line.trim_end().ends_with(" sum")).expect("a sum");
    let mib: f64 = sum.split_whitespace().next().and_then(|mib| mib.parse().ok()).expect("MiB");
    (mib * f64::from(1 << 20)) as u64
}

/// Connects from a loopback address.
pub(crate) fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect(&to.into())?;
    socket.set_tcp_nodelay(true)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(HANG))?;
    stream.set_write_timeout(Some(HANG))?;
    Ok(stream)
}

/// State that an attack shares with the test.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) stop: AtomicBool,
    /// Requests of the attacker that the server carried out.
    pub(crate) served: AtomicU64,
    /// Requests and connections of the attacker that the server refused or closed.
    pub(crate) refused: AtomicU64,
    /// Replies to the attacker that only a request which reaches the attack's bound gets.
    pub(crate) proofs: AtomicU64,
}

/// Duration of each attack, and whether the promised bounds hold. The suite's other tests use short attacks.
fn seconds() -> (Duration, bool) {
    match std::env::var("THALWEG_ATTACK_SECONDS") {
        Ok(text) => (Duration::from_secs_f64(text.parse().expect("a number of seconds")), true),
        Err(_) => (Duration::from_millis(300), false),
    }
}

/// Returns the longest p99 that an attack may cause for a client whose p99 was `quiet` without it, and `beside` while
/// the attack was directed at another server.
fn allowed(quiet: Duration, beside: Duration) -> Duration {
    (MAX_TIMES * quiet).max(FLOOR_P99).max(MAX_BESIDE * beside)
}

/// Measures the good client of `server` while the attack is directed at another server of the machine.
fn measure_beside(attack: &Attack, server: &Server, clients: &mut Clients, duration: Duration) -> Service {
    let victim = Server::start(attack.flags);
    (attack.prepare)(&victim);
    // What the preparation wrote reaches the disk before the measurement, which would otherwise wait for it.
    rustix::fs::sync();
    let progress = Progress::default();
    let service = std::thread::scope(|scope| {
        for number in 0..attack.threads {
            let (victim, progress) = (&victim, &progress);
            scope.spawn(move || (attack.run)(victim, OTHER, number, progress));
        }
        let aim = || (attack.aim)(server, OTHER);
        let service = good::measure(server, clients, &aim, duration, &Peak::default());
        progress.stop.store(true, Ordering::Relaxed);
        service
    });
    victim.node.stop();
    service
}

/// One attack at a time: they share the machine.
static ALONE: Mutex<()> = Mutex::new(());

/// Checks the service that the good client got during an attack. `without` is its p99 before the attack, and `beside`
/// that while the attack was directed at another server.
fn check(attack: &Attack, place: &str, service: &Service, (without, beside): (Duration, Duration), is_strict: bool) {
    assert_eq!(service.refused, Vec::<String>::new(), "{}: requests of the good client failed", attack.name);
    assert_eq!(service.lost, Vec::<String>::new(), "{}: subscriptions of the good client missed messages", attack.name);
    let (limit, time) = if is_strict { (PROMISED_P99, service.p99) } else { (HANG, service.max) };
    assert!(time < limit, "{} from {place}: {time:?} is not below {limit:?}", attack.name);
    let limit = allowed(without, beside);
    let (slow, stalled) = service.slower_than(limit);
    assert!(
        !is_strict || service.p99 <= limit,
        "{} from {place}: p99 {:?} is above {limit:?}, with {:?} before the attack, and {beside:?} while it was directed at \
        another server; {slow} requests were slower, and during {stalled} of them a thread that only sleeps stood still as \
        well",
        attack.name,
        service.p99,
        without
    );
}

fn withstand(attack: &Attack) {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let (duration, is_strict) = seconds();
    assert!(!attack.reaches.is_empty() || !attack.holds.is_empty(), "{} could do nothing and pass", attack.name);
    let server = Server::start(attack.flags);
    let bound = explained(attack.flags);
    (attack.prepare)(&server);
    good::prepare(&server);
    let clients = || {
        let mut clients = Clients::subscribed(&server);
        if attack.connects_before {
            clients.connect(&server);
        }
        clients
    };
    // Only the strict bounds depend on the times without the attack.
    let quiet = if is_strict { duration } else { duration / 6 };
    if is_strict {
        rustix::fs::sync();
    }
    let aim = || (attack.aim)(&server, OTHER);
    let without = good::measure(&server, &mut clients(), &aim, quiet, &Peak::default());
    println!("{:<44} {:<9} {without}", attack.name, "without");
    let beside = is_strict.then(|| measure_beside(attack, &server, &mut clients(), duration));
    if let Some(beside) = &beside {
        println!("{:<44} {:<9} {beside}", attack.name, "beside");
    }
    let beside = beside.map_or(Duration::ZERO, |beside| beside.p99);
    for from in [OWN, OTHER] {
        if is_strict {
            rustix::fs::sync();
        }
        let progress = Progress::default();
        let peak = Peak::begin(&server);
        let mut clients = clients();
        let before = attack.reached(&server, &progress);
        let (service, reached): (Service, _) = std::thread::scope(|scope| {
            for number in 0..attack.threads {
                let (server, progress) = (&server, &progress);
                scope.spawn(move || (attack.run)(server, from, number, progress));
            }
            let aim = || (attack.aim)(&server, from);
            let service = good::measure(&server, &mut clients, &aim, duration, &peak);
            let reached = attack.await_bounds(&server, &progress, &before);
            progress.stop.store(true, Ordering::Relaxed);
            (service, reached)
        });
        let place = if from == OWN { "own" } else { "other" };
        let peak = peak.bytes(&server);
        let times = service.p99.as_secs_f64() / without.p99.as_secs_f64();
        let (peak_mib, outcome) = (peak >> 20, Attack::outcome(&progress));
        println!("{:<44} {place:<9} {service}  p99 {times:.1} x without  peak {peak_mib} MiB, {outcome}", attack.name);
        reached.unwrap_or_else(|missing| panic!("{} from {place} does not reach {missing:?}", attack.name));
        check(attack, place, &service, (without.p99, beside), is_strict);
        assert!(peak <= bound + bound / 10, "{}: {} MiB of {}", attack.name, peak >> 20, bound >> 20);
    }
    // The server stops in order, at once.
    server.node.stop();
}

macro_rules! attacks {
    ($module:path: $($name:ident)*) => { $(
        #[test]
        fn $name() {
            use $module as attacks;
            withstand(&attacks::$name());
        }
    )* };
}

attacks! { crate::attacks:
    patterns_behind_a_write
    scans_over_deleted_rows
    as_many_scans_as_possible
    growing_values_in_one_transaction
    announced_bodies_over_http
    announced_frames_over_native
    idle_connections
    unread_scans
    unread_tails
    unread_subscriptions
    wrong_passwords
}

attacks! { crate::attacks::bounds:
    requests_over_http2
    unread_watches
    unread_watches_of_large_values
    snapshots
    subscriptions
    caches
    keyspaces
    unread_replies
    unread_transactions
    unread_http_subscribers
    metrics_over_http2
    blocking_subscribers
}

attacks! { crate::attacks::crowding:
    deleted_prefixes
    scan_cursors
    broad_globs
    full_queues
}

attacks! { crate::attacks::consumers:
    nacks_and_seeks
}

attacks! { crate::attacks::native:
    unread_native_watches
    blocking_native_subscribers
}

attacks! { crate::attacks::slow:
    trickling_bodies
    trickling_replies
    stalled_streams_over_http2
}

attacks! { crate::attacks::passwords:
    parallel_guesses
    unauthenticated_connections
    half_open_sessions
}

#[test]
fn an_attack_may_delay_a_client_to_a_multiple_of_what_it_gets_without_it() {
    assert_eq!(allowed(Duration::from_micros(300), Duration::ZERO), FLOOR_P99);
    assert_eq!(allowed(Duration::from_millis(3), Duration::from_millis(7)), Duration::from_millis(15));
    assert_eq!(allowed(Duration::from_millis(3), Duration::from_millis(8)), Duration::from_millis(16));
}
