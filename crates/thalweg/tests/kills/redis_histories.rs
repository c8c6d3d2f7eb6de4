//! Transfers between accounts by concurrent Redis clients, in `MULTI` and with `WATCH`: one serial order, consistent
//! with real time, explains every answer, and the total balance is constant. In a keyspace, whose accounts are strings,
//! fields of a hash and last entries of streams, with kill -9 in between; and in a cache.
//!
//! The checker is `thalweg_sim::linear::bank`; `serializability.rs` tests it with constructed histories. Each
//! transaction appends its number to a string that records the order: the reply of `APPEND` is the new length and hence
//! the position, and `STRLEN` in an audit is the number of earlier transactions. A rejected `EXEC` must have a cause: a
//! change of a watched key that was in progress after the `WATCH`.

use std::thread;

use thalweg_sim::linear::bank::{Balance, Change, Timed, Transaction, about, check};

use crate::{
    clock::{Dice, Moments, seed},
    node::{Node, count::Count},
    redis::{Redis, Reply, address},
};

const CLIENTS: u64 = 6;
const ACCOUNTS: usize = 5;
const OPENING: i64 = 100;
/// Number of characters of a transaction's number in the order.
const DIGITS: usize = 10;

/// Database of the accounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Database {
    /// Database 0: two strings, two fields of a hash, a stream.
    Keyspace,
    /// Database 1: strings.
    Cache,
}

/// Representation of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Text,
    Field,
    Stream,
}

impl Database {
    fn number(self) -> u8 {
        match self {
            Self::Keyspace => 0,
            Self::Cache => 1,
        }
    }

    fn kind(self, account: usize) -> Kind {
        match (self, account) {
            (Self::Cache, _) | (_, 0 | 1) => Kind::Text,
            (_, 2 | 3) => Kind::Field,
            _ => Kind::Stream,
        }
    }

    fn key(self, account: usize) -> String {
        match self.kind(account) {
            Kind::Field => "accounts".to_owned(),
            _ => format!("account-{account}"),
        }
    }

    fn read(self, account: usize) -> String {
        let key = self.key(account);
        match self.kind(account) {
            Kind::Text => format!("GET {key}"),
            Kind::Field => format!("HGET {key} {account}"),
            Kind::Stream => format!("XREVRANGE {key} + - COUNT 1"),
        }
    }

    fn write(self, &(account, balance): &Balance) -> String {
        let key = self.key(account);
        match self.kind(account) {
            Kind::Text => format!("SET {key} {balance}"),
            Kind::Field => format!("HSET {key} {account} {balance}"),
            Kind::Stream => format!("XADD {key} MAXLEN 3 * balance {balance}"),
        }
    }

    /// Returns a command that changes a balance without reading it, if the representation has one.
    fn add(self, &(account, by): &Balance) -> Option<String> {
        let key = self.key(account);
        match self.kind(account) {
            Kind::Text => Some(format!("INCRBY {key} {by}")),
            Kind::Field => Some(format!("HINCRBY {key} {account} {by}")),
            Kind::Stream => None,
        }
    }
}

/// Returns the balance in a reply to a read.
fn balance(reply: &Reply) -> i64 {
    match reply {
        Reply::Bulk(text) => text.parse().unwrap(),
        Reply::Integer(balance) => *balance,
        // The last entry of a stream: its id, and its single field with the value.
        Reply::Array(entries) => entries[0].items()[1].items()[1].text().parse().unwrap(),
        other => panic!("no balance: {other:?}"),
    }
}

/// A transaction whose `EXEC` was answered with null. `begin` is a time before its `WATCH`, `end` a time after the
/// answer.
struct Refusal {
    begin: u64,
    end: u64,
    keys: Vec<String>,
}

#[derive(Default)]
struct History {
    transactions: Vec<Timed>,
    refusals: Vec<Refusal>,
}

struct Client {
    database: Database,
    redis: Redis,
    moments: Moments,
    dice: Dice,
    next_id: u64,
    history: History,
}

impl Client {
    fn new(database: Database, address: &str, moments: &Moments, seed: u64, first_id: u64) -> Self {
        let mut redis = Redis::connect(address);
        assert_eq!(redis.call(&format!("SELECT {}", database.number())), Reply::ok());
        let (moments, dice) = (moments.clone(), Dice::new(seed));
        Self { database, redis, moments, dice, next_id: first_id, history: History::default() }
    }

