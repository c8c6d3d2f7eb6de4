//! A stream and a consumer group beside the registers: producers, readers of the end of the stream, and members of the
//! group, over HTTP, and the check of their histories.
//!
//! The stream must be linearizable. Every acknowledged record has its offset, an append without effect has none, and no
//! append has two. An append that begins after another one has ended has the greater offset. A read of the stream's end
//! shows all records that were acknowledged before it began, and none whose append began after it ended. The guarantees
//! of the group are those of [`group_oracle`](crate::group_oracle).

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    PATIENCE,
    clients::{Shared, says_retry},
    clock::{Dice, Moments},
    group_oracle::{AckAnswer, Acked, Delivered, Order, Seen, check, runs},
    network::Network,
};

pub const STREAM: &str = "jobs";
pub const GROUP: &str = "workers";

/// Longest time of a request, with the wait of a fetch.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses of a producer and of a member, so that the registers' clients and the check of a long run get their time.
const PAUSE: Duration = Duration::from_millis(15);

/// An append.
#[derive(Debug)]
struct Append {
    payload: String,
    begin: u64,
    outcome: AppendOutcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AppendOutcome {
    /// The record has this offset, as the answer says that arrived at this moment.
    At {
        offset: u64,
        end: u64,
    },
    /// The answer says that nothing happened.
    Nothing,
    Unknown,
}

/// A read of the end of the stream.
#[derive(Clone, Copy, Debug)]
struct EndRead {
    begin: u64,
    end: u64,
    /// Offset that the next record gets.
    next: u64,
}

/// Observations of all clients of the stream.
#[derive(Default)]
pub struct Observed {
    appends: Vec<Append>,
    ends: Vec<EndRead>,
    seen: Vec<Seen>,
}

impl Observed {
    pub fn add(&mut self, other: Self) {
        self.appends.extend(other.appends);
        self.ends.extend(other.ends);
        self.seen.extend(other.seen);
    }
}

/// A reply, or the lack of one.
enum Reply {
    Json(u16, Value),
    /// The request had no effect.
    Nothing,
    Unknown,
}

/// Client of one group of clients' node.
pub struct Client {
    number: u64,
    agent: ureq::Agent,
    node: usize,
    moments: Moments,
    dice: Dice,
}

impl Client {
    pub fn new(number: u64, node: usize, moments: Moments, seed: u64) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
        let dice = Dice::new(seed ^ (1000 + number));
        Self { number, agent: config.build().into(), node, moments, dice }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}:7070/v1/streams/{STREAM}{path}", Network::host(self.node))
    }

    fn reply(sent: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Reply {
        let mut reply = match sent {
            Ok(reply) => reply,
            // Nothing was sent.
            Err(ureq::Error::Io(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                return Reply::Nothing;
            }
            Err(ureq::Error::ConnectionFailed) => return Reply::Nothing,
            Err(_) => return Reply::Unknown,
        };
        let status = reply.status().as_u16();
        let Ok(text) = reply.body_mut().read_to_string() else { return Reply::Unknown };
        match status {
            503 if says_retry(&text) => Reply::Nothing,
            507 => Reply::Nothing,
            500..=599 => Reply::Unknown,
            _ => Reply::Json(status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text:?}"))),
        }
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        let request = self.agent.post(self.url(path)).header("content-type", "application/json");
        Self::reply(request.send(body.to_string()))
    }

    fn follow(&mut self, group: usize, shared: &Shared) -> bool {
        self.node = shared.nodes.lock().unwrap()[group];
        !shared.stop.load(Ordering::SeqCst)
    }

    /// Appends records, and reads the end of the stream, until the test stops.
    pub fn produce(mut self, group: usize, shared: &Shared) -> Observed {
        let mut observed = Observed::default();
        for number in 0_u64.. {
            if !self.follow(group, shared) {
                break;
            }
            if self.dice.below(3) == 0 {
                observed.ends.extend(self.read_end());
            } else {
                observed.appends.push(self.append(format!("{}-{number}", self.number)));
            }
            thread::sleep(PAUSE);
        }
        observed
    }

    fn append(&mut self, payload: String) -> Append {
        let body = json!([{ "key": format!("k{}", self.dice.below(4)), "payload": payload }]);
        let begin = self.moments.next();
        let outcome = match self.post("/records", &body) {
            Reply::Json(200 | 201, answer) => {
                let offset = answer["first"].as_u64().unwrap_or_else(|| panic!("no offset: {answer}"));
                AppendOutcome::At { offset, end: self.moments.next() }
            }
            Reply::Json(status, answer) => panic!("an append was answered {status}: {answer}"),
            Reply::Nothing => AppendOutcome::Nothing,
            Reply::Unknown => AppendOutcome::Unknown,
        };
        Append { payload, begin, outcome }
    }

    fn read_end(&self) -> Option<EndRead> {
        let begin = self.moments.next();
        match Self::reply(self.agent.get(self.url("")).call()) {
            Reply::Json(200, answer) => {
                Some(EndRead { begin, end: self.moments.next(), next: answer["next"].as_u64().expect("an offset") })
            }
            Reply::Json(status, answer) => panic!("a read of the end was answered {status}: {answer}"),
            Reply::Nothing | Reply::Unknown => None,
        }
    }

    /// Works on the records of the group until the test stops.
    pub fn work(mut self, group: usize, shared: &Shared) -> Observed {
        let mut seen = Seen::default();
        while self.follow(group, shared) {
            if let Some(delivered) = self.fetch(8, 0.2) {
                self.settle(delivered, &mut seen);
            }
            thread::sleep(PAUSE);
        }
        Observed { seen: vec![seen], ..Observed::default() }
    }

    fn fetch(&self, max_records: u64, wait_seconds: f64) -> Option<Delivered> {
        let asked = self.moments.next();
        let member = format!("m{}", self.number);
        let body = json!({ "member": member, "max_records": max_records, "wait_seconds": wait_seconds });
        match self.post(&format!("/groups/{GROUP}/fetch"), &body) {
            Reply::Json(200, answer) => Some(Delivered::of(asked, self.moments.next(), &answer)),
            Reply::Json(status, answer) => panic!("a fetch was answered {status}: {answer}"),
            Reply::Nothing | Reply::Unknown => None,
        }
    }

    /// Acks most records of a delivery, rejects some, and abandons others.
    fn settle(&mut self, delivered: Delivered, seen: &mut Seen) {
        let (attempt, all) = (delivered.attempt, runs(&delivered.messages));
        if !all.is_empty() {
            seen.delivered.push(delivered);
        }
        for run in all {
            match self.dice.below(10) {
                0 => {}
                1 => {
                    let body = json!({ "attempts": [{ "attempt": attempt, "ranges": [[run.start, run.end - 1]] }] });
                    drop(self.post(&format!("/groups/{GROUP}/nack"), &body));
                }
                _ => self.ack(attempt, run, seen),
            }
        }
    }

    fn ack(&self, attempt: u64, offsets: std::ops::Range<u64>, seen: &mut Seen) {
        let body = json!({ "attempts": [{ "attempt": attempt, "ranges": [[offsets.start, offsets.end - 1]] }] });
        let sent = self.moments.next();
        let answer = match self.post(&format!("/groups/{GROUP}/ack"), &body) {
            Reply::Json(200, answer) if answer["settled"].as_u64() == Some(offsets.end - offsets.start) => {
                AckAnswer::Settled(self.moments.next())
            }
            Reply::Json(200, _) => AckAnswer::Lapsed,
            Reply::Json(status, answer) => panic!("an ack was answered {status}: {answer}"),
            Reply::Nothing | Reply::Unknown => AckAnswer::Nothing,
        };
        seen.acked.push(Acked { sent, offsets, answer });
    }

    /// Settles all remaining records of the group, and returns its description.
    pub fn drain(self) -> (Observed, Value) {
        let mut seen = Seen::default();
        // Only a pause without a record is bounded.
        let mut until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until, "no record came for {PATIENCE:?}: {} came", seen.delivered.len());
            let info = match Self::reply(self.agent.get(self.url(&format!("/groups/{GROUP}"))).call()) {
                Reply::Json(200, info) => info,
                Reply::Json(status, answer) => panic!("a description was answered {status}: {answer}"),
                Reply::Nothing | Reply::Unknown => continue,
            };
            if info["lag"] == json!(0) && info["pending"] == json!(0) {
                return (Observed { seen: vec![seen], ..Observed::default() }, info);
            }
            let Some(delivered) = self.fetch(1000, 1.0) else { continue };
            for run in runs(&delivered.messages) {
                self.ack(delivered.attempt, run, &mut seen);
                until = Instant::now() + PATIENCE;
            }
            if !delivered.messages.is_empty() {
                seen.delivered.push(delivered);
            }
        }
    }
}

