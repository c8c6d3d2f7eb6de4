//! Operations on a stream, a group and a subject: the choice of requests, and the check of replies.
//!
//! Owns: `Feed`, the choice of the next request, the judgement of each reply, and the end-to-end times. Does not own:
//! the ledgers of appends and deliveries (`appends`, `deliveries`), the bytes of requests (`protocol` and its
//! implementations), or the subscribers' thread (`listen`).

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    appends::{AppendLedger, Positions, lock},
    deliveries::GroupLedger,
    faults::{FeedFault, FeedFaults},
    numbers::Numbers,
    protocol::{FeedContent, FeedProtocol, FeedRecord, Texts},
    steps::{Arrival, FeedProblem, FeedReply, FeedSizes, FeedStep, ReadFrom, Reader},
    texts::NumberedTexts,
};
use crate::{Clock, latency::Latencies, pairs::Answer, random::Generator};

/// The stream, consumer group and subject of a benchmark run. Chooses the requests to them, and checks the replies. All
/// load threads share one instance.
#[derive(Debug)]
pub struct Feed {
    /// Encodes the requests to the server, and decodes the replies.
    pub protocol: Box<dyn FeedProtocol>,
    /// Sizes of records, messages and requests.
    pub sizes: FeedSizes,
    /// Ledger of the appends to the stream.
    pub appends: AppendLedger,
    /// Ledger of the deliveries of the consumer group.
    pub group: GroupLedger,
    texts: NumberedTexts,
    messages: NumberedTexts,
    /// Positions in the stream at which readers continue. It has one position for each reader that has no read in
    /// progress.
    readers: Mutex<VecDeque<u64>>,
    publishes: AtomicU64,
    acked_messages: AtomicU64,
    missed: AtomicU64,
    clock: Clock,
    /// Time at which each append was due, plus 1, in nanoseconds of `clock`; 0 if the append was not sent.
    appended_at: Numbers,
    /// Time at which each publish was due, plus 1, in nanoseconds of `clock`; 0 if the publish was not sent.
    published_at: Numbers,
    /// Length of the warm-up in nanoseconds, from the start of the next run's load. `u64::MAX` once the load has begun.
    warmup: AtomicU64,
    /// Start of the counted part of the run, in nanoseconds of `clock`. End-to-end times of records and messages that
    /// were due earlier do not count.
    counted_from: AtomicU64,
    times: [Mutex<Latencies>; 3],
}

impl Feed {
    /// Creates a feed whose stream and subject are empty.
    pub fn new(protocol: Box<dyn FeedProtocol>, sizes: FeedSizes, seed: u64) -> Self {
        Self {
            appends: AppendLedger::new(sizes.batch, protocol.positions()),
            protocol,
            sizes,
            group: GroupLedger::default(),
            texts: NumberedTexts::new(sizes.record_bytes, seed),
            messages: NumberedTexts::new(sizes.message_bytes, !seed),
            readers: Mutex::default(),
            publishes: AtomicU64::new(0),
            acked_messages: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            clock: Clock::start(),
            appended_at: Numbers::default(),
            published_at: Numbers::default(),
            warmup: AtomicU64::new(u64::MAX),
            counted_from: AtomicU64::new(u64::MAX),
            times: Default::default(),
        }
    }

    /// Makes the end-to-end times of the next run count from `nanos` nanoseconds after its load has begun. The time for
    /// opening the connections is not part of that.
    pub fn count_times_after(&self, nanos: u64) {
        self.warmup.store(nanos, Ordering::Release);
    }

    /// Starts the warm-up, because the load begins now. Each thread calls this, and only the first call has an effect.
    pub fn begun(&self) {
        let warmup = self.warmup.swap(u64::MAX, Ordering::AcqRel);
        if warmup < u64::MAX {
            self.counted_from.store(self.clock.now().saturating_add(warmup), Ordering::Release);
        }
    }