    /// Runs until the server is gone or enough transactions are answered.
    fn run(mut self, answers: &Count, wanted: u64) -> History {
        while answers.get() < wanted && self.step().is_some() {
            answers.add();
        }
        self.history
    }

    fn step(&mut self) -> Option<()> {
        match self.dice.below(8) {
            0 | 1 => self.transfer(),
            2..6 => self.watched_transfer(),
            6 => self.audit(),
            _ => self.audit_in_a_burst(),
        }
    }

    /// Chooses two different accounts, the change of each, and a unique number.
    fn choose(&mut self) -> ([Balance; 2], u64) {
        let from = self.dice.below(ACCOUNTS as u64) as usize;
        let to = (from + 1 + self.dice.below(ACCOUNTS as u64 - 1) as usize) % ACCOUNTS;
        let amount = 1 + self.dice.below(20) as i64;
        self.next_id += 1;
        ([(from, -amount), (to, amount)], self.next_id)
    }

    /// Adds to both accounts in `MULTI`.
    fn transfer(&mut self) -> Option<()> {
        let (changes, id) = self.choose();
        let [Some(one), Some(other)] = changes.each_ref().map(|change| self.database.add(change)) else {
            return self.watched_transfer();
        };
        let begin = self.moments.next();
        let answer = self.transaction(vec![one, other, order(id)]);
        let end = self.moments.next();
        let outcome = answer.as_ref().map(|answer| {
            let replies = answer.items();
            let after = changes.iter().zip(replies).map(|(&(account, _), reply)| (account, balance(reply))).collect();
            change(&replies[2], after)
        });
        let transaction = Transaction::Change { id, changes: changes.to_vec(), expected: vec![], outcome };
        self.history.transactions.push(Timed { begin, end, transaction });
        answer.map(drop)
    }

    /// Reads both accounts, and writes the new balances unless another client has changed them.
    fn watched_transfer(&mut self) -> Option<()> {
        let (changes, id) = self.choose();
        let watched = self.moments.next();
        let expected = self.watch(changes)?;
        let pairs = expected.iter().zip(&changes);
        let after: Vec<Balance> = pairs.map(|(&(account, before), (_, by))| (account, before + by)).collect();
        let mut commands: Vec<_> = after.iter().map(|balance| self.database.write(balance)).collect();
        commands.push(order(id));
        let begin = self.moments.next();
        let answer = self.transaction(commands);
        let end = self.moments.next();
        let outcome = match &answer {
            Some(Reply::Nil) => {
                let keys = changes.iter().map(|&(account, _)| self.database.key(account)).collect();
                self.history.refusals.push(Refusal { begin: watched, end, keys });
                return Some(());
            }
            Some(answer) => Some(change(&answer.items()[2], after)),
            None => None,
        };
        let transaction = Transaction::Change { id, changes: changes.to_vec(), expected: expected.to_vec(), outcome };
        self.history.transactions.push(Timed { begin, end, transaction });
        answer.map(drop)
    }

    /// Watches the keys of two accounts with one or two commands, and reads both accounts in the same burst or the
    /// next.
    fn watch(&mut self, changes: [Balance; 2]) -> Option<[Balance; 2]> {
        let accounts = changes.map(|(account, _)| account);
        let keys = accounts.map(|account| self.database.key(account));
        let mut commands = match self.dice.below(2) {
            0 => vec![format!("WATCH {} {}", keys[0], keys[1])],
            _ => keys.iter().map(|key| format!("WATCH {key}")).collect(),
        };
        if self.dice.below(2) == 0 {
            let replies = self.redis.try_pipeline(&commands).ok()?;
            assert!(replies.iter().all(|reply| *reply == Reply::ok()), "{replies:?}");
            commands.clear();
        }
        commands.extend(accounts.map(|account| self.database.read(account)));
        let replies = self.redis.try_pipeline(&commands).ok()?;
        let [.., one, other] = &replies[..] else { unreachable!("there are two reads") };
        Some([(accounts[0], balance(one)), (accounts[1], balance(other))])
    }

    /// Sends the commands between `MULTI` and `EXEC`, in one burst or two. Returns the reply of `EXEC`.
    fn transaction(&mut self, commands: Vec<String>) -> Option<Reply> {
        let mut all = vec!["MULTI".to_owned()];
        all.extend(commands);
        all.push("EXEC".to_owned());
        let cut = if self.dice.below(2) == 0 { all.len() } else { all.len() - 1 };
        let rest = all.split_off(cut);
        let mut replies = self.redis.try_pipeline(&all).ok()?;
        replies.extend(self.redis.try_pipeline(&rest).ok()?);
        assert!(replies[1..replies.len() - 1].iter().all(|reply| *reply == Reply::queued()), "{replies:?}");
        replies.pop()
    }

