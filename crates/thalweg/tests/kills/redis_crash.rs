//! kill -9 between pipelined writes of Redis clients: acknowledged writes are present once and in order; a transaction
//! or a burst is present as a whole or not at all.
//!
//! Each client has keys of its own, so their state must result from a prefix of the client's writes: at least the
//! acknowledged ones, ending where a commit may end. Replies are checked against the same model. The clients share a
//! counter and a stream, which they change in transactions that also write to their own keys: so the prefixes determine
//! the shared state exactly.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::{
    clock::{Dice, seed},
    node::{Node, count::Count},
    redis::{Redis, Reply, address, encode},
};

const CLIENTS: usize = 6;
/// Maximum writes or transactions of a burst; their bytes are far fewer than a connection reads in one call.
const MAX_UNITS: u64 = 12;
/// Maximum number of bursts that a client sends before it reads replies.
const MAX_DEPTH: u64 = 3;

/// A write. Its number is unique.
#[derive(Clone, Copy, Debug)]
enum Write {
    Set { key: u64, number: u64 },
    Append { key: u64, number: u64 },
    Delete { key: u64 },
    Increment,
    SetField { field: u64, number: u64 },
    IncrementField,
    Add { number: u64 },
    AddAndTrim { number: u64 },
    RaiseShared,
    AddShared { number: u64 },
}

/// Number of entries that a trim keeps.
const KEPT: usize = 40;

/// Expected reply to a write.
#[derive(Clone, Debug)]
enum Expected {
    Exactly(Reply),
    /// Id of the entry with this number.
    Id(u64),
    /// A value of the shared counter that no other reply contained.
    Raised,
}

/// Expected contents of a client's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Keys {
    texts: BTreeMap<u64, String>,
    counter: i64,
    hash: BTreeMap<String, String>,
    stream: Vec<String>,
}

impl Write {
    fn command(self, of: usize) -> String {
        match self {
            Self::Set { key, number } => format!("SET {of}:{key} {number}"),
            Self::Append { key, number } => format!("APPEND {of}:{key} ,{number}"),
            Self::Delete { key } => format!("DEL {of}:{key}"),
            Self::Increment => format!("INCR {of}:n"),
            Self::SetField { field, number } => format!("HSET {of}:h {field} {number}"),
            Self::IncrementField => format!("HINCRBY {of}:h n 2"),
            Self::Add { number } => format!("XADD {of}:s * n {number}"),
            Self::AddAndTrim { number } => format!("XADD {of}:s MAXLEN {KEPT} * n {number}"),
            Self::RaiseShared => "INCR shared:n".to_owned(),
            Self::AddShared { number } => format!("XADD shared:s * {of} {number}"),
        }
    }

    fn apply(self, keys: &mut Keys) -> Expected {
        let integer = |number: usize| Expected::Exactly(Reply::Integer(number as i64));
        match self {
            Self::Set { key, number } => {
                keys.texts.insert(key, number.to_string());
                Expected::Exactly(Reply::ok())
            }
            Self::Append { key, number } => {
                let text = keys.texts.entry(key).or_default();
                text.push_str(&format!(",{number}"));
                integer(text.len())
            }
            Self::Delete { key } => integer(usize::from(keys.texts.remove(&key).is_some())),
            Self::Increment => {
                keys.counter += 1;
                integer(keys.counter as usize)
            }
            Self::SetField { field, number } => {
                integer(usize::from(keys.hash.insert(field.to_string(), number.to_string()).is_none()))
            }
            Self::IncrementField => {
                let held = keys.hash.entry("n".to_owned()).or_insert_with(|| "0".to_owned());
                let sum = held.parse::<usize>().unwrap() + 2;
                *held = sum.to_string();
                integer(sum)
            }
            Self::Add { number } => {
                keys.stream.push(number.to_string());
                Expected::Id(number)
            }
            Self::AddAndTrim { number } => {
                keys.stream.push(number.to_string());
                keys.stream.drain(..keys.stream.len().saturating_sub(KEPT));
                Expected::Id(number)
            }
            Self::RaiseShared => Expected::Raised,
            Self::AddShared { number } => Expected::Id(number),
        }
    }
}

/// A pending reply, and the number of writes that are acknowledged with it.
struct Awaited {
    replies: Vec<Expected>,
    is_transaction: bool,
    answered: usize,
}

