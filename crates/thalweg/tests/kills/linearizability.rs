//! Puts, gets, compare-and-sets and deletes by concurrent clients with kill -9 in between: each key's history is
//! linearizable. An operation in flight at a kill happened before the kill or never.
//!
//! The checker is `thalweg_sim::linear`; this file also tests it with constructed histories, valid and invalid ones.

use std::{
    collections::{BTreeMap, HashMap},
    thread,
};

use thalweg_sim::linear::{
    ClientAnswer, Timed, check,
    register::{Action, Answer, Register},
};

use crate::{
    clock::{Dice, Moments, seed},
    node::{Node, PATIENCE, count::Count},
};

const CLIENTS: u64 = 6;
const KEYS: u64 = 3;
const ROUNDS: u64 = 8;

/// An operation on a key, with the revision in its answer.
#[derive(Clone, Debug)]
struct Event {
    key: u64,
    begin: u64,
    /// End of the operation; `None` if it ended when the server was dead.
    end: Option<u64>,
    action: Action,
    answer: Answer,
    revision: Option<u64>,
}

/// A client that remembers the last known state of each key, and bases its compare-and-sets on it.
struct Client {
    agent: ureq::Agent,
    url: String,
    moments: Moments,
    dice: Dice,
    /// Value and revision by key; `None` for a key without a value.
    known: HashMap<u64, Option<(u64, u64)>>,
    /// Next value to write; no two writes use the same.
    next_value: u64,
    events: Vec<Event>,
}

/// The relevant parts of a reply.
struct Reply {
    status: u16,
    revision: Option<u64>,
    body: String,
}

impl Client {
    fn new(url: &str, moments: &Moments, seed: u64, first_value: u64) -> Self {
        // A client stops when a request fails. A disk that stands still for seconds must not stop all of them.
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE));
        let agent = config.http_status_as_error(false).build().into();
        let (dice, known) = (Dice::new(seed), HashMap::new());
        Self {
            agent,
            url: url.to_owned(),
            moments: moments.clone(),
            dice,
            known,
            next_value: first_value,
            events: Vec::new(),
        }
    }

    /// Runs until the server is gone.
    fn run(mut self, acks: &Count) -> Vec<Event> {
        while self.step() {
            acks.add();
        }
        self.events
    }

    fn step(&mut self) -> bool {
        let key = self.dice.below(KEYS);
        let known = self.known.get(&key).copied();
        let value = self.next_value;
        self.next_value += 1;
        let (action, tag) = match (self.dice.below(20), known) {
            (0..5, _) => (Action::Put(value), None),
            (5..11, _) => (Action::Get, None),
            (11..16, Some(Some((held, revision)))) => {
                (Action::Swap { expect: Some(held), put: value }, Some(("if-match", format!("\"{revision}\""))))
            }
            (16, Some(Some((held, revision)))) => {
                (Action::DeleteIf(held), Some(("if-match", format!("\"{revision}\""))))
            }
            (17..19, _) => (Action::Swap { expect: None, put: value }, Some(("if-none-match", "*".to_owned()))),
            (19, _) => (Action::Delete, None),
            _ => (Action::Get, None),
        };
        let begin = self.moments.next();
        let sent = self.send(key, action, tag);
        let end = self.moments.next();
        let Some(reply) = sent else {
            let answer = Answer::Lost;
            self.events.push(Event { key, begin, end: None, action, answer, revision: None });
            return false;
        };
        let answer = answer(action, &reply);
        let revision = reply.revision.filter(|_| answer != Answer::Refused);
        match (action, answer) {
            (Action::Get, Answer::Value(value)) => drop(self.known.insert(key, value.zip(revision))),
            (Action::Put(value) | Action::Swap { put: value, .. }, Answer::Done) => {
                self.known.insert(key, Some(value).zip(revision));
            }
            (Action::Delete | Action::DeleteIf(_), Answer::Done) => drop(self.known.insert(key, None)),
            // The client must read the key before it knows its state again.
            _ => drop(self.known.remove(&key)),
        }
        self.events.push(Event { key, begin, end: Some(end), action, answer, revision });
        true
    }

    fn send(&self, key: u64, action: Action, tag: Option<(&str, String)>) -> Option<Reply> {
        let url = format!("{}/v1/kv/registers/{key}", self.url);
        let sent = match action {
            Action::Get => self.agent.get(url).call(),
            Action::Delete | Action::DeleteIf(_) => {
                let request = self.agent.delete(url).header("thalweg-durability", "disk");
                tag.iter().fold(request, |request, (name, tag)| request.header(*name, tag)).call()
            }
            Action::Put(value) | Action::Swap { put: value, .. } => {
                // Every eleventh value is large enough to stay in the log.
                let padding = if value % 11 == 0 { 5000 } else { 0 };
                let request = self.agent.put(url).header("thalweg-durability", "disk");
                let request = tag.iter().fold(request, |request, (name, tag)| request.header(*name, tag));
                request.send(format!("{value} {}", "x".repeat(padding)))
            }
        };
        let mut reply = sent.ok()?;
        let revision = reply.headers().get("thalweg-revision").and_then(|value| value.to_str().ok()?.parse().ok());
        Some(Reply { status: reply.status().as_u16(), revision, body: reply.body_mut().read_to_string().ok()? })
    }
}

