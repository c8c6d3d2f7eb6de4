//! Clients of the three protocols, each of one node, that record what they did.

use std::{
    collections::{BTreeSet, HashMap},
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use thalweg_client::{Effect, Endpoint, Options, Put, ReadLevel, Retries};
use thalweg_sim::linear::register::{Action, Answer};
use thalweg_types::{Revision, command::Expect};

use crate::{
    clock::{Dice, Moments},
    history::Event,
    network::Network,
};

/// Longest time of an operation.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Pause after an operation without an effect or an answer, so that a node without a leader is not asked all the time,
/// and operations of unknown outcome are few.
const PAUSE: Duration = Duration::from_millis(20);
/// Number of keys at a time.
const KEYS: u64 = 4;

/// Protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Resp,
    Native,
}

/// State that all clients share: the present set of keys, and the request to stop.
pub struct Shared {
    /// Number of the present set of keys.
    pub epoch: AtomicU64,
    pub stop: AtomicBool,
    /// Node of each client's group: clients of a removed node continue with the node that replaces it.
    pub nodes: Mutex<Vec<usize>>,
}

/// Outcome of a request.
enum Outcome {
    /// The answer, with the revision of the value that it shows or wrote.
    Answered(Answer, Option<u64>),
    /// The request had no effect.
    Nothing,
    Unknown,
}

/// A client.
pub struct Client {
    number: u64,
    protocol: Protocol,
    node: usize,
    connection: Connection,
    moments: Moments,
    dice: Dice,
    /// Value and revision by key; `None` for a key without a value.
    known: HashMap<String, Option<(u64, u64)>>,
    next_value: u64,
}

enum Connection {
    Http(ureq::Agent, String),
    Resp(SocketAddr, Option<BufReader<TcpStream>>),
    Native(Box<Native>),
}

struct Native {
    runtime: tokio::runtime::Runtime,
    address: String,
    client: Option<thalweg_client::Client>,
}

impl Connection {
    fn of(protocol: Protocol, node: usize) -> Self {
        let host = Network::host(node);
        match protocol {
            Protocol::Http => {
                let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
                Self::Http(config.build().into(), format!("http://{host}:7070/v1/kv/registers"))
            }
            Protocol::Resp => Self::Resp(format!("{host}:7379").parse().unwrap(), None),
            Protocol::Native => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                Self::Native(Box::new(Native { runtime, address: format!("{host}:7071"), client: None }))
            }
        }
    }
}

impl Client {
    pub fn new(number: u64, protocol: Protocol, node: usize, moments: Moments, seed: u64) -> Self {
        let connection = Connection::of(protocol, node);
        let (dice, known) = (Dice::new(seed ^ (number + 1)), HashMap::new());
        Self { number, protocol, node, connection, moments, dice, known, next_value: 1 + number * 100_000_000 }
    }

    /// Sends operations until the test stops, to the node of this group. Returns those that may have had an effect.
    pub fn run(mut self, group: usize, shared: &Shared) -> Vec<Event> {
        let mut events = Vec::new();
        while !shared.stop.load(Ordering::SeqCst) {
            let node = shared.nodes.lock().unwrap()[group];
            if node != self.node {
                (self.node, self.connection) = (node, Connection::of(self.protocol, node));
            }
            let epoch = shared.epoch.load(Ordering::SeqCst);
            let key = format!("{epoch}-{}", self.dice.below(KEYS));
            let action = self.choose(&key);
            let event = self.step(key, action);
            let is_answered = event.as_ref().is_some_and(|event| event.end.is_some());
            events.extend(event);
            if !is_answered {
                std::thread::sleep(PAUSE);
            }
        }
        events
    }

    /// Reads keys until each was read.
    pub fn read(mut self, keys: &BTreeSet<String>) -> Vec<Event> {
        let mut events = Vec::new();
        for key in keys {
            let mut attempts = 0;
            events.push(loop {
                attempts += 1;
                assert!(attempts < 1000, "{key} cannot be read from node {}", self.node);
                if let Some(event) = self.step(key.clone(), Action::Get) {
                    break event;
                }
                std::thread::sleep(PAUSE);
            });
        }
        events
    }

