//! An HTTP server whose response times are known: it answers each request at the moment that a model says.
//!
//! Owns: the model, which is a service time, one server or one for each request, and stalls at fixed times; and a
//! thread that reads requests, and replies when their service ends. The thread computes each end from the model and not
//! from the moment at which it woke up, so its own delays do not add up. It sleeps until shortly before the next end,
//! and then polls without sleeping.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use thalweg_load::{Clock, Event, Poller};

/// Number of requests that are served at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Servers {
    /// Requests are served one after the other, in the order of their arrival.
    One,
    /// No request waits for another one.
    OnePerRequest,
}

/// Response times of a server.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub service: Duration,
    pub servers: Servers,
    /// Time from the start of one stall to the start of the next.
    pub stall_every: Duration,
    /// Length of each stall, in which no service makes progress; zero for none.
    pub stall: Duration,
}

impl Model {
    /// Returns the time at which a service that begins at `begin` ends, in nanoseconds.
    fn end(&self, begin: u64) -> u64 {
        let (every, stall) = (nanos(self.stall_every), nanos(self.stall));
        let (mut at, mut work) = (begin, nanos(self.service));
        if stall == 0 {
            return at + work;
        }
        loop {
            let cycle = at / every;
            at = at.max(cycle * every + stall);
            let next = (cycle + 1) * every;
            if at + work <= next {
                return at + work;
            }
            work -= next - at;
            at = next;
        }
    }

    /// Returns the response time that the share `tail` of the requests exceeds, for constant arrivals at `rate`
    /// requests per second.
    ///
    /// One server: a request that is due at `u` after the start of a stall waits for the rest of the stall and for the
    /// requests before it, which arrived at `rate` and each take `service`: the wait falls by `1 - load` per second of
    /// `u`. A server per request: the wait falls by one second per second, and requests in service when the stall
    /// begins wait for all of it.
    pub fn response_time(&self, rate: f64, tail: f64) -> Duration {
        let [service, stall, every] = [self.service, self.stall, self.stall_every].map(|time| time.as_secs_f64());
        let due = tail * every;
        let wait = match self.servers {
            Servers::One => stall - due * (1.0 - rate * service),
            Servers::OnePerRequest => stall - (due - service),
        };
        Duration::from_secs_f64(service + wait.clamp(0.0, stall))
    }
}

fn nanos(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// Time before the next end from which on the thread polls without sleeping, in nanoseconds.
const SPIN: u64 = 80_000;
/// Longest wait before the thread checks whether it must stop, in nanoseconds.
const LOOK: u64 = 20_000_000;
const LISTENER: u64 = u64::MAX;
const REPLY: &[u8] = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n";

/// A running server, which stops when it is dropped.
pub struct Synthetic {
    pub address: SocketAddr,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Synthetic {
    pub fn start(model: Model) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, stopping) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let is_over = Arc::clone(&stopping);
        let thread = std::thread::spawn(move || Worker::new(model, listener).run(&is_over));
        Self { address, stopping, thread: Some(thread) }
    }
}

impl Drop for Synthetic {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the synthetic server panicked");
    }
}

struct Client {
    socket: TcpStream,
    input: Vec<u8>,
}

/// A request that was read and not answered.
struct Waiting {
    arrived: u64,
    client: u64,
}

struct Worker {
    model: Model,
    listener: TcpListener,
    poller: Poller,
    clock: Clock,
    clients: BTreeMap<u64, Client>,
    next_client: u64,
    queue: VecDeque<Waiting>,
    /// End of the service of the first request in the queue.
    first_end: u64,
}

impl Worker {
    fn new(model: Model, listener: TcpListener) -> Self {
        let poller = Poller::new().unwrap();
        poller.add(&listener, LISTENER).unwrap();
        let (clients, queue) = (BTreeMap::new(), VecDeque::new());
        Self { model, listener, poller, clock: Clock::start(), clients, next_client: 0, queue, first_end: 0 }
    }

