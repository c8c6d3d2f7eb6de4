//! Guarantees of consumer groups, and the check of what members have seen against them.
//!
//! Stamps of one shared counter order the events:
//! * every record of the stream was settled, by an ack that was acknowledged or whose answer was lost;
//! * a record has at most one acknowledged ack, and no fetch that began after its answer delivers the record;
//! * the number of an attempt is assigned once, and the deliveries of a record increase with its attempts;
//! * delivered records equal those of the stream;
//! * in order per key, a record is delivered only after an ack of every earlier record of its key was sent, and no
//!   earlier one is delivered after it.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use serde_json::Value;

/// Order in which a group delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Competing,
    #[allow(dead_code, reason = "each test program uses a part")]
    PerKey,
}

#[derive(Debug)]
pub struct Delivered {
    /// Stamps before the request and after the answer.
    pub asked: u64,
    pub answered: u64,
    pub attempt: u64,
    pub messages: Vec<Message>,
}

impl Delivered {
    /// Returns the delivery that an answer to a fetch has.
    pub fn of(asked: u64, answered: u64, answer: &Value) -> Self {
        let message = |message: &Value| Message {
            offset: message["offset"].as_u64().unwrap(),
            deliveries: message["deliveries"].as_u64().unwrap(),
            payload: message["payload"].as_str().unwrap().to_owned(),
            key: message["key"].as_str().unwrap().to_owned(),
        };
        let messages = answer["messages"].as_array().unwrap().iter().map(message).collect();
        Self { asked, answered, attempt: answer["attempt"].as_u64().unwrap_or_default(), messages }
    }
}

#[derive(Clone, Debug)]
pub struct Message {
    pub offset: u64,
    pub deliveries: u64,
    pub payload: String,
    pub key: String,
}

#[derive(Debug)]
pub struct Acked {
    pub sent: u64,
    pub offsets: Range<u64>,
    pub answer: AckAnswer,
}

#[derive(Debug)]
pub enum AckAnswer {
    /// The whole range was settled, with the stamp after the answer.
    Settled(u64),
    /// Part of the range had lapsed; the test does not determine which.
    Lapsed,
    Nothing,
}

/// Observations of one member.
#[derive(Debug, Default)]
pub struct Seen {
    pub delivered: Vec<Delivered>,
    pub acked: Vec<Acked>,
}

/// Returns the runs of consecutive offsets.
pub fn runs(messages: &[Message]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for message in messages {
        match runs.last_mut() {
            Some(run) if run.end == message.offset => run.end += 1,
            _ => runs.push(message.offset..message.offset + 1),
        }
    }
    runs
}

/// Checks what the members of a group have seen against the records of its stream, in the order of their offsets.
pub fn check(group: &str, records: &[Value], seen: &[Seen], order: Order) {
    let deliveries: Vec<&Delivered> = seen.iter().flat_map(|seen| &seen.delivered).collect();
    let acks: Vec<&Acked> = seen.iter().flat_map(|seen| &seen.acked).collect();
    let mut attempts: Vec<u64> = deliveries.iter().filter(|d| !d.messages.is_empty()).map(|d| d.attempt).collect();
    let count = attempts.len();
    attempts.sort_unstable();
    attempts.dedup();
    assert_eq!(attempts.len(), count, "{group}: an attempt's number was given twice");

    // By offset: deliveries as (attempt, deliveries, asked, answered), the first stamp of an ack, the stamp of its
    // answer.
    let mut delivered: BTreeMap<u64, Vec<(u64, u64, u64, u64)>> = BTreeMap::new();
    let (mut ack_sent, mut acked_at): (HashMap<u64, u64>, HashMap<u64, u64>) = (HashMap::new(), HashMap::new());
    for delivery in &deliveries {
        for message in &delivery.messages {
            let record = &records[message.offset as usize];
            assert_eq!(record["offset"].as_u64(), Some(message.offset));
            assert_eq!(
                (record["payload"].as_str(), record["key"].as_str()),
                (Some(&*message.payload), Some(&*message.key)),
                "{group}: offset {}",
                message.offset
            );
            let facts = (delivery.attempt, message.deliveries, delivery.asked, delivery.answered);
            delivered.entry(message.offset).or_default().push(facts);
        }
    }
    for ack in acks {
        for offset in ack.offsets.clone() {
            let first = ack_sent.entry(offset).or_insert(ack.sent);
            *first = ack.sent.min(*first);
            if let AckAnswer::Settled(at) = ack.answer {
                assert_eq!(acked_at.insert(offset, at), None, "{group}: offset {offset} was acked twice");
            }
        }
    }
    for (offset, deliveries) in &mut delivered {
        deliveries.sort_unstable();
        for pair in deliveries.windows(2) {
            assert!(pair[0].1 < pair[1].1, "{group}: offset {offset}: deliveries do not count up: {deliveries:?}");
        }
        if let Some(answer) = acked_at.get(offset) {
            let late = deliveries.iter().find(|(.., asked, _)| asked > answer);
            assert_eq!(late, None, "{group}: offset {offset} was delivered after it was acked at {answer}");
        }
    }
    for offset in 0..records.len() as u64 {
        assert!(delivered.contains_key(&offset), "{group}: offset {offset} was never delivered to anybody who knows");
        assert!(ack_sent.contains_key(&offset), "{group}: offset {offset} was settled by nobody");
    }
    if order == Order::PerKey {
        check_order(records, &delivered, &ack_sent);
    }
    let again = delivered.values().filter(|deliveries| deliveries.len() > 1).count();
    assert!(again > 3, "{group}: only {again} records were delivered again");
}

fn check_order(records: &[Value], delivered: &BTreeMap<u64, Vec<(u64, u64, u64, u64)>>, ack_sent: &HashMap<u64, u64>) {
    let mut by_key: HashMap<&str, Vec<u64>> = HashMap::new();
    for (offset, record) in records.iter().enumerate() {
        by_key.entry(record["key"].as_str().unwrap()).or_default().push(offset as u64);
    }
    for offsets in by_key.values() {
        for pair in offsets.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            let first_answer = delivered[&after].iter().map(|(.., answered)| *answered).min().unwrap();
            assert!(ack_sent[&before] < first_answer, "{after} was delivered before {before} was acked");
            let late = delivered[&before].iter().find(|(.., asked, _)| *asked > first_answer);
            assert_eq!(late, None, "{before} was delivered after {after}");
        }
    }
}