fn answer(action: Action, reply: &Reply) -> Answer {
    match (action, reply.status) {
        (Action::Get, 200) => {
            let value = reply.body.split(' ').next().and_then(|digits| digits.parse().ok());
            Answer::Value(Some(value.unwrap_or_else(|| panic!("a value that nobody put: {:?}", reply.body))))
        }
        (Action::Get, 404) => Answer::Value(None),
        (Action::Swap { .. } | Action::DeleteIf(_), 412) => {
            let json: serde_json::Value = serde_json::from_str(&reply.body).expect("JSON");
            // The answer has a revision, so the key had a value, but the answer does not contain it.
            if json["revision"].is_null() { Answer::RefusedAt(None) } else { Answer::Refused }
        }
        (action, 204) if action != Action::Get => Answer::Done,
        (action, status) => panic!("{action:?} was answered {status}: {}", reply.body),
    }
}

/// Runs clients until enough operations are answered, kills the server under them, and collects their operations.
fn round(node: Node, moments: &Moments, seed: u64, round: u64, answers: u64) -> Vec<Event> {
    let count = Count::default();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let first_value = 1 + (round * CLIENTS + number) * 1_000_000;
            let client = Client::new(&node.url, moments, seed ^ (round * CLIENTS + number + 1), first_value);
            let count = count.clone();
            thread::spawn(move || client.run(&count))
        })
        .collect();
    count.wait_for(answers);
    node.kill();
    let dead = moments.next();
    let events = clients.into_iter().flat_map(|client| client.join().expect("a client"));
    // Operations sent after the kill had no effect. All lost operations end at that moment.
    events.filter(|event| event.end.is_some() || event.begin < dead).collect()
}

/// Returns each key's history. Moments are spread, so that the lost operations of one server end at distinct moments.
fn histories(rounds: &[Vec<Event>]) -> BTreeMap<u64, Vec<Timed<(Action, Answer)>>> {
    const SPREAD: u64 = 2 * CLIENTS;
    let mut histories: BTreeMap<u64, Vec<Timed<_>>> = BTreeMap::new();
    for events in rounds {
        let last = events.iter().map(|event| event.end.unwrap_or(event.begin)).max().unwrap_or(0);
        let mut lost = 0;
        for event in events {
            let end = event.end.map(|end| end * SPREAD).unwrap_or_else(|| {
                lost += 1;
                last * SPREAD + lost
            });
            let client_answer = if event.end.is_some() { ClientAnswer::Answered } else { ClientAnswer::Nothing };
            let operation = (event.action, event.answer);
            // A get without an answer allows no conclusion.
            if operation != (Action::Get, Answer::Lost) {
                let timed = Timed { begin: event.begin * SPREAD, end, client_answer, operation };
                histories.entry(event.key).or_default().push(timed);
            }
        }
    }
    histories
}

/// Checks the revisions: each value has one, and a later write has a higher one.
fn check_revisions(rounds: &[Vec<Event>], context: &str) {
    let mut of_value: HashMap<u64, u64> = HashMap::new();
    let mut written: Vec<(u64, u64, u64)> = Vec::new();
    for event in rounds.iter().flatten() {
        let Some(revision) = event.revision else { continue };
        let value = match (event.action, event.answer) {
            (Action::Put(value) | Action::Swap { put: value, .. }, Answer::Done) | (_, Answer::Value(Some(value))) => {
                Some(value)
            }
            _ => None,
        };
        if let Some(value) = value {
            let first = *of_value.entry(value).or_insert(revision);
            assert_eq!(first, revision, "{context}: value {value} has two revisions");
        }
        if event.answer == Answer::Done {
            written.push((event.begin, event.end.expect("it was answered"), revision));
        }
    }
    let mut ends: Vec<_> = written.iter().map(|&(_, end, revision)| (end, revision)).collect();
    ends.sort_unstable();
    written.sort_unstable();
    let (mut ended, mut highest) = (ends.into_iter().peekable(), 0);
    for (begin, _, revision) in written {
        while let Some((_, before)) = ended.next_if(|(end, _)| *end < begin) {
            highest = highest.max(before);
        }
        assert!(revision > highest, "{context}: revision {revision} was given after {highest}");
    }
}