impl Observed {
    /// Checks everything against the records of the stream, in the order of their offsets, and the group's description.
    pub fn check(&self, context: &str, records: &[Value], info: &Value) {
        let offsets = self.check_appends(context, records);
        self.check_order(context, &offsets);
        self.check_ends(context, records.len(), &offsets);
        check(context, records, &self.seen, Order::Competing);
        assert_eq!(info["acked"].as_u64(), Some(records.len() as u64), "{context}: each record is acked once: {info}");
        let count =
            |of: &dyn Fn(AppendOutcome) -> bool| self.appends.iter().filter(|append| of(append.outcome)).count();
        let acknowledged = count(&|outcome| matches!(outcome, AppendOutcome::At { .. }));
        println!(
            "stream: {} records, {acknowledged} acknowledged, {} appends of unknown outcome, {} reads of the end; group: {} \
             redeliveries",
            records.len(),
            count(&|outcome| outcome == AppendOutcome::Unknown),
            self.ends.len(),
            info["redelivered"],
        );
        assert!(acknowledged > 50 && self.ends.len() > 20, "{context}: too little happened");
    }

    /// Checks the records themselves. Returns the offset of each append that is in the stream.
    fn check_appends(&self, context: &str, records: &[Value]) -> Vec<Option<u64>> {
        let mut at: HashMap<&str, u64> = HashMap::new();
        for (offset, record) in records.iter().enumerate() {
            assert_eq!(record["offset"].as_u64(), Some(offset as u64), "{context}: no offset is missing");
            let payload = record["payload"].as_str().expect("a payload");
            assert_eq!(at.insert(payload, offset as u64), None, "{context}: {payload} was appended twice");
        }
        let sent: HashSet<&str> = self.appends.iter().map(|append| append.payload.as_str()).collect();
        let strange: Vec<_> = at.keys().filter(|payload| !sent.contains(*payload)).collect();
        assert!(strange.is_empty(), "{context}: nobody appended {strange:?}");
        let offset_of = |append: &Append| {
            let found = at.get(append.payload.as_str()).copied();
            match append.outcome {
                AppendOutcome::At { offset, .. } => assert_eq!(found, Some(offset), "{context}: {append:?} is lost"),
                AppendOutcome::Nothing => assert_eq!(found, None, "{context}: {append:?} had an effect"),
                AppendOutcome::Unknown => {}
            }
            found
        };
        self.appends.iter().map(offset_of).collect()
    }

