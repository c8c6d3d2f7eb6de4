//! Operations of a scenario as a protocol of the load generator: chooses them, and judges the replies.
//!
//! Owns: the choice of the key of an operation, and the check of its reply. Does not own: the bytes of requests
//! ([`Codec`]), the values ([`Records`]), or the state of the keys ([`Ledger`]).
//!
//! A read is right if this run wrote its value to the key, and if the value is not older than the last write that was
//! acknowledged before the read was sent. A scan is right if it has all keys of its range in order, each with a value
//! that this run wrote to it. A read of a cache may also find nothing, which is a miss. A value that it finds must not
//! be older than the last put or delete that was acknowledged before the read was sent. The load generator's [`Feed`]
//! judges replies about streams, groups and subjects.

use std::{ops::RangeInclusive, sync::Arc};

use rand::RngExt as _;

use super::mix::{Kind, Mix};
use crate::{
    BenchError,
    data::key,
    load::{
        BadReply, Batching, Connection, Decoded, Merge, OnLoss, Protocol, Tally,
        feeds::{Feed, FeedFaults, FeedProblem, FeedReply, FeedStep},
        pairs::{Codec, Content, Ledger, Records, Write, shown},
    },
    random::Generator,
};

/// Chooses the operations of a scenario, and checks the replies, over one protocol.
#[derive(Clone, Debug)]
pub(super) struct Workload<C> {
    /// Encodes the requests to the keyspace and decodes their replies.
    pub codec: C,
    /// Makes and recognises the values of the keys.
    pub records: Arc<Records>,
    /// Ledger of the writes so far, over all runs.
    pub ledger: Arc<Ledger>,
    /// Stream, group and subject; `None` if the mix uses none of them.
    pub feed: Option<Arc<Feed>>,
    /// Keys of the cache; `None` if the mix uses no cache.
    pub cache: Option<CacheKeys<C>>,
    /// Operations of the scenario with their weights.
    pub mix: Mix,
    /// Range of the number of rows of a scan.
    pub scan_rows: RangeInclusive<u32>,
    /// Meaning of the numbers that the load generator draws to choose keys: indices, or ages.
    pub draws: Draws,
    /// Phase of the benchmark: for example loading the keys, or running the mix.
    pub phase: ScenarioPhase,
}

/// The part of a scenario's work that uses a cache: the protocol of its requests, and the ledger of its keys.
#[derive(Clone, Debug)]
pub(super) struct CacheKeys<C> {
    /// Protocol of the requests to the cache. They use the same connections as the scenario's requests to keyspaces.
    pub codec: C,
    /// Ledger of the puts and deletes so far, over all runs.
    pub ledger: Arc<Ledger>,
}

/// Meaning of the numbers that the load generator draws to choose keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Draws {
    /// The number is the index of a key.
    Index,
    /// The number is the age of a key. Age 0 is the newest key that has a value.
    Age,
}

/// Phase of the benchmark, which determines the requests that are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScenarioPhase {
    /// Each key is written once, before the runs.
    Load,
    /// Each key is put into the cache once, before the runs.
    Warm,
    /// Records are appended, before the runs.
    Fill,
    /// The operations of the mix are measured.
    Run,
    /// The whole stream is read, after the runs.
    Verify,
    /// The group's remaining records are fetched, after the runs.
    Drain,
}

/// A request to the server. An operation has one request or two: for example, a read and then a write of the same key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    kind: Kind,
    index: u64,
    step: Step,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Reads a value. Its version must be at least `floor`.
    Read {
        floor: u32,
    },
    Write(Write),
    /// Removes a key from the cache. The ledger gives the delete a version, too, but no value has this version.
    Delete(Write),
    /// Reads at most `rows` keys, all below the index `end`. All keys below `end` have values.
    Scan {
        rows: u32,
        end: u64,
    },
    /// One step on the scenario's stream, consumer group or subject, such as an append, a fetch or a publish.
    Feed(FeedStep),
}