fn kill_and_check(backend: &str) {
    let seed = seed(backend);
    let (mut dice, dir, moments) = (Dice::new(seed), tempfile::tempdir().unwrap(), Moments::default());
    let mut rounds = Vec::new();
    for number in 0..ROUNDS {
        let node = Node::start_with(dir.path(), &["--backend", backend]);
        if number == 0 {
            node.cli(&["put", "registers", "other", "makes the keyspace"]).ok();
        }
        rounds.push(round(node, &moments, seed, number, 100 + dice.below(250)));
    }
    let context = format!("SEED={seed} {backend}");
    let histories = histories(&rounds);
    assert_eq!(histories.len() as u64, KEYS);
    for (key, history) in &histories {
        let happened = |answer| history.iter().filter(|timed| timed.operation.1 == answer).count();
        assert!(happened(Answer::Done) > 20 && happened(Answer::Refused) > 0, "{context}: too little on key {key}");
        if let Err(unexplained) = check::<Register>(None, history) {
            let timed = &history[unexplained.operation];
            let around: Vec<_> =
                history.iter().filter(|other| other.begin < timed.end && other.end > timed.begin).collect();
            panic!(
                "{context}: key {key}: {timed:?} can't be; before it was {:?}; beside it: {around:#?}",
                unexplained.states
            );
        }
    }
    check_revisions(&rounds, &context);
}

#[test]
fn each_key_is_linearizable_over_kills_on_memory() {
    kill_and_check("memory");
}

#[test]
fn each_key_is_linearizable_over_kills_on_lsm() {
    kill_and_check("lsm");
}

#[test]
fn each_key_is_linearizable_over_kills_on_sqlite() {
    kill_and_check("sqlite");
}

#[test]
fn each_key_is_linearizable_over_kills_on_redb() {
    kill_and_check("redb");
}

/// `(begin, end, action, answer)`; a lost operation ends when its server is dead.
type Short = (u64, u64, Action, Answer);

fn history(operations: &[Short]) -> Vec<Timed<(Action, Answer)>> {
    let client_answer = |answer| if answer == Answer::Lost { ClientAnswer::Nothing } else { ClientAnswer::Answered };
    let timed = |&(begin, end, action, answer): &Short| Timed {
        begin,
        end,
        client_answer: client_answer(answer),
        operation: (action, answer),
    };
    operations.iter().map(timed).collect()
}

use Action::{Delete, DeleteIf, Get, Put, Swap};
use Answer::{Done, Lost, Refused, RefusedAt, Value};

#[test]
fn right_histories_are_explained() {
    let fine: &[&[Short]] = &[
        &[],
        &[(1, 2, Get, Value(None)), (3, 4, Put(1), Done), (5, 6, Get, Value(Some(1)))],
        // A get concurrent with a put may see it or not, and either of two concurrent puts may be the last.
        &[(1, 10, Put(1), Done), (2, 3, Get, Value(None)), (4, 5, Get, Value(Some(1)))],
        &[(1, 10, Put(1), Done), (2, 9, Put(2), Done), (11, 12, Get, Value(Some(1)))],
        &[(1, 10, Put(1), Done), (2, 9, Put(2), Done), (11, 12, Get, Value(Some(2)))],
        // One of two compare-and-sets fails.
        &[(1, 5, Swap { expect: None, put: 1 }, Done), (2, 6, Swap { expect: None, put: 2 }, RefusedAt(Some(1)))],
        // A lost put may have happened, not happened, or happened after others.
        &[(1, 8, Put(1), Lost), (2, 3, Get, Value(Some(1))), (9, 10, Get, Value(Some(1)))],
        &[(1, 8, Put(1), Lost), (2, 3, Get, Value(None)), (9, 10, Get, Value(None))],
        &[(1, 8, Put(1), Lost), (2, 3, Put(2), Done), (4, 5, Get, Value(Some(2))), (9, 10, Get, Value(Some(1)))],
        &[(1, 2, Put(1), Done), (3, 4, DeleteIf(1), Done), (5, 6, Delete, Done), (7, 8, Get, Value(None))],
        // Only one order of three concurrent operations explains the get.
        &[
            (1, 20, Put(1), Done),
            (2, 21, Swap { expect: Some(1), put: 2 }, Done),
            (3, 22, Swap { expect: Some(2), put: 3 }, Done),
            (4, 5, Get, Value(Some(3))),
        ],
    ];
    for operations in fine {
        assert_eq!(check::<Register>(None, &history(operations)), Ok(()), "{operations:?}");
    }
}

