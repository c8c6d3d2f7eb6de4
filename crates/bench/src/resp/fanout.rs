//! Measures PUBLISH to many subscribers. Every delivery is counted and compared, and its order is checked.
//!
//! Owns: the publisher and the subscribers of a round, on one thread, and the judgement of each delivery. Does not own:
//! the servers (`server`), redis-benchmark as the publisher (`external`), or the tables (`figures`).
//!
//! One thread publishes in a closed loop and reads for all subscribers, or only reads while redis-benchmark publishes.
//! A message of this process has a number and a content that follows from the number ([`Payloads`]). So lost, doubled,
//! reordered and changed messages are noticed. The messages of redis-benchmark are all equal, so only their bytes and
//! their number are checked.

use std::{io::ErrorKind, thread::JoinHandle};

use thalweg_redis::wire::reply_parser::{Token, token};

use super::{
    client::{Answer, Client, Greeting},
    external::Figures,
    options::RespOptions,
    protocol::Outcome,
};
use crate::{
    BenchError,
    latency::{Latencies, nanos},
    load::{Clock, Connection, Event, Pace, Poller, Tally, Validity, unusable_clocks},
    native::{Depth, Head, Payloads},
    usage::Meter,
};

/// Parameters of a run with subscribers.
#[derive(Clone, Debug)]
pub(super) struct FanOut<'a> {
    /// Server address, password and database with which each connection begins.
    pub greeting: Greeting,
    /// Number of subscribers to the channel.
    pub subscribers: usize,
    /// Options of the suite: durations, seed, message size, and number of messages in progress.
    pub options: &'a RespOptions,
    /// Id of the server's process, if it is known.
    pub process: Option<u32>,
}

/// Name of the pub/sub channel of all messages.
pub(super) const CHANNEL: &str = "bench.fan-out";

/// The program that publishes the messages.
enum Publisher {
    /// The thread that runs the benchmark publishes the messages, on the contained connection.
    Own(Connection),
    /// redis-benchmark publishes. All messages have this payload. The number of messages is known after `thread`, which
    /// runs redis-benchmark, has ended.
    Other { payload: Vec<u8>, thread: Option<JoinHandle<Result<(Figures, u64), BenchError>>>, figures: Option<Figures> },
}

/// Performs a run in which this thread publishes the messages. The rate of the result counts deliveries per second.
/// `all_right` of the result counts all deliveries, including those of the warm-up.
pub(super) fn run(plan: &FanOut<'_>) -> Result<Outcome, BenchError> {
    let publisher = Client::open(&plan.greeting)?.into_connection()?;
    FanOutRun::open(plan, Publisher::Own(publisher))?.play()
}

/// Returns the payload of messages that redis-benchmark publishes.
pub(super) fn external_payload(options: &RespOptions) -> String {
    "x".repeat(options.value_bytes())
}

/// Performs a run in which redis-benchmark publishes the messages. `publish` runs redis-benchmark, and returns its
/// figures and the number of published messages. The result has no figures of redis-benchmark if `publish` did not
/// finish.
pub(super) fn run_beside(
    plan: &FanOut<'_>,
    publish: impl FnOnce() -> Result<(Figures, u64), BenchError> + Send + 'static,
) -> Result<(Outcome, Option<Figures>), BenchError> {
    let payload = external_payload(plan.options).into_bytes();
    let mut stage = FanOutRun::open(plan, Publisher::Other { payload, thread: None, figures: None })?;
    if let Publisher::Other { thread, .. } = &mut stage.publisher {
        *thread = Some(std::thread::spawn(publish));
    }
    let outcome = stage.play()?;
    match stage.publisher {
        Publisher::Own(_) => Ok((outcome, None)),
        Publisher::Other { figures, .. } => Ok((outcome, figures)),
    }
}

struct FanOutRun<'a> {
    plan: &'a FanOut<'a>,
    payloads: Payloads,
    /// Bytes that precede the payload in each message to a subscriber.
    head: Vec<u8>,
    /// Bytes that precede the payload in each publish request.
    request: Vec<u8>,
    publisher: Publisher,
    subscribers: Vec<Connection>,
    /// Number of messages that each subscriber has received.
    got: Vec<u64>,
    poller: Poller,
    clock: Clock,
    published: u64,
    acked: u64,
    /// Total number of published messages; `None` until it is known.
    total: Option<u64>,
    first: Option<u64>,
    last: u64,
    tally: Tally<()>,
}

/// Event token of the publisher's socket.
const PUBLISHER: u64 = u64::MAX;

