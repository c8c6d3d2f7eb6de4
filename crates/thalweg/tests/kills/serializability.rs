//! Transfers between accounts by concurrent clients, in transactions with kill -9 in between: one serial order,
//! consistent with real time, explains every answer, and the total balance is constant.
//!
//! The checker is `thalweg_sim::linear::bank`; this file also tests it with constructed histories, valid and invalid
//! ones.

use std::thread;

use serde_json::{Value, json};

use thalweg_sim::linear::bank::{Balance, BankViolation, Change, Timed, Transaction, about, check};

use crate::{
    clock::{Dice, Moments, seed},
    node::{Node, PATIENCE, count::Count},
};

const CLIENTS: u64 = 6;
const ACCOUNTS: u64 = 4;
const OPENING: i64 = 100;
const ROUNDS: u64 = 8;

struct Client {
    agent: ureq::Agent,
    url: String,
    moments: Moments,
    dice: Dice,
    next_id: u64,
    /// Balances in the last answers that the client got.
    known: [i64; ACCOUNTS as usize],
    history: Vec<Timed>,
}

fn key(account: usize) -> String {
    format!("account-{account}")
}

fn append(id: u64) -> Value {
    json!({"op": "append", "stream": "order", "records": [{"payload": id.to_string()}]})
}

fn read_of(account: usize) -> Value {
    json!({"op": "get", "keyspace": "bank", "key": key(account)})
}

fn balance(result: &Value) -> i64 {
    let value = &result["value"];
    value.as_i64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_else(|| panic!("no balance: {result}"))
}

impl Client {
    fn new(url: &str, moments: &Moments, seed: u64, first_id: u64) -> Self {
        // A client stops when a request fails. A disk that stands still for seconds must not stop all of them.
        let agent = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build().into();
        let (url, moments, dice) = (url.to_owned(), moments.clone(), Dice::new(seed));
        Self { agent, url, moments, dice, next_id: first_id, known: [OPENING; ACCOUNTS as usize], history: Vec::new() }
    }

    /// Runs until the server is gone.
    fn run(mut self, answers: &Count) -> Vec<Timed> {
        while self.step() {
            answers.add();
        }
        self.history
    }

    fn step(&mut self) -> bool {
        match self.dice.below(8) {
            0..3 => self.transfer(),
            3..6 => self.conditional_transfer(),
            _ => self.audit(),
        }
    }

    /// Chooses two different accounts, an amount, and a unique number.
    fn choose(&mut self) -> (usize, usize, i64, u64) {
        let from = self.dice.below(ACCOUNTS);
        let to = (from + 1 + self.dice.below(ACCOUNTS - 1)) % ACCOUNTS;
        self.next_id += 1;
        (from as usize, to as usize, 1 + self.dice.below(20) as i64, self.next_id)
    }

    /// Adds to both accounts without a condition.
    fn transfer(&mut self) -> bool {
        let (from, to, amount, id) = self.choose();
        let add = |account, delta: i64| json!({"op": "add", "keyspace": "bank", "key": key(account), "delta": delta});
        let body = json!({ "then": [add(from, -amount), add(to, amount), append(id)] });
        let (begin, answer, end) = self.send(&body);
        let outcome = answer.as_ref().map(|answer| {
            let results = &answer["results"];
            let after = vec![(from, balance(&results[0])), (to, balance(&results[1]))];
            after.iter().for_each(|&(account, balance)| self.known[account] = balance);
            change(answer, after)
        });
        let transaction =
            Transaction::Change { id, changes: vec![(from, -amount), (to, amount)], expected: vec![], outcome };
        self.history.push(Timed { begin, end, transaction });
        answer.is_some()
    }