#[test]
fn wrong_histories_are_found_out_and_the_operation_named() {
    let wrong: &[(usize, &[Short])] = &[
        // A stale read: the put was acknowledged before it.
        (1, &[(1, 2, Put(1), Done), (3, 4, Get, Value(None))]),
        // A value that no client put.
        (0, &[(1, 2, Get, Value(Some(9)))]),
        // An acknowledged value is gone after a restart.
        (2, &[(1, 2, Put(1), Done), (3, 4, Put(2), Done), (5, 6, Get, Value(Some(1)))]),
        // Two successful compare-and-sets from the same state: a lost update.
        (1, &[(1, 5, Swap { expect: None, put: 1 }, Done), (2, 6, Swap { expect: None, put: 2 }, Done)]),
        // A rejected swap, although its expected value was present throughout.
        (1, &[(1, 2, Put(1), Done), (3, 4, Swap { expect: Some(1), put: 2 }, Refused)]),
        // A rejected delete with a value that the key never had.
        (1, &[(1, 2, Put(1), Done), (3, 4, DeleteIf(7), RefusedAt(Some(8)))]),
        // A swap that was rejected but took effect.
        (2, &[(1, 2, Put(1), Done), (3, 4, Swap { expect: None, put: 2 }, Refused), (5, 6, Get, Value(Some(2)))]),
        // A newer value and then an older one, concurrent with a long put.
        (2, &[(1, 10, Put(1), Done), (2, 3, Get, Value(Some(1))), (4, 5, Get, Value(None))]),
        // A lost put that was seen and then undone.
        (2, &[(1, 8, Put(1), Lost), (2, 3, Get, Value(Some(1))), (9, 10, Get, Value(None))]),
        // A lost put that is absent after the restart and appears later.
        (2, &[(1, 4, Put(1), Lost), (5, 6, Get, Value(None)), (7, 8, Get, Value(Some(1)))]),
        // A deleted value that reappears.
        (2, &[(1, 2, Put(1), Done), (3, 4, Delete, Done), (5, 6, Get, Value(Some(1)))]),
    ];
    for (operation, operations) in wrong {
        let unexplained = check::<Register>(None, &history(operations)).expect_err(&format!("{operations:?}"));
        assert_eq!(unexplained.operation, *operation, "{operations:?}");
    }
}

/// Returns true if any order of the operations within their times explains them, with or without the lost ones.
fn explained_by_some_order(left: &[Timed<(Action, Answer)>], state: Option<u64>) -> bool {
    use thalweg_sim::linear::Model;
    if left.iter().all(|timed| timed.client_answer == ClientAnswer::Nothing) {
        return true;
    }
    left.iter().enumerate().any(|(at, timed)| {
        let others: Vec<_> =
            left.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, o)| o.clone()).collect();
        let in_time =
            others.iter().all(|other| other.client_answer == ClientAnswer::Nothing || other.end > timed.begin);
        let after = Register::step(&state, &timed.operation).filter(|_| in_time);
        after.is_some_and(|after| explained_by_some_order(&drop_ended(&others, timed), after))
    })
}

/// Removes lost operations that ended before the start of the one that has just happened.
fn drop_ended(left: &[Timed<(Action, Answer)>], happened: &Timed<(Action, Answer)>) -> Vec<Timed<(Action, Answer)>> {
    let may = |timed: &&Timed<_>| timed.client_answer == ClientAnswer::Answered || timed.end > happened.begin;
    left.iter().filter(may).cloned().collect()
}

#[test]
fn it_agrees_with_trying_every_order_on_small_histories() {
    let seed = seed("small histories");
    let mut dice = Dice::new(seed);
    let (mut explained, mut wrong) = (0, 0);
    for _ in 0..4000 {
        let count = 2 + dice.below(4) as usize;
        let mut moments: Vec<u64> = (0..2 * count as u64).collect();
        (1..moments.len()).rev().for_each(|at| moments.swap(at, dice.below(at as u64 + 1) as usize));
        let operations: Vec<_> = moments
            .chunks(2)
            .map(|pair| {
                let value = 1 + dice.below(3);
                let held = (dice.below(3) > 0).then(|| 1 + dice.below(3));
                let (action, answers) = match dice.below(5) {
                    0 | 1 => (Get, vec![Value(held)]),
                    2 => (Put(value), vec![Done, Lost]),
                    3 => (Delete, vec![Done, Lost]),
                    _ => (Swap { expect: held, put: value }, vec![Done, Refused, RefusedAt(Some(value)), Lost]),
                };
                let answer = answers[dice.below(answers.len() as u64) as usize];
                (pair[0].min(pair[1]), pair[0].max(pair[1]), action, answer)
            })
            .collect();
        let history = history(&operations);
        let (found, expected) = (check::<Register>(None, &history).is_ok(), explained_by_some_order(&history, None));
        assert_eq!(found, expected, "SEED={seed} {operations:?}");
        *if found { &mut explained } else { &mut wrong } += 1;
    }
    assert!(explained > 300 && wrong > 300, "{explained} explained, {wrong} not");
}