impl<'a> FanOutRun<'a> {
    fn open(plan: &'a FanOut<'a>, publisher: Publisher) -> Result<Self, BenchError> {
        let fail = BenchError::target(&plan.greeting.address);
        let poller = Poller::new().map_err(&fail)?;
        if let Publisher::Own(connection) = &publisher {
            poller.add(connection.socket(), PUBLISHER).map_err(&fail)?;
        }
        let mut subscribers = Vec::new();
        for number in 0..plan.subscribers {
            let mut client = Client::open(&plan.greeting)?;
            match client.done(&[b"SUBSCRIBE", CHANNEL.as_bytes()])? {
                Answer::List(parts) if parts.get(2) == Some(&Answer::Integer(1)) => {}
                other => {
                    let subject = plan.greeting.address.to_string();
                    return Err(BenchError::subject(&subject, "setup")(format!("SUBSCRIBE answered {other:?}")));
                }
            }
            let connection = client.into_connection()?;
            poller.add(connection.socket(), number as u64).map_err(&fail)?;
            subscribers.push(connection);
        }
        let kind = if plan.greeting.is_resp3 { '>' } else { '*' };
        let payload_bytes = plan.options.value_bytes();
        let about = format!("${}\r\n{CHANNEL}\r\n${payload_bytes}\r\n", CHANNEL.len());
        Ok(Self {
            plan,
            payloads: Payloads::new(payload_bytes, plan.options.seed, Depth::Full),
            head: format!("{kind}3\r\n$7\r\nmessage\r\n{about}").into_bytes(),
            request: format!("*3\r\n$7\r\nPUBLISH\r\n{about}").into_bytes(),
            publisher,
            got: vec![0; subscribers.len()],
            subscribers,
            poller,
            clock: Clock::start(),
            published: 0,
            acked: 0,
            total: None,
            first: None,
            last: 0,
            tally: Tally::new(1),
        })
    }

    fn play(&mut self) -> Result<Outcome, BenchError> {
        let meter = Meter::begin(self.plan.process);
        self.clock = Clock::start();
        let mut events: Vec<Event> = Vec::with_capacity(64);
        let mut last_news = 0;
        while self.tally.first_problem.is_none() {
            self.publish();
            self.poll_publisher()?;
            if self.total.is_some_and(|total| self.got.iter().all(|got| *got >= total)) {
                break;
            }
            let news = self.wait(&mut events);
            let now = self.clock.now();
            if news {
                last_news = now;
            } else if now - last_news > nanos(self.plan.options.give_up) {
                let problem = format!("nothing came for {:?}: {}", self.plan.options.give_up, self.standing());
                self.tally.problem(|| problem);
            }
        }
        let spent = meter.spent();
        let over = self.total.filter(|total| self.got.iter().any(|got| got != total));
        if over.is_some() {
            let standing = self.standing();
            self.tally.problem(|| standing);
        }
        let seconds = match self.publisher {
            Publisher::Own(_) => self.plan.options.duration.as_secs_f64(),
            Publisher::Other { .. } => (self.last - self.first.unwrap_or(self.last)) as f64 / 1e9,
        };
        let tally = Tally { all_right: self.got.iter().sum(), ..std::mem::take(&mut self.tally) };
        let problem = tally.first_problem.clone().map(Validity::Errors);
        let validity = problem.or_else(|| unusable_clocks(&spent.clocks)).unwrap_or(Validity::Good);
        Ok(Outcome { validity, ..Outcome::new(tally, seconds, spent).paced(Pace::Closed) })
    }

    fn standing(&self) -> String {
        let total = self.total.map_or_else(|| "an unknown number".to_owned(), |total| total.to_string());
        let (least, most) = (self.got.iter().min().unwrap_or(&0), self.got.iter().max().unwrap_or(&0));
        format!("{total} published, {} answered, subscribers got {least} to {most}", self.acked)
    }

    /// Publishes the next messages, if all earlier ones are answered and the time is not over.
    fn publish(&mut self) {
        let Publisher::Own(connection) = &mut self.publisher else { return };
        if self.acked < self.published || self.total.is_some() {
            return;
        }
        let now = self.clock.now();
        if now >= nanos(self.plan.options.warmup + self.plan.options.duration) {
            self.total = Some(self.published);
            return;
        }
        for sequence in self.published..self.published + self.plan.options.pipeline as u64 {
            connection.out().extend_from_slice(&self.request);
            self.payloads.put(Head { sequence, due: now, publisher: 0 }, connection.out());
            connection.out().extend_from_slice(b"\r\n");
        }
        self.published += self.plan.options.pipeline as u64;
        // A burst is far smaller than a socket's buffer, and the buffer is empty.
        match connection.send() {
            Ok(()) if !connection.is_blocked => {}
            Ok(()) => self.tally.problem(|| "the server does not take a burst of messages".to_owned()),
            Err(error) => self.tally.problem(|| format!("publishing: {error}")),
        }
    }

