//! The good client: 100 requests per second on schedule, over HTTP and RESP, with response times from the moment that a
//! request was due. A fifth of them publish messages, which its subscriptions ([`Subscriber`]) must get. Beside it, a
//! thread that only sleeps shows when the machine itself stood still.

use std::{
    fmt,
    io::{Read, Write},
    net::TcpStream,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::{
    HANG, OWN, Peak, Server, connect,
    redis::encode,
    subscribers::{Subscriber, publication},
};

/// Time between two requests.
const PACE: Duration = Duration::from_millis(10);
/// Time between two of the requests at which an attack aims.
const AIM_PACE: Duration = Duration::from_millis(50);
/// Time for which the thread beside the good client sleeps at a time.
const NAP: Duration = Duration::from_millis(1);

/// Service that the good client got.
pub(crate) struct Service {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) max: Duration,
    /// Request that took longest after it was sent, and that time. Requests after it may be late because of it.
    pub(crate) slowest: (String, Duration),
    /// Answers that a good client must not get, at most the first three.
    pub(crate) refused: Vec<String>,
    /// Messages that the subscriptions missed, and their disconnects, at most the first three.
    pub(crate) lost: Vec<String>,
    /// All requests: when each was due, and its response time.
    requests: Vec<(Instant, Duration)>,
    /// Naps of the thread beside the good client: when each ended, and how late.
    naps: Vec<(Instant, Duration)>,
}

impl Service {
    /// Counts the requests with a response time above `limit`, and those of them during which the thread that only
    /// sleeps was late for at least half of that time: then the machine stood still, or its processors were taken.
    pub(crate) fn slower_than(&self, limit: Duration) -> (usize, usize) {
        let slow: Vec<_> = self.requests.iter().filter(|(_, time)| *time > limit).collect();
        let stood_still =
            |(due, time): &&&(Instant, Duration)| 2 * late_within(&self.naps, *due, *due + *time) >= *time;
        (slow.len(), slow.iter().filter(stood_still).count())
    }

    /// Lateness of the naps at a percentile.
    fn late_at(&self, share: f64) -> Duration {
        let mut late: Vec<Duration> = self.naps.iter().map(|(_, late)| *late).collect();
        late.sort_unstable();
        late.get((late.len().saturating_sub(1) as f64 * share) as usize).copied().unwrap_or_default()
    }
}

/// Sum of the parts of late naps between two times.
fn late_within(naps: &[(Instant, Duration)], from: Instant, to: Instant) -> Duration {
    let part = |(ended, late): &(Instant, Duration)| {
        let begun = ended.checked_sub(*late).unwrap_or(*ended);
        to.min(*ended).saturating_duration_since(from.max(begun))
    };
    naps.iter().map(part).sum()
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        let Self { p50, p99, max, slowest, refused, lost, .. } = self;
        write!(f, "p50 {:7.2} ms  p99 {:7.2} ms  max {:7.2} ms", millis(*p50), millis(*p99), millis(*max))?;
        write!(f, " (slowest: {}, {:.1} ms)", slowest.0, millis(slowest.1))?;
        let (late_p99, late_max) = (self.late_at(0.99), self.late_at(1.0));
        write!(f, "  a sleeping thread late by p99 {:.2} ms, max {:.1} ms", millis(late_p99), millis(late_max))?;
        if !refused.is_empty() {
            write!(f, "  REFUSED {refused:?}")?;
        }
        if lost.is_empty() { Ok(()) } else { write!(f, "  LOST {lost:?}") }
    }
}

/// Writes the keys that the good client reads.
pub(crate) fn prepare(server: &Server) {
    let (mut client, published) = (Client::default(), AtomicU32::new(0));
    for key in 0..10 {
        for kind in [0, 2] {
            client.request(server, key * KINDS.len() as u32 + kind, &published).expect("an idle server writes");
        }
    }
}

/// Clients of the good client: each kind of request has one of its own, so that a slow reply delays only requests of
/// its kind.
pub(crate) struct Clients {
    kinds: [Client; KINDS.len()],
    subscribers: Vec<Subscriber>,
    /// Number of messages that the server has accepted.
    published: AtomicU32,
}

impl Clients {
    /// Subscribes. The clients of requests connect with their first request.
    pub(crate) fn subscribed(server: &Server) -> Self {
        Self { kinds: Default::default(), subscribers: Subscriber::all(server), published: AtomicU32::new(0) }
    }

    /// Connects all of them. Otherwise each connects with its first request.
    pub(crate) fn connect(&mut self, server: &Server) {
        for (kind, client) in (0..).zip(&mut self.kinds) {
            client.request(server, kind, &self.published).expect("an idle server answers");
        }
    }
}