    /// Transfers on condition that both accounts have the last known balances.
    fn conditional_transfer(&mut self) -> bool {
        let (from, to, amount, id) = self.choose();
        let expected: Vec<Balance> = vec![(from, self.known[from]), (to, self.known[to])];
        let after: Vec<Balance> = vec![(from, self.known[from] - amount), (to, self.known[to] + amount)];
        let condition = |&(account, balance): &Balance| json!({"keyspace": "bank", "key": key(account), "expect": {"value": balance.to_string()}});
        let put = |&(account, balance): &Balance| json!({"op": "put", "keyspace": "bank", "key": key(account), "value": balance.to_string()});
        let body = json!({
            "conditions": expected.iter().map(condition).collect::<Vec<_>>(),
            "then": [put(&after[0]), put(&after[1]), append(id)],
            "else": [read_of(from), read_of(to)],
        });
        let (begin, answer, end) = self.send(&body);
        let changes = vec![(from, -amount), (to, amount)];
        let transaction = match &answer {
            Some(answer) if answer["succeeded"] == json!(false) => {
                let saw = vec![(from, balance(&answer["results"][0])), (to, balance(&answer["results"][1]))];
                saw.iter().for_each(|&(account, balance)| self.known[account] = balance);
                Transaction::Read { saw, revision: revision(answer), refused: expected }
            }
            answer => {
                let outcome = answer.as_ref().map(|answer| change(answer, after.clone()));
                after.iter().for_each(|&(account, balance)| self.known[account] = balance);
                Transaction::Change { id, changes, expected, outcome }
            }
        };
        self.history.push(Timed { begin, end, transaction });
        answer.is_some()
    }

    /// Reads all balances, with single reads or a scan.
    fn audit(&mut self) -> bool {
        let scans = self.dice.below(2) == 0;
        let reads: Vec<_> = (0..ACCOUNTS as usize).map(read_of).collect();
        let body =
            if scans { json!({ "then": [{"op": "scan", "keyspace": "bank"}] }) } else { json!({ "then": reads }) };
        let (begin, answer, end) = self.send(&body);
        let Some(answer) = answer else { return false };
        let found = if scans { &answer["results"][0]["items"] } else { &answer["results"] };
        let saw: Vec<Balance> = found.as_array().expect("a list").iter().map(balance).enumerate().collect();
        assert_eq!(saw.len() as u64, ACCOUNTS);
        saw.iter().for_each(|&(account, balance)| self.known[account] = balance);
        assert_eq!(saw.iter().map(|(_, balance)| balance).sum::<i64>(), OPENING * ACCOUNTS as i64, "{answer}");
        let transaction = Transaction::Read { saw, revision: revision(&answer), refused: vec![] };
        self.history.push(Timed { begin, end, transaction });
        true
    }

    fn send(&self, body: &Value) -> (u64, Option<Value>, u64) {
        let begin = self.moments.next();
        let request = self.agent.post(format!("{}/v1/txn", self.url)).header("content-type", "application/json");
        let sent = request.header("thalweg-durability", "disk").send(body.to_string());
        let text = sent.ok().and_then(|mut reply| reply.body_mut().read_to_string().ok());
        let answer = text.map(|text| serde_json::from_str(&text).expect("JSON"));
        (begin, answer, self.moments.next())
    }
}

fn revision(answer: &Value) -> u64 {
    answer["revision"].as_u64().expect("a revision")
}

fn change(answer: &Value, after: Vec<Balance>) -> Change {
    assert_eq!(answer["wrote"], json!(true), "{answer}");
    Change { revision: revision(answer), offset: answer["results"][2]["first"].as_u64().expect("an offset"), after }
}

/// Runs clients until enough transactions are answered, kills the server under them, and collects their transactions.
fn round(node: Node, moments: &Moments, seed: u64, round: u64, wanted: u64) -> Vec<Timed> {
    let answers = Count::default();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let number = round * CLIENTS + number;
            let client = Client::new(&node.url, moments, seed ^ (number + 1), number * 1_000_000);
            let answers = answers.clone();
            thread::spawn(move || client.run(&answers))
        })
        .collect();
    answers.wait_for(wanted);
    node.kill();
    let dead = moments.next();
    let ended = |timed: Timed| {
        let lost = matches!(&timed.transaction, Transaction::Change { outcome: None, .. });
        // Transactions sent after the server was dead had no effect.
        (!lost || timed.begin < dead).then_some(if lost { Timed { end: dead, ..timed } } else { timed })
    };
    clients.into_iter().flat_map(|client| client.join().expect("a client")).filter_map(ended).collect()
}

