//! A history of transactions by concurrent clients with kill -9 in between, explained by one serial order.
//!
//! Each client replaces a register's value by one of its own, on condition that the register still has the value that
//! the client last saw. The same transaction appends the new value and the replaced one to a stream, and adds 1 to a
//! counter. The stream therefore records the order of all swaps, including those whose answer was lost, and the test
//! checks against it:
//! * each swap replaced the value of the previous swap (none was lost, none used an outdated value);
//! * an acknowledged swap is in the stream, at the offset and with the count of its answer;
//! * a rejected swap is not, and the value in its answer is one that the register had;
//! * a client's swaps are in the order in which the client made them.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use serde_json::{Value, json};

use crate::node::{Node, PATIENCE, count::Count};

const CLIENTS: u64 = 4;
const ROUNDS: u64 = 6;

/// Answer to a swap.
#[derive(Debug)]
enum AttemptAnswer {
    /// The swap happened, at this offset of the stream and with this value of the counter.
    Done { offset: u64, count: i64 },
    /// The condition was not met; the register had this value.
    Refused { held: Option<String> },
    /// The answer was lost.
    Nothing,
}

#[derive(Debug)]
struct Attempt {
    value: String,
    answer: AttemptAnswer,
}

fn transaction(value: &str, held: Option<&str>) -> String {
    let expect = held.map_or(json!("absent"), |held| json!({ "value": held }));
    json!({
        "conditions": [{"keyspace": "r", "key": "register", "expect": expect}],
        "then": [
            {"op": "put", "keyspace": "r", "key": "register", "value": value},
            {"op": "add", "keyspace": "r", "key": "count", "delta": 1},
            {"op": "append", "stream": "order", "records": [{"key": held, "payload": value}]},
        ],
        "else": [{"op": "get", "keyspace": "r", "key": "register"}],
    })
    .to_string()
}

/// Swaps until the server is gone. `held` is the value that the client last saw in the register.
fn swap_until_gone(url: &str, name: &str, acks: &Count, stop: &AtomicBool) -> Vec<Attempt> {
    // A client stops when a request fails. A disk that stands still for seconds must not stop all of them.
    let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build();
    let agent: ureq::Agent = config.into();
    let (mut attempts, mut held): (Vec<Attempt>, Option<String>) = (Vec::new(), None);
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        // Every seventh value is large enough to stay in the log, so that its comparison reads the log.
        let value = format!("{name}-{number}{}", if number % 7 == 0 { "x".repeat(5000) } else { String::new() });
        let sent = agent
            .post(format!("{url}/v1/txn"))
            .header("content-type", "application/json")
            .header("thalweg-durability", "disk")
            .send(transaction(&value, held.as_deref()));
        let answer = sent.ok().and_then(|mut reply| reply.body_mut().read_to_string().ok());
        let Some(answer) = answer.and_then(|text| serde_json::from_str::<Value>(&text).ok()) else {
            attempts.push(Attempt { value, answer: AttemptAnswer::Nothing });
            break;
        };
        let answer = if answer["succeeded"] == json!(true) {
            held = Some(value.clone());
            acks.add();
            let offset = answer["results"][2]["first"].as_u64().expect("an offset");
            AttemptAnswer::Done { offset, count: answer["results"][1]["value"].as_i64().expect("a count") }
        } else {
            held = answer["results"][0]["value"].as_str().map(str::to_owned);
            AttemptAnswer::Refused { held: held.clone() }
        };
        attempts.push(Attempt { value, answer });
    }
    attempts
}

/// Runs clients until enough swaps are answered, kills the node under them, and collects their answers.
fn round(node: Node, round: u64, acks_wanted: u64, clients: &mut Vec<Vec<Attempt>>) {
    let (acks, stop) = (Count::default(), Arc::new(AtomicBool::new(false)));
    let swapping: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let (url, acks, stop) = (node.url.clone(), acks.clone(), stop.clone());
            thread::spawn(move || swap_until_gone(&url, &format!("{round}-{client}"), &acks, &stop))
        })
        .collect();
    acks.wait_for(acks_wanted);
    node.kill();
    stop.store(true, Ordering::Relaxed);
    clients.extend(swapping.into_iter().map(|client| client.join().expect("a client")));
}

/// Checks the clients' answers against the order of swaps.
fn check(node: &Node, clients: &[Vec<Attempt>]) {
    let records: Vec<Value> =
        node.cli(&["read", "order", "--json"]).ok().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let order: Vec<&str> = records.iter().map(|record| record["payload"].as_str().unwrap()).collect();
    let mut held: Option<&str> = None;
    for record in &records {
        assert_eq!(record["key"].as_str(), held, "a swap replaced what was not there");
        held = record["payload"].as_str();
    }
    let place: HashMap<&str, usize> = order.iter().enumerate().map(|(at, value)| (*value, at)).collect();
    assert_eq!(place.len(), order.len(), "a swap happened twice");
    let values: HashSet<&str> = clients.iter().flatten().map(|attempt| &*attempt.value).collect();
    assert!(order.iter().all(|value| values.contains(value)), "a swap that nobody made");
    let (mut done, mut refused) = (0, 0);
    for client in clients {
        let mut last = None;
        for Attempt { value, answer } in client {
            let at = place.get(&**value).copied();
            match answer {
                AttemptAnswer::Done { offset, count } => {
                    assert_eq!((at, *count), (Some(*offset as usize), *offset as i64 + 1));
                    done += 1;
                }
                AttemptAnswer::Refused { held } => {
                    assert_eq!(at, None, "a refused swap happened");
                    assert!(held.as_deref().is_none_or(|held| place.contains_key(held)), "shown what never was");
                    refused += 1;
                }
                AttemptAnswer::Nothing => {}
            }
            assert!(at.is_none() || at > last, "a client's swaps are out of order");
            last = at.or(last);
        }
    }
    assert!(done > 100 && refused > 10, "{done} swaps, {refused} refused");
    assert_eq!(node.cli(&["get", "r", "register"]).ok(), held.unwrap());
    assert_eq!(node.cli(&["get", "r", "count"]).ok(), order.len().to_string());
}

#[test]
fn one_order_explains_what_all_clients_were_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut clients = Vec::new();
    for number in 0..ROUNDS {
        round(Node::start(dir.path()), number, 40 + number * 13, &mut clients);
    }
    check(&Node::start(dir.path()), &clients);
}