/// Request at which an attack aims, beyond those that are measured during all attacks.
pub(crate) type Aim<'a> = &'a (dyn Fn() -> Result<(), String> + Sync);

/// Runs the good client for `duration`, and samples the memory of the server meanwhile.
pub(crate) fn measure(
    server: &Server,
    clients: &mut Clients,
    aim: Aim<'_>,
    duration: Duration,
    peak: &Peak,
) -> Service {
    let begun = Instant::now();
    let is_over = &AtomicBool::new(false);
    let Clients { kinds: clients, subscribers, published } = clients;
    let published = &*published;
    let (kinds, aimed, lost, naps) = thread::scope(|scope| {
        let sleeper = scope.spawn(move || sleep_beside(is_over));
        let aimed = scope.spawn(move || repeat_aim(aim, is_over));
        let threads: Vec<_> = (0..)
            .zip(clients)
            .map(|(kind, client)| {
                scope.spawn(move || measure_kind(server, client, kind, (begun, duration), peak, published))
            })
            .collect();
        let receivers: Vec<_> = subscribers
            .iter_mut()
            .map(|subscriber| scope.spawn(move || subscriber.receive(published, is_over)))
            .collect();
        let kinds = threads.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<_>>();
        is_over.store(true, Ordering::Release);
        let kinds: Vec<Kind> = kinds.into_iter().map(|kind| kind.expect("the good client ends")).collect();
        let lost = receivers.into_iter().flat_map(|receiver| receiver.join().expect("the subscriber ends"));
        let lost: Vec<String> = lost.take(3).collect();
        (kinds, aimed.join().expect("the aimed request ends"), lost, sleeper.join().expect("the sleeper ends"))
    });
    let requests: Vec<(Instant, Duration)> = kinds.iter().flat_map(|kind| kind.requests.iter().copied()).collect();
    let mut times: Vec<Duration> = requests.iter().map(|(_, time)| *time).collect();
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    let (p50, p99, max) = (at(0.5), at(0.99), at(1.0));
    let slowest = kinds.iter().map(|kind| kind.slowest.clone()).max_by_key(|slowest| slowest.1).unwrap_or_default();
    let refused = kinds.into_iter().flat_map(|kind| kind.refused).chain(aimed).take(3).collect();
    Service { p50, p99, max, slowest, refused, lost, requests, naps }
}

/// Sends the request at which an attack aims until `is_over`, at least once. Returns the errors.
fn repeat_aim(aim: Aim<'_>, is_over: &AtomicBool) -> Vec<String> {
    let mut refused = Vec::new();
    loop {
        if let Err(error) = aim() {
            refused.push(format!("aimed request: {error}"));
        }
        if is_over.load(Ordering::Relaxed) {
            return refused;
        }
        thread::sleep(AIM_PACE);
    }
}

/// Naps until `is_over`. Returns when each nap ended, and how late.
fn sleep_beside(is_over: &AtomicBool) -> Vec<(Instant, Duration)> {
    let mut naps = Vec::new();
    let mut begun = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        thread::sleep(NAP);
        let ended = Instant::now();
        naps.push((ended, (ended - begun).saturating_sub(NAP)));
        begun = ended;
    }
    naps
}

/// Kinds of requests, in turns.
const KINDS: [&str; 5] = ["PUT", "GET", "set", "get", "publish"];

/// Service that requests of one kind got.
#[derive(Default)]
struct Kind {
    /// When each request was due, and its response time.
    requests: Vec<(Instant, Duration)>,
    slowest: (String, Duration),
    refused: Vec<String>,
}

fn measure_kind(
    server: &Server,
    client: &mut Client,
    kind: u32,
    (begun, duration): (Instant, Duration),
    peak: &Peak,
    published: &AtomicU32,
) -> Kind {
    let mut found = Kind::default();
    for number in (kind..).step_by(KINDS.len()) {
        let due = PACE * number;
        // A server that hangs is not asked for ever.
        if due >= duration || begun.elapsed() >= duration + HANG {
            break;
        }
        if let Some(early) = due.checked_sub(begun.elapsed()) {
            thread::sleep(early);
        }
        let sent = Instant::now();
        let answered = client.request(server, number, published);
        if sent.elapsed() > found.slowest.1 {
            found.slowest = (format!("{} {number}", KINDS[kind as usize]), sent.elapsed());
        }
        if let Err(error) = answered {
            // The next request connects again, as a client would.
            *client = Client::default();
            found.refused.push(format!("request {number}: {error}"));
        }
        found.requests.push((begun + due, begun.elapsed().saturating_sub(due)));
        if number.is_multiple_of(12) {
            peak.sample(server);
        }
    }
    found
}

/// Connections of the good client, made with its first request.
#[derive(Default)]
struct Client {
    http: Option<TcpStream>,
    resp: Option<TcpStream>,
}