fn transfer_and_check(backend: &str) {
    let seed = seed(backend);
    let (mut dice, dir, moments) = (Dice::new(seed), tempfile::tempdir().unwrap(), Moments::default());
    let mut history = Vec::new();
    for number in 0..ROUNDS {
        let node = Node::start_with(dir.path(), &["--backend", backend]);
        if number == 0 {
            for account in 0..ACCOUNTS as usize {
                node.cli(&["put", "bank", &key(account), &OPENING.to_string()]).ok();
            }
        }
        history.extend(round(node, &moments, seed, number, 100 + dice.below(200)));
    }
    let node = Node::start_with(dir.path(), &["--backend", backend]);
    let records = node.cli(&["read", "order", "--json"]).ok();
    let order: Vec<u64> = records
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["payload"].as_str().unwrap().parse().unwrap())
        .collect();
    let context = format!("SEED={seed} {backend}");
    if let Err(wrong) = check(&[OPENING; ACCOUNTS as usize], &order, &history) {
        panic!("{context}: {wrong:?}\n{:#?}", about(&wrong, &history));
    }
    let count = |of: fn(&Transaction) -> bool| history.iter().filter(|timed| of(&timed.transaction)).count();
    let changes = count(|transaction| matches!(transaction, Transaction::Change { outcome: Some(_), .. }));
    let refused = count(|transaction| matches!(transaction, Transaction::Read { refused, .. } if !refused.is_empty()));
    assert!(changes > 100 && refused > 20 && order.len() >= changes, "{context}: {changes} changes, {refused} refused");
}

#[test]
fn transfers_are_serializable_over_kills_on_memory() {
    transfer_and_check("memory");
}

#[test]
fn transfers_are_serializable_over_kills_on_lsm() {
    transfer_and_check("lsm");
}

#[test]
fn transfers_are_serializable_over_kills_on_sqlite() {
    transfer_and_check("sqlite");
}

#[test]
fn transfers_are_serializable_over_kills_on_redb() {
    transfer_and_check("redb");
}

/// Returns a transfer of 10 from the first account to the second, done at an offset.
fn done(begin: u64, end: u64, id: u64, offset: u64, after: [i64; 2]) -> Timed {
    let outcome = Some(Change { revision: 10 + offset, offset, after: vec![(0, after[0]), (1, after[1])] });
    let changes = vec![(0, -10), (1, 10)];
    Timed { begin, end, transaction: Transaction::Change { id, changes, expected: vec![], outcome } }
}

/// Returns a transfer whose answer was lost.
fn lost(begin: u64, end: u64, id: u64) -> Timed {
    let changes = vec![(0, -10), (1, 10)];
    Timed { begin, end, transaction: Transaction::Change { id, changes, expected: vec![], outcome: None } }
}

fn read(begin: u64, end: u64, revision: u64, saw: [i64; 2]) -> Timed {
    let saw = vec![(0, saw[0]), (1, saw[1])];
    Timed { begin, end, transaction: Transaction::Read { saw, revision, refused: vec![] } }
}

fn refused(begin: u64, end: u64, revision: u64, saw: [i64; 2], expected: [i64; 2]) -> Timed {
    let Timed { transaction: Transaction::Read { saw, .. }, .. } = read(begin, end, revision, saw) else {
        unreachable!()
    };
    let refused = vec![(0, expected[0]), (1, expected[1])];
    Timed { begin, end, transaction: Transaction::Read { saw, revision, refused } }
}

/// Makes a transfer conditional on both balances.
fn conditional(timed: Timed, balances: [i64; 2]) -> Timed {
    let Transaction::Change { id, changes, outcome, .. } = timed.transaction else { unreachable!() };
    let expected = vec![(0, balances[0]), (1, balances[1])];
    Timed { transaction: Transaction::Change { id, changes, expected, outcome }, ..timed }
}

const BOTH: [i64; 2] = [100, 100];