    /// Stops the counting of end-to-end times. Returns those of reads, of fetches and of messages.
    pub fn take_times(&self) -> [Latencies; 3] {
        self.warmup.store(u64::MAX, Ordering::Release);
        self.counted_from.store(u64::MAX, Ordering::Release);
        [0, 1, 2].map(|at| std::mem::take(&mut *lock(&self.times[at])))
    }

    /// Returns the request for the next append.
    pub fn append(&self) -> FeedStep {
        FeedStep::Append(self.appends.begin())
    }

    /// Returns the request for the next read.
    pub fn read(&self, rng: &mut Generator) -> FeedStep {
        let floor = self.appends.end();
        let (from, reader) = match self.sizes.read_from {
            ReadFrom::Random => (self.appends.any(rng), Reader::Once),
            ReadFrom::Start => (lock(&self.readers).pop_front().unwrap_or(0), Reader::Continues),
            ReadFrom::Tail => (lock(&self.readers).pop_front().unwrap_or(floor), Reader::Continues),
        };
        FeedStep::Read { from, floor, reader }
    }

    /// Returns the request that reads a page of the stream. The pages below [`pages`](Self::pages) contain all records.
    pub fn page(&self, number: u64) -> FeedStep {
        let range = self.appends.page(number, u64::from(self.sizes.read_records));
        FeedStep::Read { from: range.start, floor: range.end, reader: Reader::Whole }
    }

    /// Returns the number of pages that contain the whole stream: those with records that the server has acknowledged,
    /// and one more.
    pub fn pages(&self) -> u64 {
        self.appends.pages(u64::from(self.sizes.read_records))
    }

    /// Returns the number of acknowledged records that the group has not delivered.
    pub fn undelivered(&self) -> u64 {
        self.appends.acked_outside(self.group.bits())
    }

    /// Returns the request for the next publish.
    pub fn publish(&self) -> FeedStep {
        FeedStep::Publish(self.publishes.fetch_add(1, Ordering::AcqRel))
    }

    /// Returns the number of messages whose publish was acknowledged, and the number of messages that subscriptions
    /// missed because their queues were full.
    pub fn published(&self) -> (u64, u64) {
        (self.acked_messages.load(Ordering::Acquire), self.missed.load(Ordering::Acquire))
    }

    /// Stores the due time of an append or a publish that is sent now. `late` is the time since it was due, in
    /// nanoseconds.
    pub fn asked(&self, step: FeedStep, late: u64) {
        let due = || self.clock.now().saturating_sub(late) + 1;
        match step {
            FeedStep::Append(append) => self.appended_at.set(append.number, due()),
            FeedStep::Publish(number) => self.published_at.set(number, due()),
            _ => {}
        }
    }

    /// Appends the bytes of a request to `out`.
    pub fn encode(&self, step: FeedStep, out: &mut Vec<u8>) {
        let (texts, numbers) = match step {
            FeedStep::Append(append) => (&self.texts, self.appends.records(append.number)),
            FeedStep::Publish(number) => {
                let messages = u64::from(self.sizes.messages);
                (&self.messages, number * messages..(number + 1) * messages)
            }
            FeedStep::Read { .. } | FeedStep::Fetch | FeedStep::Ack { .. } => (&self.texts, 0..0),
        };
        self.protocol.encode(step, &self.sizes, &Texts { texts, numbers }, out);
    }