/// Counts of a run, in addition to those that all protocols have.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Number of rows that scans returned.
    pub rows: u64,
    /// Number of replies with a wrong value. Replies in which the server refuses a request do not count here.
    pub wrong_values: u64,
    /// Number of reads of the cache that found nothing.
    pub misses: u64,
    /// Number of records or messages in right replies, for each kind of operation.
    pub records: [u64; Kind::ALL.len()],
    /// Number of records and messages with faults, by kind of fault.
    pub faults: FeedFaults,
}

/// Result of checking a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// The reply to an operation on keys is right. The field is the number of rows that it returned.
    Right(u64),
    /// The cache has no entry for the key. This is a right reply.
    Missed,
    /// The reply to an operation of this kind on the stream, the group or the subject is right. It covers this number
    /// of records or messages.
    Records(Kind, u64),
    /// The group delivered records. The next request must acknowledge them.
    Fetched {
        /// Number that the server gave to this delivery. The client acknowledges the records by it.
        attempt: u64,
        /// Number of records that the group delivered.
        records: u64,
    },
    /// Some of the records in the reply have faults.
    Faulty(FeedFaults),
    /// The server refused the operation.
    Refused,
    /// The reply has a wrong value, or no value.
    Wrong,
}

impl Merge for Counts {
    fn merge(&mut self, other: Self) {
        self.rows += other.rows;
        self.wrong_values += other.wrong_values;
        self.misses += other.misses;
        self.records.iter_mut().zip(other.records).for_each(|(own, other)| *own += other);
        self.faults.merge(other.faults);
    }
}

impl<C: Codec> Workload<C> {
    fn write(&self, kind: Kind, index: u64) -> Request {
        Request { kind, index, step: Step::Write(self.place(kind).1.begin(index)) }
    }

    /// Returns the codec and the ledger that belong to the keys of this kind of operation: those of the cache or those
    /// of the keyspace.
    #[inline]
    fn place(&self, kind: Kind) -> (&C, &Ledger) {
        match &self.cache {
            Some(cache) if kind.uses_cache() => (&cache.codec, &cache.ledger),
            _ => (&self.codec, &self.ledger),
        }
    }

    fn feed(&self) -> &Feed {
        self.feed.as_deref().expect("the suite makes a feed for every mix that uses one")
    }

    /// Returns the next operation on the stream, the group or the subject.
    fn feed_request(&self, kind: Kind, drawn: u64, rng: &mut Generator) -> Request {
        let step = match (self.phase, kind) {
            (ScenarioPhase::Verify, _) => self.feed().page(drawn),
            (_, Kind::Append) => self.feed().append(),
            (_, Kind::ReadRecords) => self.feed().read(rng),
            (_, Kind::Fetch) => FeedStep::Fetch,
            _ => self.feed().publish(),
        };
        Request { kind, index: 0, step: Step::Feed(step) }
    }

    /// Checks the reply to an operation on the stream, the group or the subject. Returns its details, or its faults
    /// with a description.
    fn judge_feed(&self, kind: Kind, step: FeedStep, content: &Content<'_>) -> Result<Reply, (Reply, String)> {
        let wrong = |text: &str| (Reply::Wrong, format!("{}: {text}", kind.name()));
        match content {
            Content::Value(body) => match self.feed().judge(step, body) {
                Ok(FeedReply::Done(records)) => Ok(Reply::Records(kind, records)),
                Ok(FeedReply::Fetched { attempt, records }) => Ok(Reply::Fetched { attempt, records }),
                Err(FeedProblem { faults, text }) => Err((Reply::Faulty(faults), format!("{}: {text}", kind.name()))),
            },
            Content::Refused(message) => Err((Reply::Refused, format!("{} was refused: {message}", kind.name()))),
            Content::Missing => Err(wrong("the stream or the group is missing")),
            Content::Stored | Content::Deleted | Content::Unchecked => {
                Err(wrong("the answer is one to another operation"))
            }
        }
    }

    /// Checks the reply to an operation on a key. Returns its details, or its fault with a description.
    fn judge_key(&self, request: Request, content: &Content<'_>) -> Result<Reply, (Reply, String)> {
        if request.kind == Kind::CacheGet && *content == Content::Missing {
            return Ok(Reply::Missed);
        }
        self.judge(request, content).map(Reply::Right).map_err(|fault| {
            let is_refused = matches!(content, Content::Refused(_));
            let reply = if is_refused { Reply::Refused } else { Reply::Wrong };
            (reply, format!("{} of key {}: {fault}", request.kind.name(), request.index))
        })
    }