    fn run(mut self, is_over: &AtomicBool) {
        let mut events: Vec<Event> = Vec::with_capacity(64);
        while !is_over.load(Ordering::Relaxed) {
            let now = self.clock.now();
            let timeout = match self.queue.front() {
                Some(_) => self.first_end.saturating_sub(now + SPIN).min(LOOK),
                None => LOOK,
            };
            self.poller.wait(&mut events, timeout).unwrap();
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    client => self.read(client),
                }
            }
            self.answer();
        }
    }

    fn accept(&mut self) {
        while let Ok((socket, _)) = self.listener.accept() {
            socket.set_nodelay(true).unwrap();
            socket.set_nonblocking(true).unwrap();
            self.poller.add(&socket, self.next_client).unwrap();
            self.clients.insert(self.next_client, Client { socket, input: Vec::new() });
            self.next_client += 1;
        }
    }

    fn read(&mut self, number: u64) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let (mut block, mut is_closed) = ([0; 16 << 10], false);
        loop {
            match client.socket.read(&mut block) {
                Ok(0) => is_closed = true,
                Ok(count) => {
                    client.input.extend_from_slice(&block[..count]);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => is_closed = true,
            }
            break;
        }
        let arrived = self.clock.now();
        for _ in 0..take_requests(&mut client.input) {
            self.queue.push_back(Waiting { arrived, client: number });
            if self.queue.len() == 1 {
                self.first_end = self.model.end(arrived);
            }
        }
        if is_closed {
            self.leave(number, arrived);
        }
    }

    /// Forgets a client that has left, with its requests.
    fn leave(&mut self, number: u64, now: u64) {
        self.clients.remove(&number);
        let was_first = self.queue.front().is_some_and(|first| first.client == number);
        self.queue.retain(|waiting| waiting.client != number);
        if was_first && let Some(first) = self.queue.front() {
            self.first_end = self.model.end(first.arrived.max(now));
        }
    }

    /// Answers the requests whose service has ended.
    fn answer(&mut self) {
        while !self.queue.is_empty() && self.first_end <= self.clock.now() {
            let ended = self.queue.pop_front().unwrap();
            // A reply is short: only a client that does not read can make it incomplete.
            let sent = self.clients.get_mut(&ended.client).map(|client| client.socket.write(REPLY));
            if let Some(next) = self.queue.front() {
                let begin = match self.model.servers {
                    Servers::One => next.arrived.max(self.first_end),
                    Servers::OnePerRequest => next.arrived,
                };
                self.first_end = self.model.end(begin);
            }
            if !matches!(sent, Some(Ok(count)) if count == REPLY.len()) {
                self.leave(ended.client, self.clock.now());
            }
        }
    }
}

/// Removes complete requests from the input, and returns their number.
fn take_requests(input: &mut Vec<u8>) -> usize {
    let (mut at, mut count) = (0, 0);
    while let Some(head) = input[at..].windows(4).position(|bytes| bytes == b"\r\n\r\n") {
        let text = std::str::from_utf8(&input[at..at + head]).unwrap();
        let length = text.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let end = at + head + 4 + length.map_or(0, |length| length.parse::<usize>().unwrap());
        if end > input.len() {
            break;
        }
        (at, count) = (end, count + 1);
    }
    input.drain(..at);
    count
}

#[test]
fn services_end_when_the_model_says() {
    let ms = Duration::from_millis;
    let model = Model { service: ms(3), servers: Servers::One, stall_every: ms(20), stall: ms(10) };
    let end = |begin: u64| model.end(begin * 1_000_000) / 1_000_000;
    assert_eq!([0, 5, 10, 12, 17, 18, 19, 20].map(end), [13, 13, 13, 15, 20, 31, 32, 33]);
    let long = Model { service: ms(25), ..model };
    assert_eq!(long.end(0) / 1_000_000, 55, "10 ms in each of two cycles, 5 ms in the third");
    assert_eq!(Model { stall: ms(0), ..model }.end(7), 3_000_007);
}

#[test]
fn requests_are_cut_at_their_ends() {
    let mut input =
        b"PUT /a HTTP/1.1\r\nContent-Length: 2\r\n\r\nxyGET /b HTTP/1.1\r\n\r\nPUT /c HTTP/1.1\r\nConte".to_vec();
    assert_eq!(take_requests(&mut input), 2);
    assert!(input.starts_with(b"PUT /c"));
    input.extend_from_slice(b"nt-Length: 3\r\n\r\nab");
    assert_eq!(take_requests(&mut input), 0);
    input.push(b'c');
    assert_eq!(take_requests(&mut input), 1);
    assert!(input.is_empty());
}