    fn choose(&mut self, key: &str) -> Action {
        let value = self.next_value;
        self.next_value += 1;
        let known = self.known.get(key).copied();
        match (self.dice.below(20), known) {
            (0..6, _) => Action::Put(value),
            // RESP has no condition on a value.
            (6..11, Some(Some((held, _)))) if self.protocol != Protocol::Resp => {
                Action::Swap { expect: Some(held), put: value }
            }
            (11..13, _) => Action::Swap { expect: None, put: value },
            (13, _) => Action::Delete,
            _ => Action::Get,
        }
    }

    /// Performs an operation. Returns `None` if it had no effect and shows nothing.
    fn step(&mut self, key: String, action: Action) -> Option<Event> {
        let revision = self.known.get(&key).copied().flatten().map_or(0, |(_, revision)| revision);
        // Reads that rely on the leader's lease must be linearizable, too: the speed of the clocks is that of one
        // machine.
        let level = if self.dice.below(3) == 0 { ReadLevel::Lease } else { ReadLevel::Linearizable };
        let begin = self.moments.next();
        let outcome = match &mut self.connection {
            Connection::Http(agent, url) => http(agent, &format!("{url}/{key}"), action, revision, level),
            Connection::Resp(address, stream) => resp(*address, stream, &key, action),
            Connection::Native(native) => native.send(&key, action, revision, level),
        };
        let end = self.moments.next();
        let (answer, shown, end) = match outcome {
            Outcome::Answered(answer, shown) => (answer, shown, Some(end)),
            Outcome::Unknown if action != Action::Get => (Answer::Lost, None, None),
            Outcome::Unknown | Outcome::Nothing => return None,
        };
        match (action, answer) {
            (Action::Get, Answer::Value(value)) => drop(self.known.insert(key.clone(), value.zip(shown))),
            (Action::Put(value) | Action::Swap { put: value, .. }, Answer::Done) => {
                self.known.insert(key.clone(), Some(value).zip(shown));
            }
            _ => drop(self.known.remove(&key)),
        }
        let (client, protocol, node) = (self.number, self.protocol, self.node);
        Some(Event { client, protocol, node, key, begin, end, action, answer })
    }
}