/// A client of one round.
struct Client {
    of: usize,
    connection: Redis,
    dice: Dice,
    /// State of the keys after all sent writes.
    keys: Keys,
    next_number: u64,
    sent: Vec<Write>,
    /// Numbers of writes after which a commit may end.
    ends: BTreeSet<usize>,
    answered: usize,
    awaited: VecDeque<Awaited>,
    /// Acknowledged entry id by the number of its write.
    ids: HashMap<u64, String>,
    raised: Vec<i64>,
}

impl Client {
    fn new(of: usize, address: &str, keys: Keys, first_number: u64, seed: u64) -> Self {
        Self {
            of,
            connection: Redis::connect(address),
            dice: Dice::new(seed ^ first_number),
            keys,
            next_number: first_number,
            sent: Vec::new(),
            ends: BTreeSet::from([0]),
            answered: 0,
            awaited: VecDeque::new(),
            ids: HashMap::new(),
            raised: Vec::new(),
        }
    }

    /// Runs until the server is gone.
    fn run(mut self, answers: &Count, stop: &AtomicBool) -> Self {
        let mut is_there = true;
        while is_there && !stop.load(Ordering::Relaxed) {
            let depth = 1 + self.dice.below(MAX_DEPTH);
            is_there = (0..depth).all(|_| self.send_burst());
            while is_there && !self.awaited.is_empty() {
                is_there = self.take_reply();
                answers.add();
            }
        }
        // Reads the replies that the server sent before it was killed.
        while !self.awaited.is_empty() && self.take_reply() {}
        self
    }

    fn send_burst(&mut self) -> bool {
        let is_alone = self.awaited.is_empty();
        let mut bytes = Vec::new();
        for _ in 0..=self.dice.below(MAX_UNITS) {
            self.unit(&mut bytes);
            if !is_alone {
                self.ends.insert(self.sent.len());
            }
        }
        // Without other pending bursts, the server reads a burst in one call and commits it as one.
        self.ends.insert(self.sent.len());
        self.connection.send(&bytes).is_ok()
    }

    /// Encodes a write, or a transaction of several.
    fn unit(&mut self, bytes: &mut Vec<u8>) {
        let mut writes = Vec::new();
        let is_transaction = self.dice.below(3) == 0;
        if is_transaction {
            writes.extend((0..self.dice.below(4)).map(|_| self.choose()));
            writes.extend([Write::Add { number: self.number() }, Write::RaiseShared]);
            writes.push(Write::AddShared { number: self.number() });
        } else {
            writes.push(self.choose());
        }
        if is_transaction {
            bytes.extend(encode("MULTI"));
        }
        writes.iter().for_each(|write| bytes.extend(encode(&write.command(self.of))));
        if is_transaction {
            bytes.extend(encode("EXEC"));
        }
        let replies = writes.iter().map(|write| write.apply(&mut self.keys)).collect();
        self.sent.extend(writes);
        self.awaited.push_back(Awaited { replies, is_transaction, answered: self.sent.len() });
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn choose(&mut self) -> Write {
        let (key, number) = (self.dice.below(4), self.number());
        match self.dice.below(9) {
            0 | 1 => Write::Set { key, number },
            2 => Write::Append { key, number },
            3 => Write::Delete { key },
            4 => Write::Increment,
            5 => Write::SetField { field: self.dice.below(20), number },
            6 => Write::IncrementField,
            7 => Write::AddAndTrim { number },
            _ => Write::Add { number },
        }
    }

    fn take_reply(&mut self) -> bool {
        let Some(Awaited { replies, is_transaction, answered }) = self.awaited.pop_front() else { return false };
        let got = if is_transaction {
            self.transaction(replies.len())
        } else {
            self.connection.reply().ok().map(|got| vec![got])
        };
        let Some(got) = got else { return false };
        assert_eq!(got.len(), replies.len(), "{got:?}");
        for (got, expected) in got.into_iter().zip(replies) {
            match expected {
                Expected::Exactly(reply) => assert_eq!(got, reply, "client {} of {:?}", self.of, self.sent),
                Expected::Id(number) => drop(self.ids.insert(number, got.text().to_owned())),
                Expected::Raised => self.raised.push(got.integer()),
            }
        }
        self.answered = answered;
        true
    }

    /// Returns the replies within the reply to `EXEC`.
    fn transaction(&mut self, writes: usize) -> Option<Vec<Reply>> {
        assert_eq!(self.connection.reply().ok()?, Reply::ok());
        for _ in 0..writes {
            assert_eq!(self.connection.reply().ok()?, Reply::queued());
        }
        Some(self.connection.reply().ok()?.items().to_vec())
    }
}

/// Known state after all previous rounds.
#[derive(Default)]
struct Known {
    keys: Vec<Keys>,
    shared_count: i64,
    /// Numbers in the shared stream by client, in order.
    shared: Vec<Vec<String>>,
    /// Acknowledged ids, by client and number.
    ids: HashMap<(usize, u64), String>,
    raised: BTreeSet<i64>,
}

impl Known {
    fn new() -> Self {
        Self { keys: vec![Keys::default(); CLIENTS], shared: vec![Vec::new(); CLIENTS], ..Self::default() }
    }