    /// Decodes the reply to a request, as [`FeedProtocol::decode`] describes.
    pub fn decode<'a>(&self, step: FeedStep, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String> {
        self.protocol.decode(step, &self.sizes, bytes)
    }

    /// Checks the content of a reply to a request.
    pub fn judge(&self, step: FeedStep, content: &[u8]) -> Result<FeedReply, FeedProblem> {
        let mut reply = Records::default();
        let read = self.protocol.read(step, content, &mut |record| self.take(step, record, &mut reply));
        if let FeedStep::Read { from, reader: Reader::Continues, .. } = step {
            lock(&self.readers).push_back(self.appends.after(from, reply.last));
        }
        let done = read.and_then(|content| self.conclude(step, content, &mut reply));
        let found = &mut reply.found;
        if let Err(text) = &done {
            found.fault(FeedFault::Wrong, 1, || text.clone());
        }
        match (done, reply.found) {
            (Ok(done), ReplyFaults { first: None, .. }) => Ok(done),
            (_, ReplyFaults { faults, first }) => Err(FeedProblem { faults, text: first.unwrap_or_default() }),
        }
    }

    /// Checks one record of a reply to the request `step`. Adds the record and its faults to `reply`.
    fn take(&self, step: FeedStep, record: FeedRecord<'_>, reply: &mut Records) {
        let FeedRecord { position, deliveries, .. } = record;
        match step {
            FeedStep::Read { from, reader, .. } => {
                // A pass over the whole stream counts missing records at its end, so a gap in a page is no fault yet.
                let in_order = reader != Reader::Whole || self.protocol.positions() == Positions::Ids;
                let fault = self.appends.follows(from, reply.last, position).filter(|_| in_order);
                if let Some((fault, records)) = fault {
                    let last = reply.last;
                    reply.found.fault(fault, records, || format!("position {position} was received after {last:?}"));
                }
                let arrival = if reader == Reader::Whole { Arrival::Whole } else { Arrival::Read };
                self.judge_record(record, arrival, &mut reply.found);
                reply.last = Some(position);
            }
            FeedStep::Fetch => {
                let number = self.judge_record(record, Arrival::Fetch, &mut reply.found);
                if let Some(Err(fault)) = number.map(|number| self.group.deliver(number, deliveries)) {
                    let text = || format!("position {position} was delivered twice as the first delivery");
                    reply.found.fault(fault, 1, text);
                }
                if deliveries <= 1 {
                    if let Some(last) = reply.last.filter(|last| position <= *last) {
                        let text = || format!("position {position} was delivered after {last}");
                        reply.found.fault(FeedFault::Reordered, 1, text);
                    }
                    reply.last = reply.last.max(Some(position));
                }
            }
            FeedStep::Append(_) | FeedStep::Ack { .. } | FeedStep::Publish(_) => {}
        }
        reply.seen.push(position);
    }

    /// Checks a reply to the request `step` as a whole, after the check of its records: for example, the number of
    /// records. Adds faults to `reply`.
    fn conclude(&self, step: FeedStep, content: FeedContent, reply: &mut Records) -> Result<FeedReply, String> {
        let Records { seen, found, .. } = reply;
        let (count, batch) = (seen.len() as u64, u64::from(self.sizes.batch));
        match (step, content) {
            (FeedStep::Append(append), FeedContent::Appended { .. } | FeedContent::Records) => {
                let (first, count) = match content {
                    FeedContent::Appended { first, count } => (first, count),
                    _ => (seen.first().copied().unwrap_or(0), count),
                };
                if count != batch {
                    return Err(format!("an append of {batch} records was acknowledged for {count}, from {first} on"));
                }
                let ended = match content {
                    FeedContent::Appended { .. } => self.appends.end_append(append, first),
                    _ => self.appends.end_append_at(append, seen),
                };
                if let Err(fault) = ended {
                    let text = || format!("append {} was acknowledged at {first}: {fault:?}", append.number);
                    found.fault(fault, batch, text);
                }
                Ok(FeedReply::Done(count))
            }
            (FeedStep::Read { from, floor, reader }, FeedContent::Records) => {
                let missing = self.appends.missing(from, floor, u64::from(self.sizes.read_records), seen);
                if missing > 0 && reader != Reader::Whole {
                    let text = || {
                        format!(
                            "{count} records from {from} on, and {missing} more were acknowledged before the read was sent"
                        )
                    };
                    found.fault(FeedFault::Lost, missing, text);
                }
                Ok(FeedReply::Done(count))
            }
            (FeedStep::Fetch, FeedContent::Fetched { attempt: Some(attempt) }) => {
                Ok(FeedReply::Fetched { attempt, records: count })
            }
            (FeedStep::Fetch, FeedContent::Fetched { attempt: None }) if count == 0 => Ok(FeedReply::Done(0)),
            (FeedStep::Fetch, FeedContent::Fetched { attempt: None }) => {
                Err(format!("{count} records without an attempt"))
            }
            (FeedStep::Ack { records, .. }, FeedContent::Settled(settled)) => {
                self.group.lapse(records.saturating_sub(settled));
                Ok(FeedReply::Done(settled))
            }
            (FeedStep::Publish(_), FeedContent::Published { messages, missed }) => {
                let messages = messages.unwrap_or(u64::from(self.sizes.messages));
                self.acked_messages.fetch_add(messages, Ordering::AcqRel);
                self.missed.fetch_add(missed.saturating_mul(messages), Ordering::AcqRel);
                if messages != u64::from(self.sizes.messages) {
                    let text = || format!("{messages} of {} messages were published", self.sizes.messages);
                    found.fault(FeedFault::Wrong, 1, text);
                }
                Ok(FeedReply::Done(messages))
            }
            _ => Err("the answer is one to another operation".to_owned()),
        }
    }

    /// Checks the content and the position of a record. Returns its number; `None` if it has a fault, which is added to
    /// `found`.
    fn judge_record(&self, record: FeedRecord<'_>, arrival: Arrival, found: &mut ReplyFaults) -> Option<u64> {
        let FeedRecord { position, payload, .. } = record;
        let Some(number) = payload.and_then(|payload| self.texts.number_of(payload)) else {
            found.fault(FeedFault::Wrong, 1, || format!("position {position} has content that was never appended"));
            return None;
        };
        let placed = match arrival {
            Arrival::Whole => self.appends.find(number, position),
            _ => self.appends.place(number, position),
        };
        if let Err(fault) = placed {
            found.fault(fault, 1, || format!("record {number} lies at {position}: {fault:?}"));
            return None;
        }
        let batch = u64::from(self.sizes.batch);
        // A read at a random position finds old records. The time since they were due is no end-to-end time.
        let is_old = arrival == Arrival::Read && self.sizes.read_from == ReadFrom::Random;
        if number % batch == 0 && arrival != Arrival::Whole && !is_old {
            self.arrived(arrival, self.appended_at.get(number / batch));
        }
        Some(number)
    }

    /// Returns the number of a message that a subscriber received; `None` if the benchmark run has not published it.
    pub fn message(&self, payload: &[u8]) -> Option<u64> {
        let messages = u64::from(self.sizes.messages);
        let bound = self.publishes.load(Ordering::Acquire) * messages;
        let number = self.messages.number_of(payload).filter(|number| *number < bound)?;
        if number % messages == 0 {
            self.arrived(Arrival::Message, self.published_at.get(number / messages));
        }
        Some(number)
    }

    /// Returns the number of the publisher of a message; `None` if the server delivers the messages of all publishers
    /// in one order to every subscriber.
    pub fn publisher(&self, message: u64) -> Option<u64> {
        self.protocol.publisher(message / u64::from(self.sizes.messages))
    }

    /// Counts the end-to-end time since a record or message was due. Does nothing if it was due before the counted part
    /// of the run.
    fn arrived(&self, arrival: Arrival, due: u64) {
        if due > self.counted_from.load(Ordering::Acquire) {
            lock(&self.times[arrival as usize]).record_nanos((self.clock.now() + 1).saturating_sub(due));
        }
    }
}

/// The records of one reply that were checked so far, and their faults.
#[derive(Debug, Default)]
struct Records {
    /// Position of the last record of the reply. In the reply to a fetch, the highest position of a record that was
    /// delivered for the first time.
    last: Option<u64>,
    /// Positions of all records of the reply, in order.
    seen: Vec<u64>,
    found: ReplyFaults,
}

/// Faults in one reply, and a description of the first one.
#[derive(Debug, Default)]
struct ReplyFaults {
    faults: FeedFaults,
    first: Option<String>,
}

impl ReplyFaults {
    fn fault(&mut self, fault: FeedFault, records: u64, text: impl FnOnce() -> String) {
        self.faults.add(fault, records);
        self.first.get_or_insert_with(text);
    }
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