impl Client {
    /// Sends the request of this number and checks its reply. Writes and reads of both protocols, and publications,
    /// take turns. `published` counts the latter.
    fn request(&mut self, server: &Server, number: u32, published: &AtomicU32) -> Result<(), String> {
        let kinds = KINDS.len() as u32;
        let key = number / kinds % 10;
        match number % kinds {
            0 => self.http(
                server,
                &format!("PUT /v1/kv/good/k{key} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\nvalue"),
                "HTTP/1.1 20",
            ),
            1 => self.http(
                server,
                &format!("GET /v1/kv/good/k{key} HTTP/1.1\r\nhost: localhost\r\n\r\n"),
                "HTTP/1.1 200",
            ),
            2 => self.resp(server, &format!("SET good{key} value"), "+OK"),
            3 => self.resp(server, &format!("GET good{key}"), "$5"),
            _ => {
                let message = published.load(Ordering::Relaxed);
                self.resp(server, &publication(message), ":")?;
                published.store(message + 1, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    fn http(&mut self, server: &Server, request: &str, expected: &str) -> Result<(), String> {
        let stream = opened(&mut self.http, server.http)?;
        let reply = exchange(stream, request.as_bytes(), |reply| {
            let text = String::from_utf8_lossy(reply).to_ascii_lowercase();
            let Some(head) = text.find("\r\n\r\n") else { return false };
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            reply.len() >= head + 4 + length.unwrap_or(0)
        })?;
        expect(&reply, expected)
    }

    fn resp(&mut self, server: &Server, command: &str, expected: &str) -> Result<(), String> {
        let is_new = self.resp.is_none();
        let stream = opened(&mut self.resp, server.resp)?;
        if let Some(password) = server.password.filter(|_| is_new) {
            call(stream, &format!("AUTH {password}"), "+OK")?;
        }
        call(stream, command, expected)
    }
}

pub(crate) fn call(stream: &mut TcpStream, command: &str, expected: &str) -> Result<(), String> {
    let lines = if expected.starts_with('$') { 2 } else { 1 };
    let reply = exchange(stream, &encode(command), |reply| {
        reply.starts_with(b"-") && reply.ends_with(b"\r\n")
            || reply.windows(2).filter(|pair| *pair == b"\r\n").count() >= lines
    })?;
    expect(&reply, expected)
}

fn opened(stream: &mut Option<TcpStream>, to: std::net::SocketAddr) -> Result<&mut TcpStream, String> {
    if stream.is_none() {
        *stream = Some(connect(OWN, to).map_err(|error| format!("connect: {error}"))?);
    }
    Ok(stream.as_mut().expect("just connected"))
}

pub(crate) fn exchange(
    stream: &mut TcpStream,
    request: &[u8],
    is_whole: impl Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, String> {
    stream.write_all(request).map_err(|error| format!("write: {error}"))?;
    let (mut reply, mut page) = (Vec::new(), [0; 4096]);
    while !is_whole(&reply) {
        match stream.read(&mut page) {
            Ok(0) => return Err(format!("closed after {:?}", String::from_utf8_lossy(&reply))),
            Ok(read) => reply.extend_from_slice(&page[..read]),
            Err(error) => return Err(format!("no reply within {HANG:?}: {error}")),
        }
    }
    Ok(reply)
}

pub(crate) fn expect(reply: &[u8], expected: &str) -> Result<(), String> {
    let text = String::from_utf8_lossy(reply);
    if text.starts_with(expected) { Ok(()) } else { Err(text.lines().next().unwrap_or_default().to_owned()) }
}

#[test]
fn a_slow_request_is_the_machines_if_a_sleeping_thread_was_late_as_well() {
    let begun = Instant::now();
    let at = |millis| begun + Duration::from_millis(millis);
    let millis = Duration::from_millis;
    let service = Service {
        p50: Duration::ZERO,
        p99: Duration::ZERO,
        max: Duration::ZERO,
        slowest: Default::default(),
        refused: Vec::new(),
        lost: Vec::new(),
        requests: vec![(at(0), millis(1)), (at(100), millis(30)), (at(200), millis(30)), (at(300), millis(30))],
        // Late from 105 to 125, from 220 to 240, and from 299 to 300.
        naps: vec![(at(50), millis(0)), (at(125), millis(20)), (at(240), millis(20)), (at(300), millis(1))],
    };
    assert_eq!(service.slower_than(millis(5)), (3, 1));
    assert_eq!(service.slower_than(millis(30)), (0, 0));
    assert_eq!(late_within(&service.naps, at(200), at(230)), millis(10));
    assert_eq!((service.late_at(1.0), service.late_at(0.0)), (millis(20), millis(0)));
}