    /// Adds the writes of a client of the previous round that took effect, as determined by the contents of its keys.
    fn settle(&mut self, client: Client, found: &Keys, context: &str) {
        let base = &mut self.keys[client.of];
        let mut keys = base.clone();
        let mut happened = None;
        for count in 0..=client.sent.len() {
            if count >= client.answered && client.ends.contains(&count) && keys == *found {
                happened = Some(count);
                break;
            }
            if let Some(write) = client.sent.get(count) {
                write.apply(&mut keys);
            }
        }
        let Some(happened) = happened else {
            let mut answered = base.clone();
            client.sent[..client.answered].iter().for_each(|write| drop(write.apply(&mut answered)));
            panic!(
                "{context}: client {} was answered {} of {} writes, and no commit up to one of {:?} explains {found:#?}\n\
                 after what was answered it is {answered:#?}\n{:?}",
                client.of,
                client.answered,
                client.sent.len(),
                client.ends,
                client.sent
            );
        };
        *base = found.clone();
        for write in &client.sent[..happened] {
            match write {
                Write::RaiseShared => self.shared_count += 1,
                Write::AddShared { number } => self.shared[client.of].push(number.to_string()),
                _ => {}
            }
        }
        self.ids.extend(client.ids.into_iter().map(|(number, id)| ((client.of, number), id)));
        for raised in client.raised {
            assert!(self.raised.insert(raised), "{context}: two were told {raised}");
        }
    }

    /// Checks the shared keys.
    fn check_shared(&self, server: &mut Redis, context: &str) {
        let count = match server.call("GET shared:n") {
            Reply::Nil => 0,
            text => text.text().parse().unwrap(),
        };
        assert_eq!(count, self.shared_count, "{context}: the shared counter");
        assert!(self.raised.last().is_none_or(|highest| *highest <= count), "{context}: more was told than counted");
        let mut shared = vec![Vec::new(); CLIENTS];
        for (id, of, number) in entries(server, "shared:s") {
            let of: usize = of.parse().unwrap();
            self.check_id(of, &id, &number, context);
            shared[of].push(number);
        }
        assert_eq!(shared, self.shared, "{context}: the shared stream");
        let own = |keys: &Keys| {
            let others = [keys.counter > 0, !keys.hash.is_empty(), !keys.stream.is_empty()];
            keys.texts.len() + others.into_iter().filter(|is| *is).count()
        };
        let shared = usize::from(count > 0) + usize::from(!self.shared.iter().all(Vec::is_empty));
        let all = self.keys.iter().map(own).sum::<usize>() + shared;
        assert_eq!(server.call("DBSIZE"), Reply::Integer(all as i64), "{context}: keys");
    }