#[test]
fn right_histories_are_explained() {
    let fine: Vec<(&[u64], Vec<Timed>)> = vec![
        (&[], vec![read(1, 2, 9, [100, 100])]),
        (&[1, 2], vec![done(1, 2, 1, 0, [90, 110]), done(3, 4, 2, 1, [80, 120]), read(5, 6, 11, [80, 120])]),
        // Concurrent transfers; the stream determines their order.
        (&[2, 1], vec![done(1, 4, 1, 1, [80, 120]), done(2, 3, 2, 0, [90, 110]), read(1, 9, 10, [90, 110])]),
        // A lost transfer may have happened or not; its revision is unknown.
        (&[1], vec![lost(1, 8, 1), read(2, 3, 10, [90, 110]), read(4, 5, 10, [90, 110])]),
        (&[1], vec![lost(1, 8, 1), read(2, 3, 9, [100, 100])]),
        (&[], vec![lost(1, 8, 1), read(9, 10, 9, [100, 100])]),
        (&[1], vec![conditional(done(1, 2, 1, 0, [90, 110]), BOTH), refused(3, 4, 10, [90, 110], BOTH)]),
    ];
    for (order, history) in fine {
        assert_eq!(check(&BOTH, order, &history), Ok(()), "{history:?}");
    }
}

#[test]
fn wrong_histories_are_found_out() {
    let wrong: Vec<(BankViolation, &[u64], Vec<Timed>)> = vec![
        (BankViolation::Misplaced { id: 1 }, &[], vec![done(1, 2, 1, 0, [90, 110])]),
        (BankViolation::Misplaced { id: 2 }, &[2, 1], vec![done(1, 9, 1, 1, [80, 120]), done(2, 8, 2, 1, [80, 120])]),
        (BankViolation::Stray { id: 7 }, &[7], vec![]),
        (BankViolation::Stray { id: 1 }, &[1, 1], vec![lost(1, 2, 1)]),
        // A lost update: both transfers began from the same balance.
        (BankViolation::Outcome { id: 2 }, &[1, 2], vec![done(1, 4, 1, 0, [90, 110]), done(2, 3, 2, 1, [90, 110])]),
        (
            BankViolation::Expectation { id: 2 },
            &[1, 2],
            vec![conditional(done(1, 4, 1, 0, [90, 110]), BOTH), conditional(done(2, 3, 2, 1, [90, 110]), BOTH)],
        ),
        // The first transfer ended before the second began, but follows it in the order.
        (BankViolation::RealTime { id: 1 }, &[2, 1], vec![done(1, 2, 1, 1, [80, 120]), done(3, 4, 2, 0, [90, 110])]),
        // A read that saw half of a transaction.
        (BankViolation::Read { transaction: 1 }, &[1], vec![done(1, 5, 1, 0, [90, 110]), read(2, 3, 10, [90, 100])]),
        // A stale read, by its revision and by real time.
        (BankViolation::Read { transaction: 1 }, &[1], vec![done(1, 2, 1, 0, [90, 110]), read(1, 9, 10, [100, 100])]),
        (BankViolation::Read { transaction: 1 }, &[1], vec![done(1, 2, 1, 0, [90, 110]), read(3, 4, 9, [100, 100])]),
        // A lost transfer that was seen, and then never happened.
        (BankViolation::Read { transaction: 1 }, &[], vec![lost(1, 8, 1), read(2, 3, 10, [90, 110])]),
        // A lost transfer that happened after its server was dead.
        (BankViolation::Read { transaction: 1 }, &[1], vec![lost(1, 4, 1), read(5, 6, 9, [100, 100])]),
        // A rejected transfer whose condition was met throughout.
        (BankViolation::Read { transaction: 0 }, &[], vec![refused(1, 2, 9, BOTH, BOTH)]),
        (
            BankViolation::ReadBack { transaction: 2 },
            &[1],
            vec![done(1, 9, 1, 0, [90, 110]), read(2, 3, 10, [90, 110]), read(4, 5, 9, [100, 100])],
        ),
    ];
    for (complaint, order, history) in wrong {
        assert_eq!(check(&BOTH, order, &history), Err(complaint), "{history:?}");
    }
    let mut back = vec![done(1, 9, 1, 0, [90, 110]), done(2, 8, 2, 1, [80, 120])];
    if let Transaction::Change { outcome: Some(outcome), .. } = &mut back[1].transaction {
        outcome.revision = 10;
    }
    assert_eq!(check(&BOTH, &[1, 2], &back), Err(BankViolation::Revision { id: 2 }));
}