    /// Checks the content of a reply to an operation on a key. Returns the number of rows if it is right, and otherwise
    /// a description of the fault.
    fn judge(&self, request: Request, content: &Content<'_>) -> Result<u64, String> {
        let Request { kind, index, step } = request;
        let (codec, ledger) = self.place(kind);
        match (step, content) {
            (Step::Delete(write), Content::Stored | Content::Deleted) => {
                ledger.end(index, write);
                Ok(0)
            }
            (Step::Write(write), content) if codec.is_stored(content) => {
                ledger.end(index, write);
                if kind == Kind::Insert && self.phase == ScenarioPhase::Run {
                    ledger.inserted(index);
                }
                Ok(0)
            }
            (Step::Read { floor }, Content::Value(value)) => {
                self.check_value((index, floor), ledger, value).map(|()| 0)
            }
            (Step::Read { .. }, Content::Unchecked) => Ok(0),
            (Step::Scan { rows, end }, Content::Value(body)) => self.check_rows(index, end, rows, body),
            (Step::Feed(_), _) => Err("the operation is none on a key".to_owned()),
            (_, Content::Missing) => Err("the key has no value, and a write of it was acknowledged".to_owned()),
            (_, Content::Refused(message)) => Err(format!("refused: {message}")),
            (_, Content::Stored | Content::Deleted | Content::Value(_) | Content::Unchecked) => {
                Err("the answer is one to another operation".to_owned())
            }
        }
    }

    fn check_value(&self, (index, floor): (u64, u32), ledger: &Ledger, value: &[u8]) -> Result<(), String> {
        let Some(version) = self.records.version_of(index, value) else {
            return Err(format!("{} bytes that were never written to it: {:?}", value.len(), shown(value)));
        };
        if version < floor {
            return Err(format!("version {version}, and version {floor} was acknowledged before the read was sent"));
        }
        let issued = ledger.issued(index);
        if version > issued {
            return Err(format!("version {version}, and only versions up to {issued} were written"));
        }
        Ok(())
    }

    fn check_rows(&self, first: u64, end: u64, rows: u32, body: &[u8]) -> Result<u64, String> {
        let mut next = first;
        let found = self.codec.rows(body, &mut |found, value| {
            if found != key(next) {
                return Err(format!("key {:?} instead of key {next}", shown(found)));
            }
            self.check_value((next, 0), &self.ledger, value).map_err(|fault| format!("row of key {next}: {fault}"))?;
            next += 1;
            Ok(())
        })?;
        let expected = u64::from(rows).min(end - first);
        if found == expected { Ok(found) } else { Err(format!("{found} rows of {expected}")) }
    }
}

impl<C: Codec> Protocol for Workload<C> {
    type Request = Request;
    type Reply = Reply;
    type Fault = String;
    type State = ();
    type Counts = Counts;

    const BATCHING: Batching = Batching::PerRequest;
    const ON_LOSS: OnLoss = OnLoss::End;

    fn connect(&self) -> Result<Connection, BenchError> {
        self.codec.connect()
    }

    fn kinds(&self) -> usize {
        Kind::ALL.len()
    }

    fn begun(&self) {
        if let Some(feed) = &self.feed {
            feed.begun();
        }
    }

    #[inline]
    fn choose(&self, drawn: u64, rng: &mut Generator) -> Request {
        let kind = match self.phase {
            ScenarioPhase::Load => return self.write(Kind::Insert, drawn),
            ScenarioPhase::Warm => return self.write(Kind::CachePut, drawn),
            ScenarioPhase::Fill => Kind::Append,
            ScenarioPhase::Verify => Kind::ReadRecords,
            ScenarioPhase::Drain => Kind::Fetch,
            ScenarioPhase::Run => self.mix.choose(rng),
        };
        let index = || match self.draws {
            Draws::Index => drawn,
            Draws::Age => self.place(kind).1.stored() - 1 - drawn,
        };
        match kind {
            Kind::Read | Kind::ReadModifyWrite | Kind::CacheGet => {
                let index = index();
                Request { kind, index, step: Step::Read { floor: self.place(kind).1.floor(index) } }
            }
            Kind::Update | Kind::CachePut => self.write(kind, index()),
            Kind::CacheDelete => {
                let index = index();
                Request { kind, index, step: Step::Delete(self.place(kind).1.begin(index)) }
            }
            Kind::Insert => self.write(kind, self.ledger.reserve()),
            Kind::Scan => {
                let rows = rng.random_range(self.scan_rows.clone());
                Request { kind, index: index(), step: Step::Scan { rows, end: self.ledger.stored() } }
            }
            Kind::Append | Kind::ReadRecords | Kind::Fetch | Kind::Publish => self.feed_request(kind, drawn, rng),
        }
    }