    /// Reads all balances in a read-only transaction.
    fn audit(&mut self) -> Option<()> {
        let mut commands: Vec<_> = (0..ACCOUNTS).map(|account| self.database.read(account)).collect();
        commands.push("STRLEN order".to_owned());
        let begin = self.moments.next();
        let answer = self.transaction(commands)?;
        self.saw(begin, answer.items());
        Some(())
    }

    /// Reads all balances after a write in one burst, which is one commit in a keyspace. In a cache only `MULTI` is
    /// atomic.
    fn audit_in_a_burst(&mut self) -> Option<()> {
        if self.database == Database::Cache {
            return self.audit();
        }
        let mut commands = vec!["INCR audits".to_owned()];
        commands.extend((0..ACCOUNTS).map(|account| self.database.read(account)));
        commands.push("STRLEN order".to_owned());
        let begin = self.moments.next();
        let replies = self.redis.try_pipeline(&commands).ok()?;
        self.saw(begin, &replies[1..]);
        Some(())
    }

    fn saw(&mut self, begin: u64, replies: &[Reply]) {
        let end = self.moments.next();
        let (len, balances) = replies.split_last().expect("all that was asked");
        let saw: Vec<Balance> = balances.iter().map(balance).enumerate().collect();
        assert_eq!(saw.len(), ACCOUNTS);
        assert_eq!(saw.iter().map(|(_, balance)| balance).sum::<i64>(), OPENING * ACCOUNTS as i64, "{replies:?}");
        let transaction = Transaction::Read { saw, revision: len.integer() as u64 / DIGITS as u64, refused: vec![] };
        self.history.transactions.push(Timed { begin, end, transaction });
    }
}

/// Returns the command that appends a transaction's number to the order.
fn order(id: u64) -> String {
    format!("APPEND order {id:0DIGITS$}")
}

fn change(len: &Reply, after: Vec<Balance>) -> Change {
    let revision = len.integer() as u64 / DIGITS as u64;
    Change { revision, offset: revision - 1, after }
}

/// Checks that each rejection has a cause: a concurrent change of a watched key by another transaction.
fn check_refusals(database: Database, history: &History) -> Result<(), String> {
    for refusal in &history.refusals {
        let is_reason = |timed: &Timed| {
            let Transaction::Change { changes, .. } = &timed.transaction else { return false };
            timed.begin < refusal.end
                && timed.end > refusal.begin
                && changes.iter().any(|&(account, _)| refusal.keys.contains(&database.key(account)))
        };
        if !history.transactions.iter().any(is_reason) {
            return Err(format!("nobody touched {:?} from {} to {}", refusal.keys, refusal.begin, refusal.end));
        }
    }
    Ok(())
}

fn start(data: &std::path::Path, backend: &str) -> Node {
    let databases = "--resp-databases=0=keyspace:redis,1=cache:redis";
    Node::start_with(data, &["--resp", "127.0.0.1:0", databases, "--backend", backend])
}

fn open_accounts(database: Database, node: &Node) {
    let mut redis = Redis::connect(&address(node));
    redis.call(&format!("SELECT {}", database.number()));
    (0..ACCOUNTS).for_each(|account| drop(redis.call(&database.write(&(account, OPENING)))));
}

/// End of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// The server keeps running after enough transactions are answered.
    Quiet,
    /// The server is killed after enough transactions are answered.
    Kill,
}

/// Runs clients until enough transactions are answered, and collects their histories.
fn round(
    node: Node,
    database: Database,
    moments: &Moments,
    number: u64,
    seed: u64,
    wanted: u64,
    end: End,
) -> (History, Node) {
    let answers = Count::default();
    let address = address(&node);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|of| {
            let number = number * CLIENTS + of;
            let client = Client::new(database, &address, moments, seed ^ (number + 1), number * 1_000_000);
            let answers = answers.clone();
            let at_most = if end == End::Kill { u64::MAX } else { wanted };
            thread::spawn(move || client.run(&answers, at_most))
        })
        .collect();
    answers.wait_for(wanted);
    if end == End::Kill {
        node.signal(libc::SIGKILL);
    }
    let mut history = History::default();
    for client in clients {
        let more = client.join().expect("a client");
        history.transactions.extend(more.transactions);
        history.refusals.extend(more.refusals);
    }
    let dead = moments.next();
    // A lost transaction may have happened at any time until the server was dead.
    for timed in &mut history.transactions {
        if matches!(&timed.transaction, Transaction::Change { outcome: None, .. }) {
            timed.end = dead;
        }
    }
    (history, node)
}