    fn check_id(&self, of: usize, id: &str, number: &str, context: &str) {
        if let Some(answered) = self.ids.get(&(of, number.parse().unwrap())) {
            assert_eq!(answered, id, "{context}: the id of entry {number} of client {of}");
        }
    }
}

/// Returns id, first field and its value of each entry; checks that ids increase.
fn entries(server: &mut Redis, key: &str) -> Vec<(String, String, String)> {
    let range = server.call(&format!("XRANGE {key} - +"));
    let entry = |entry: &Reply| {
        let [id, fields] = entry.items() else { panic!("{entry:?}") };
        let [field, value] = fields.items() else { panic!("{entry:?}") };
        (id.text().to_owned(), field.text().to_owned(), value.text().to_owned())
    };
    let entries: Vec<_> = range.items().iter().map(entry).collect();
    let order = |id: &str| id.split('-').map(|part| part.parse().unwrap()).collect::<Vec<u64>>();
    assert!(entries.windows(2).all(|pair| order(&pair[0].0) < order(&pair[1].0)), "{key}: ids rise");
    entries
}

/// Reads a client's keys from the server.
fn find(server: &mut Redis, of: usize) -> Keys {
    let mut keys = Keys::default();
    for key in 0..4 {
        if let Reply::Bulk(text) = server.call(&format!("GET {of}:{key}")) {
            keys.texts.insert(key, text);
        }
    }
    if let Reply::Bulk(count) = server.call(&format!("GET {of}:n")) {
        keys.counter = count.parse().unwrap();
    }
    let fields = server.call(&format!("HGETALL {of}:h"));
    keys.hash = fields.items().chunks(2).map(|pair| (pair[0].text().to_owned(), pair[1].text().to_owned())).collect();
    assert_eq!(server.call(&format!("HLEN {of}:h")), Reply::Integer(keys.hash.len() as i64));
    keys.stream = entries(server, &format!("{of}:s")).into_iter().map(|(_, _, number)| number).collect();
    assert_eq!(server.call(&format!("XLEN {of}:s")), Reply::Integer(keys.stream.len() as i64));
    keys
}

fn start(data: &std::path::Path, backend: &str) -> Node {
    Node::start_with(data, &["--resp", "127.0.0.1:0", "--backend", backend])
}

/// Checks the server's state against the replies that clients got.
fn verify(node: &Node, known: &mut Known, clients: Vec<Client>, context: &str) {
    let mut server = Redis::connect(&address(node));
    for client in clients {
        let of = client.of;
        let found = find(&mut server, of);
        known.settle(client, &found, context);
        for (id, _, number) in entries(&mut server, &format!("{of}:s")) {
            known.check_id(of, &id, &number, context);
        }
    }
    known.check_shared(&mut server, context);
}

/// Runs clients until enough writes are answered, and kills the server under them.
fn round(node: Node, known: &Known, number: u64, seed: u64, wanted: u64) -> Vec<Client> {
    let (answers, stop) = (Count::default(), Arc::new(AtomicBool::new(false)));
    let address = address(&node);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|of| {
            let first = (number * CLIENTS as u64 + of as u64) * 1_000_000;
            let client = Client::new(of, &address, known.keys[of].clone(), first, seed);
            let (answers, stop) = (answers.clone(), stop.clone());
            thread::spawn(move || client.run(&answers, &stop))
        })
        .collect();
    answers.wait_for(wanted);
    node.kill();
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().map(|client| client.join().expect("a client")).collect()
}

fn kill_again_and_again(backend: &str, rounds: u64) {
    let seed = seed(&format!("kill -9 of Redis clients' server, {backend}"));
    let (mut dice, dir, mut known) = (Dice::new(seed), tempfile::tempdir().unwrap(), Known::new());
    let (mut clients, mut sent, mut answered) = (Vec::new(), 0, 0);
    for number in 0..rounds {
        let node = start(dir.path(), backend);
        verify(&node, &mut known, clients, &format!("SEED={seed} {backend} round {number}"));
        clients = round(node, &known, number, seed, 50 + dice.below(1000));
        sent += clients.iter().map(|client| client.sent.len()).sum::<usize>();
        answered += clients.iter().map(|client| client.answered).sum::<usize>();
    }
    let node = start(dir.path(), backend);
    verify(&node, &mut known, clients, &format!("SEED={seed} {backend} at the end"));
    let context = format!("SEED={seed} {backend}: {answered} of {sent} writes answered, {} shared", known.shared_count);
    eprintln!("{context}");
    assert!(sent > answered && answered as u64 > 50 * rounds && known.shared_count > 0, "{context}");
}

#[test]
fn kill_9_between_pipelined_writes_loses_and_doubles_nothing_on_lsm() {
    kill_again_and_again("lsm", 8);
}

#[test]
fn kill_9_between_pipelined_writes_loses_and_doubles_nothing_on_memory() {
    kill_again_and_again("memory", 5);
}

#[test]
fn kill_9_between_pipelined_writes_loses_and_doubles_nothing_on_sqlite() {
    kill_again_and_again("sqlite", 4);
}

#[test]
fn kill_9_between_pipelined_writes_loses_and_doubles_nothing_on_redb() {
    kill_again_and_again("redb", 4);
}

/// Run with `cargo test --release -p thalweg --test kills redis_crash:: -- --ignored --nocapture`, and optionally
/// `SEED` and `THALWEG_TEST_ROUNDS`.
#[test]
#[ignore = "a soak of minutes: \
            cargo test --release -p thalweg --test kills redis_crash:: -- --ignored --nocapture"]
fn kill_9_between_pipelined_writes_for_long() {
    let rounds = std::env::var("THALWEG_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(100);
    for backend in ["lsm", "memory", "sqlite", "redb"] {
        kill_again_and_again(backend, rounds);
    }
}