    #[inline]
    fn asked(&self, request: Request, late: u64) {
        if let Step::Feed(step) = request.step {
            self.feed().asked(step, late);
        }
    }

    #[inline]
    fn aside(&self, bytes: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        self.codec.aside(bytes, out)
    }

    #[inline]
    fn kind(request: Request) -> usize {
        request.kind as usize
    }

    #[inline]
    fn encode(&self, Request { kind, index, step }: Request, out: &mut Vec<u8>) {
        let codec = self.place(kind).0;
        match step {
            Step::Read { .. } => codec.get(index, out),
            Step::Delete(_) => codec.delete(index, out),
            Step::Write(write) => {
                let (head, letters) = self.records.value(index, write.version);
                codec.put(index, [&head, letters], out);
            }
            Step::Scan { rows, end } => self.codec.scan(index, end, rows, out),
            Step::Feed(step) => self.feed().encode(step, out),
        }
    }

    #[inline]
    fn decode(
        &self,
        request: Request,
        (): &mut (),
        bytes: &[u8],
    ) -> Result<Option<Decoded<Reply>>, BadReply<Reply, String>> {
        let decoded = match request.step {
            Step::Feed(step) => self.feed().decode(step, bytes),
            _ => self.place(request.kind).0.decode(bytes),
        };
        let answer = match decoded {
            Ok(Some(answer)) => answer,
            Ok(None) => return Ok(None),
            Err(fault) => return Err(BadReply { fault, decoded: None }),
        };
        let decoded = |reply| Decoded { bytes: answer.bytes, reply, closes: answer.closes };
        let judged = match request.step {
            Step::Feed(step) => self.judge_feed(request.kind, step, &answer.content),
            _ => self.judge_key(request, &answer.content),
        };
        match judged {
            Ok(reply) => Ok(Some(decoded(reply))),
            Err((reply, fault)) => Err(BadReply { fault, decoded: Some(decoded(reply)) }),
        }
    }

    #[inline]
    fn follow_up(&self, request: Request, reply: Reply) -> Option<Request> {
        if let Reply::Fetched { attempt, records } = reply {
            return Some(Request { step: Step::Feed(FeedStep::Ack { attempt, records }), ..request });
        }
        let is_first_part = request.kind == Kind::ReadModifyWrite && matches!(request.step, Step::Read { .. });
        is_first_part.then(|| self.write(request.kind, request.index))
    }

    #[inline]
    fn count(&self, counts: &mut Counts, reply: Reply, _: Option<u64>) {
        match reply {
            Reply::Right(rows) => counts.rows += rows,
            Reply::Missed => counts.misses += 1,
            Reply::Records(kind, records) => counts.records[kind as usize] += records,
            // A fetch that must be acknowledged is not counted here. The reply to its ack is counted.
            Reply::Refused | Reply::Fetched { .. } => {}
            Reply::Faulty(faults) => {
                counts.wrong_values += 1;
                counts.faults.merge(faults);
            }
            Reply::Wrong => counts.wrong_values += 1,
        }
    }

    fn errors(&self, tally: &Tally<Counts>) -> Option<String> {
        let (wrong, lost) = (tally.wrong, tally.lost);
        let faults = if tally.own.faults.any() { format!("; records: {}", tally.own.faults) } else { String::new() };
        (wrong + lost > 0).then(|| format!("{wrong} wrong replies, {lost} broken connections{faults}"))
    }
}

#[cfg(test)]
#[path = "work_tests.rs"]
mod tests;