    /// Checks that the order of the offsets is one in which the appends can have happened.
    fn check_order(&self, context: &str, offsets: &[Option<u64>]) {
        let of = |append: &Append| match append.outcome {
            AppendOutcome::At { offset, end } => Some((end, offset)),
            AppendOutcome::Nothing | AppendOutcome::Unknown => None,
        };
        let mut ended: Vec<_> = self.appends.iter().filter_map(of).collect();
        ended.sort_unstable();
        let mut begun: Vec<_> =
            self.appends.iter().zip(offsets).filter_map(|(a, at)| Some((a.begin, (*at)?))).collect();
        begun.sort_unstable();
        let (mut ended, mut highest) = (ended.into_iter().peekable(), None);
        for (begin, offset) in begun {
            while let Some((_, before)) = ended.next_if(|(end, _)| *end < begin) {
                highest = highest.max(Some(before));
            }
            assert!(highest < Some(offset), "{context}: the record at {offset} follows that at {highest:?}");
        }
    }

    /// Checks the reads of the stream's end.
    fn check_ends(&self, context: &str, records: usize, offsets: &[Option<u64>]) {
        // By offset: moments at which the append of the record began, and ended.
        let mut begun = vec![0; records];
        let mut ended = Vec::new();
        for (append, offset) in self.appends.iter().zip(offsets) {
            if let Some(offset) = offset {
                begun[*offset as usize] = append.begin;
            }
            if let AppendOutcome::At { offset, end } = append.outcome {
                ended.push((end, offset + 1));
            }
        }
        // Reads show what earlier reads have shown, too.
        ended.extend(self.ends.iter().map(|read| (read.end, read.next)));
        ended.sort_unstable();
        // Latest moment at which the append of any record up to this one began.
        let mut latest = begun;
        for at in 1..latest.len() {
            latest[at] = latest[at].max(latest[at - 1]);
        }
        let mut reads = self.ends.clone();
        reads.sort_unstable_by_key(|read| read.begin);
        let (mut ended, mut least) = (ended.into_iter().peekable(), 0);
        for read in reads {
            while let Some((_, next)) = ended.next_if(|(end, _)| *end < read.begin) {
                least = least.max(next);
            }
            assert!(read.next >= least, "{context}: {read:?} does not show the record at {}", least - 1);
            let last = (read.next as usize).checked_sub(1).map_or(0, |last| latest[last]);
            assert!(last < read.end, "{context}: {read:?} shows a record whose append began at {last}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn appended(payload: &str, begin: u64, end: u64, offset: u64) -> Append {
        Append { payload: payload.to_owned(), begin, outcome: AppendOutcome::At { offset, end } }
    }

    fn records(payloads: &[&str]) -> Vec<Value> {
        let record = |(offset, payload): (usize, &&str)| json!({ "offset": offset, "payload": payload });
        payloads.iter().enumerate().map(record).collect()
    }

    /// Checks the stream alone. Returns true if the history is possible.
    fn is_possible(observed: Observed, records: &[Value]) -> bool {
        let checked = std::panic::AssertUnwindSafe(|| {
            let offsets = observed.check_appends("test", records);
            observed.check_order("test", &offsets);
            observed.check_ends("test", records.len(), &offsets);
        });
        std::panic::catch_unwind(checked).is_ok()
    }

    fn with(appends: Vec<Append>, ends: &[(u64, u64, u64)]) -> Observed {
        let ends = ends.iter().map(|(begin, end, next)| EndRead { begin: *begin, end: *end, next: *next }).collect();
        Observed { appends, ends, seen: Vec::new() }
    }

    #[test]
    fn histories_that_cannot_be_are_found() {
        let two = || vec![appended("a", 1, 4, 0), appended("b", 5, 8, 1)];
        let both = records(&["a", "b"]);
        assert!(is_possible(with(two(), &[(2, 3, 0), (2, 3, 1), (6, 7, 2), (9, 10, 2)]), &both));
        assert!(!is_possible(with(two(), &[]), &records(&["b", "a"])), "a record has another offset");
        assert!(!is_possible(with(two(), &[]), &records(&["a"])), "a record is lost");
        assert!(!is_possible(with(two(), &[]), &records(&["a", "b", "a"])), "a record is there twice");
        assert!(!is_possible(with(two(), &[]), &records(&["a", "b", "c"])), "nobody appended a record");
        assert!(!is_possible(with(two(), &[(9, 10, 1)]), &both), "a read misses a record");
        assert!(!is_possible(with(two(), &[(2, 3, 2)]), &both), "a read shows a record too early");
        assert!(!is_possible(with(two(), &[(6, 7, 2), (8, 9, 1)]), &both), "a read goes back");
        let swapped = || vec![appended("a", 1, 4, 1), appended("b", 5, 8, 0)];
        assert!(!is_possible(with(swapped(), &[]), &records(&["b", "a"])), "the later append has the smaller offset");
        let unknown = |outcome| vec![Append { payload: "a".to_owned(), begin: 1, outcome }];
        assert!(is_possible(with(unknown(AppendOutcome::Unknown), &[]), &records(&["a"])));
        assert!(is_possible(with(unknown(AppendOutcome::Unknown), &[]), &[]));
        assert!(!is_possible(with(unknown(AppendOutcome::Nothing), &[]), &records(&["a"])), "it had an effect");
    }
}