    /// Takes the number of published messages from the thread of redis-benchmark, if that thread has ended.
    fn poll_publisher(&mut self) -> Result<(), BenchError> {
        if let Publisher::Other { thread, figures, .. } = &mut self.publisher
            && thread.as_ref().is_some_and(JoinHandle::is_finished)
            && let Some(thread) = thread.take()
        {
            let (printed, published) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            *figures = Some(printed);
            (self.published, self.acked, self.total) = (published, published, Some(published));
        }
        Ok(())
    }

    fn wait(&mut self, events: &mut Vec<Event>) -> bool {
        if let Err(error) = self.poller.wait(events, 20_000_000) {
            self.tally.problem(|| format!("waiting: {error}"));
        }
        let news = !events.is_empty();
        for event in events.drain(..) {
            let taken = match event.data.u64() {
                PUBLISHER => self.take_acks(),
                number => self.take_messages(number as usize),
            };
            if let Err(problem) = taken {
                self.tally.problem(|| problem);
            }
        }
        news
    }

    fn take_acks(&mut self) -> Result<(), String> {
        let Publisher::Own(connection) = &mut self.publisher else { return Ok(()) };
        receive(connection)?;
        let (mut at, wanted) = (0, self.plan.subscribers as i64);
        while let Some((reply, len)) = token(&connection.input()[at..]).map_err(|error| error.to_string())? {
            match reply {
                Token::Integer(receivers) if receivers == wanted => {}
                Token::Error(message) => return Err(format!("PUBLISH: {}", String::from_utf8_lossy(message))),
                other => return Err(format!("PUBLISH to {wanted} subscribers answered {other:?}")),
            }
            (at, self.acked) = (at + len, self.acked + 1);
        }
        connection.consume(at);
        Ok(())
    }

    fn take_messages(&mut self, number: usize) -> Result<(), String> {
        let connection = &mut self.subscribers[number];
        // One read in each turn is enough. If more bytes wait, epoll reports the connection again, after the other
        // subscribers and the publisher had a turn.
        receive(connection)?;
        let now = self.clock.now();
        let message_bytes = self.head.len() + self.plan.options.value_bytes() + 2;
        let (mut at, mut run) = (0, Run::default());
        let (from, to) = match self.publisher {
            Publisher::Own(_) => {
                (nanos(self.plan.options.warmup), nanos(self.plan.options.warmup + self.plan.options.duration))
            }
            Publisher::Other { .. } => (0, u64::MAX),
        };
        while let Some(message) = connection.input().get(at..at + message_bytes) {
            let payload = message.strip_prefix(&self.head[..]).and_then(|rest| rest.strip_suffix(b"\r\n"));
            let payload = payload.ok_or_else(|| {
                let shown = String::from_utf8_lossy(&message[..message_bytes.min(60)]).into_owned();
                format!("subscriber {number} got something that is not a message of this run: {shown:?}")
            })?;
            let due = match &self.publisher {
                Publisher::Own(_) => match self.payloads.judge(payload) {
                    Some(head) if head.sequence == self.got[number] => head.due,
                    Some(head) => {
                        let (got, wanted) = (head.sequence, self.got[number]);
                        return Err(format!("subscriber {number} got message {got} where {wanted} was next"));
                    }
                    None => return Err(format!("subscriber {number} got a message that was never published")),
                },
                Publisher::Other { payload: wanted, .. } if payload == wanted => 0,
                Publisher::Other { .. } => return Err(format!("subscriber {number} got another payload")),
            };
            if due != run.due {
                run.end(now, &mut self.tally.times[0]);
                run.due = due;
            }
            run.count += u64::from(due >= from && due > 0);
            self.got[number] += 1;
            self.tally.right += u64::from(now >= from && now < to);
            at += message_bytes;
        }
        run.end(now, &mut self.tally.times[0]);
        connection.consume(at);
        self.first.get_or_insert(now);
        self.last = now;
        Ok(())
    }
}

/// Deliveries that are recorded together. Their messages were due at one time and arrived with one read.
#[derive(Default)]
struct Run {
    due: u64,
    count: u64,
}

impl Run {
    fn end(&mut self, now: u64, times: &mut Latencies) {
        if self.count > 0 {
            times.record_nanos_times(now.saturating_sub(self.due), std::mem::take(&mut self.count));
        }
    }
}

fn receive(connection: &mut Connection) -> Result<(), String> {
    match connection.receive() {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        other => other.map(drop).map_err(|error| format!("receiving: {error}")),
    }
}