fn placed(database: Database, node: &Node) -> Vec<u64> {
    let mut redis = Redis::connect(&address(node));
    redis.call(&format!("SELECT {}", database.number()));
    let order = redis.call("GET order");
    order.text().as_bytes().chunks(DIGITS).map(|id| std::str::from_utf8(id).unwrap().parse().unwrap()).collect()
}

fn verify(database: Database, history: &History, order: &[u64], context: &str) {
    if let Err(wrong) = check(&[OPENING; ACCOUNTS], order, &history.transactions) {
        panic!("{context}: {wrong:?}\n{:#?}", about(&wrong, &history.transactions));
    }
    if let Err(why) = check_refusals(database, history) {
        panic!("{context}: EXEC was refused without a reason: {why}");
    }
    let count =
        |of: fn(&Transaction) -> bool| history.transactions.iter().filter(|timed| of(&timed.transaction)).count();
    let changes = count(|transaction| matches!(transaction, Transaction::Change { outcome: Some(_), .. }));
    let reads = count(|transaction| matches!(transaction, Transaction::Read { .. }));
    let said = format!("{context}: {changes} changes, {reads} audits, {} refusals", history.refusals.len());
    eprintln!("{said}");
    assert!(changes > 100 && reads > 20 && history.refusals.len() > 10, "{said}");
}

fn transfer_in_a_keyspace(backend: &str, rounds: u64) {
    let seed = seed(&format!("Redis clients' transactions, {backend}"));
    let (mut dice, dir, moments) = (Dice::new(seed), tempfile::tempdir().unwrap(), Moments::default());
    let mut history = History::default();
    for number in 0..rounds {
        let node = start(dir.path(), backend);
        if number == 0 {
            open_accounts(Database::Keyspace, &node);
        }
        let wanted = 100 + dice.below(200);
        let (more, _killed) = round(node, Database::Keyspace, &moments, number, seed, wanted, End::Kill);
        history.transactions.extend(more.transactions);
        history.refusals.extend(more.refusals);
    }
    let node = start(dir.path(), backend);
    verify(Database::Keyspace, &history, &placed(Database::Keyspace, &node), &format!("SEED={seed} {backend}"));
}

#[test]
fn watched_transfers_are_serializable_over_kills_on_lsm() {
    transfer_in_a_keyspace("lsm", 6);
}

#[test]
fn watched_transfers_are_serializable_over_kills_on_memory() {
    transfer_in_a_keyspace("memory", 4);
}

#[test]
fn watched_transfers_are_serializable_in_a_cache() {
    let seed = seed("Redis clients' transactions in a cache");
    let (dir, moments) = (tempfile::tempdir().unwrap(), Moments::default());
    let node = start(dir.path(), "memory");
    open_accounts(Database::Cache, &node);
    let (history, node) = round(node, Database::Cache, &moments, 0, seed, 3000, End::Quiet);
    verify(Database::Cache, &history, &placed(Database::Cache, &node), &format!("SEED={seed} cache"));
}

#[test]
fn a_refusal_without_a_reason_is_found_out() {
    let change = |begin, end, account| Timed {
        begin,
        end,
        transaction: Transaction::Change { id: 1, changes: vec![(account, 1)], expected: vec![], outcome: None },
    };
    let refusal = |account| Refusal { begin: 5, end: 9, keys: vec![Database::Keyspace.key(account)] };
    let history = |timed, refusal| History { transactions: vec![timed], refusals: vec![refusal] };
    for (timed, account, is_fine) in [
        (change(1, 6, 0), 0, true),
        (change(8, 20, 0), 0, true),
        (change(1, 4, 0), 0, false),
        (change(10, 20, 0), 0, false),
        (change(1, 20, 1), 0, false),
        // Another field of the same hash.
        (change(1, 20, 2), 3, true),
    ] {
        let found = check_refusals(Database::Keyspace, &history(timed, refusal(account)));
        assert_eq!(found.is_ok(), is_fine, "{found:?}");
    }
}