fn http(agent: &ureq::Agent, url: &str, action: Action, revision: u64, level: ReadLevel) -> Outcome {
    let sent = match action {
        Action::Get => agent.get(url).header("thalweg-read", level.to_string()).call(),
        Action::Delete | Action::DeleteIf(_) => agent.delete(url).call(),
        Action::Put(value) => agent.put(url).send(value.to_string()),
        Action::Swap { expect: None, put } => agent.put(url).header("if-none-match", "*").send(put.to_string()),
        Action::Swap { put, .. } => agent.put(url).header("if-match", format!("\"{revision}\"")).send(put.to_string()),
    };
    let mut reply = match sent {
        Ok(reply) => reply,
        // Nothing was sent.
        Err(ureq::Error::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => return Outcome::Nothing,
        Err(ureq::Error::ConnectionFailed) => return Outcome::Nothing,
        Err(_) => return Outcome::Unknown,
    };
    let shown = reply.headers().get("thalweg-revision").and_then(|value| value.to_str().ok()?.parse().ok());
    let status = reply.status().as_u16();
    let Ok(body) = reply.body_mut().read_to_string() else { return Outcome::Unknown };
    match (action, status) {
        (Action::Get, 200) => match body.parse() {
            Ok(value) => Outcome::Answered(Answer::Value(Some(value)), shown),
            Err(_) => panic!("a value that nobody put: {body:?}"),
        },
        (Action::Get, 404) => Outcome::Answered(Answer::Value(None), None),
        (Action::Swap { .. }, 412) => Outcome::Answered(Answer::Refused, None),
        (Action::Put(_) | Action::Swap { .. } | Action::Delete, 204) => Outcome::Answered(Answer::Done, shown),
        // It says that it had no effect. A node whose disk has failed says something else.
        (_, 503) if says_retry(&body) => Outcome::Nothing,
        (_, 507) => Outcome::Nothing,
        (_, 500..=599) => Outcome::Unknown,
        (action, status) => panic!("{action:?} was answered {status}: {body}"),
    }
}

pub fn says_retry(body: &str) -> bool {
    serde_json::from_str::<serde_json::Value>(body).is_ok_and(|error| error["retry"] == "retry")
}

fn resp(address: SocketAddr, stream: &mut Option<BufReader<TcpStream>>, key: &str, action: Action) -> Outcome {
    if stream.is_none() {
        let Ok(connected) = TcpStream::connect_timeout(&address, TIMEOUT) else { return Outcome::Nothing };
        connected.set_read_timeout(Some(TIMEOUT)).unwrap();
        *stream = Some(BufReader::new(connected));
    }
    let command = match action {
        Action::Get => format!("GET {key}\r\n"),
        Action::Delete | Action::DeleteIf(_) => format!("DEL {key}\r\n"),
        Action::Put(value) => format!("SET {key} {value}\r\n"),
        Action::Swap { put, .. } => format!("SET {key} {put} NX\r\n"),
    };
    let mut ask = || {
        let stream = stream.as_mut()?;
        stream.get_mut().write_all(command.as_bytes()).ok()?;
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let line = line.trim_end().to_owned();
        let Some(length) = line.strip_prefix('$').and_then(|length| length.parse::<usize>().ok()) else {
            return Some((line, String::new()));
        };
        let mut body = vec![0; length + 2];
        stream.read_exact(&mut body).ok()?;
        Some((line, String::from_utf8_lossy(&body[..length]).into_owned()))
    };
    let Some((line, body)) = ask() else {
        *stream = None;
        return Outcome::Unknown;
    };
    match (action, line.as_str()) {
        (Action::Get, "$-1" | "_") => Outcome::Answered(Answer::Value(None), None),
        (Action::Get, line) if line.starts_with('$') => {
            let value = body.parse().unwrap_or_else(|_| panic!("a value that nobody put: {body:?}"));
            Outcome::Answered(Answer::Value(Some(value)), None)
        }
        (Action::Put(_) | Action::Swap { .. }, "+OK") | (Action::Delete, ":0" | ":1") => {
            Outcome::Answered(Answer::Done, None)
        }
        (Action::Swap { .. }, "$-1" | "_") => Outcome::Answered(Answer::Refused, None),
        (_, line)
            if ["-LOADING", "-TRYAGAIN", "-CLUSTERDOWN", "-BUSY disk full"]
                .iter()
                .any(|code| line.starts_with(code)) =>
        {
            Outcome::Nothing
        }
        (_, line) if line.starts_with('-') => Outcome::Unknown,
        (action, line) => panic!("{action:?} was answered {line:?}"),
    }
}

impl Native {
    fn send(&mut self, key: &str, action: Action, revision: u64, level: ReadLevel) -> Outcome {
        if self.client.is_none() {
            let options = Options {
                timeout: Some(TIMEOUT),
                connect_timeout: TIMEOUT,
                // A retried write may take effect twice, with that of another client in between.
                retries: Retries { max_attempts: 0, ..thalweg_client::DEFAULT_RETRIES },
                ..Options::default()
            };
            let connecting = thalweg_client::Client::connect(Endpoint::tcp(self.address.clone()), options);
            self.client = self.runtime.block_on(connecting).ok();
        }
        let Some(client) = &self.client else { return Outcome::Nothing };
        let keyspace = client.read_level(level).keyspace("registers");
        let key = key.as_bytes();
        let sent = self.runtime.block_on(async {
            let expect = |expect| Put { expect: Some(expect), ..Put::default() };
            match action {
                Action::Get => keyspace.get(key).await.map(|found| {
                    let shown = found.as_ref().map(|value| value.revision.0);
                    let value = found.map(|value| {
                        let text = String::from_utf8_lossy(&value.value).into_owned();
                        text.parse().unwrap_or_else(|_| panic!("a value that nobody put: {text:?}"))
                    });
                    (Answer::Value(value), shown)
                }),
                Action::Put(value) => {
                    keyspace.put(key, value.to_string().as_bytes()).await.map(|at| (Answer::Done, Some(at.0)))
                }
                Action::Swap { expect: held, put } => {
                    let expected =
                        if held.is_some() { Expect::Revision(Revision(revision)) } else { Expect::Absent {} };
                    let put = put.to_string();
                    let swapped = keyspace.put_with(key, put.as_bytes(), expect(expected)).await;
                    swapped.map(|at| (Answer::Done, Some(at.0)))
                }
                Action::Delete | Action::DeleteIf(_) => keyspace.delete(key).await.map(|_| (Answer::Done, None)),
            }
        });
        match sent {
            Ok((answer, shown)) => Outcome::Answered(answer, shown),
            Err(error) if error.failure().is_some_and(|failure| failure.code == "condition_failed") => {
                Outcome::Answered(Answer::Refused, None)
            }
            Err(error) if error.effect() == Effect::Nothing => Outcome::Nothing,
            Err(_) => Outcome::Unknown,
        }
    }
}
