//! Operations on a stream, a group and a subject: which requests they make, and whether the replies are right.

use std::{
    collections::VecDeque,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rand::RngExt as _;

use super::{
    appends::{Append, AppendLedger},
    deliveries::GroupLedger,
    faults::{FeedFault, FeedFaults},
    http::{Appended, FeedRequests, Fetched, Published, Settled, json, records},
    numbers::Numbers,
    steps::{Arrival, FeedProblem, FeedReply, FeedSizes, FeedStep, ReadFrom, Reader},
    texts::NumberedTexts,
};
use crate::{Clock, latency::Latencies, random::Generator};

/// Stream, group and subject of a run, which all threads share.
#[derive(Debug)]
pub struct Feed {
    /// Builder of the requests.
    pub requests: FeedRequests,
    /// Sizes of records, messages and requests.
    pub sizes: FeedSizes,
    /// Appends to the stream.
    pub appends: AppendLedger,
    /// Deliveries of the group.
    pub group: GroupLedger,
    texts: NumberedTexts,
    messages: NumberedTexts,
    /// Positions of the readers that have no read in progress.
    readers: Mutex<VecDeque<u64>>,
    publishes: AtomicU64,
    acked_messages: AtomicU64,
    missed: AtomicU64,
    clock: Clock,
    /// Time at which each append and each publish was due, plus 1.
    appended_at: Numbers,
    published_at: Numbers,
    /// Start of the counted part of the run: the end-to-end times of records and messages that were due earlier are not
    /// counted.
    counted_from: AtomicU64,
    times: [Mutex<Latencies>; 3],
}

impl Feed {
    /// Creates a feed without records and messages.
    pub fn new(requests: FeedRequests, sizes: FeedSizes, seed: u64) -> Self {
        Self {
            requests,
            sizes,
            appends: AppendLedger::new(sizes.batch),
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
            counted_from: AtomicU64::new(u64::MAX),
            times: Default::default(),
        }
    }

    /// Makes the end-to-end times count from `nanos` nanoseconds from now on.
    pub fn count_times_after(&self, nanos: u64) {
        self.counted_from.store(self.clock.now().saturating_add(nanos), Ordering::Release);
    }

    /// Stops the counting of end-to-end times, and returns them.
    pub fn take_times(&self) -> [Latencies; 3] {
        self.counted_from.store(u64::MAX, Ordering::Release);
        [0, 1, 2].map(|at| std::mem::take(&mut *lock(&self.times[at])))
    }

    /// Returns the next append.
    pub fn append(&self) -> FeedStep {
        FeedStep::Append(self.appends.begin())
    }

    /// Returns the next read.
    pub fn read(&self, rng: &mut Generator) -> FeedStep {
        let floor = self.appends.end();
        let (from, reader) = match self.sizes.read_from {
            ReadFrom::Random => (rng.random_range(0..floor.max(1)), Reader::Once),
            ReadFrom::Start => (lock(&self.readers).pop_front().unwrap_or(0), Reader::Continues),
            ReadFrom::Tail => (lock(&self.readers).pop_front().unwrap_or(floor), Reader::Continues),
        };
        FeedStep::Read { from, floor, reader }
    }

    /// Returns the read of a page of the stream, counted from its start. The pages up to [`pages`](Self::pages) contain
    /// all records.
    pub fn page(&self, number: u64) -> FeedStep {
        let from = number * u64::from(self.sizes.read_records);
        FeedStep::Read { from, floor: self.appends.end(), reader: Reader::Whole }
    }

    /// Returns the number of pages of the stream, with one more that has no acknowledged records.
    pub fn pages(&self) -> u64 {
        self.appends.end().div_ceil(u64::from(self.sizes.read_records)) + 1
    }

    /// Returns the next publish.
    pub fn publish(&self) -> FeedStep {
        FeedStep::Publish(self.publishes.fetch_add(1, Ordering::AcqRel))
    }

    /// Returns the number of messages whose publish was acknowledged, and the number of messages for which
    /// subscriptions had no room.
    pub fn published(&self) -> (u64, u64) {
        (self.acked_messages.load(Ordering::Acquire), self.missed.load(Ordering::Acquire))
    }

    /// Notes that a request is sent now, `late` nanoseconds after it was due.
    pub fn asked(&self, step: FeedStep, late: u64) {
        let due = || self.clock.now().saturating_sub(late) + 1;
        match step {
            FeedStep::Append(append) => self.appended_at.set(append.number, due()),
            FeedStep::Publish(number) => self.published_at.set(number, due()),
            _ => {}
        }
    }

    /// Appends the bytes of a request.
    pub fn encode(&self, step: FeedStep, out: &mut Vec<u8>) {
        let FeedSizes { record_bytes, batch, read_records, fetch_records, message_bytes, messages, .. } = self.sizes;
        let lines = |texts: &NumberedTexts, numbers: std::ops::Range<u64>, out: &mut Vec<u8>| {
            for number in numbers {
                texts.put(number, out);
                out.push(b'\n');
            }
        };
        match step {
            FeedStep::Append(append) => {
                let records = self.appends.records(append.number);
                self.requests.append((record_bytes + 1) * batch as usize, out, |out| lines(&self.texts, records, out));
            }
            FeedStep::Read { from, .. } => {
                self.requests.read(from, read_records, (record_bytes + 64) * read_records as usize, out);
            }
            FeedStep::Fetch => self.requests.fetch(fetch_records, out),
            FeedStep::Ack { attempt, .. } => self.requests.ack(attempt, out),
            FeedStep::Publish(number) => {
                let first = number * u64::from(messages);
                let numbers = first..first + u64::from(messages);
                self.requests.publish((message_bytes + 1) * messages as usize, out, |out| {
                    lines(&self.messages, numbers, out);
                });
            }
        }
    }

    /// Checks the body of a reply to a request.
    pub fn judge(&self, step: FeedStep, body: &[u8]) -> Result<FeedReply, FeedProblem> {
        let mut found = ReplyFaults::default();
        let reply = match step {
            FeedStep::Append(append) => self.judge_append(append, body, &mut found),
            FeedStep::Read { from, floor, reader } => self.judge_read((from, floor), reader, body, &mut found),
            FeedStep::Fetch => self.judge_fetch(body, &mut found),
            FeedStep::Ack { records, .. } => json::<Settled>(body).map(|Settled { settled }| {
                self.group.lapse(records.saturating_sub(settled));
                FeedReply::Done(settled)
            }),
            FeedStep::Publish(_) => self.judge_publish(body, &mut found),
        };
        if let Err(text) = &reply {
            found.fault(FeedFault::Wrong, 1, || text.clone());
        }
        match (reply, found) {
            (Ok(reply), ReplyFaults { first: None, .. }) => Ok(reply),
            (_, ReplyFaults { faults, first }) => Err(FeedProblem { faults, text: first.unwrap_or_default() }),
        }
    }

    fn judge_append(&self, append: Append, body: &[u8], found: &mut ReplyFaults) -> Result<FeedReply, String> {
        let Appended { count, first, last } = json(body)?;
        let batch = u64::from(self.sizes.batch);
        if count != batch || last.checked_sub(first) != Some(batch - 1) {
            return Err(format!("an append of {batch} records got offsets {first} to {last}, {count} records"));
        }
        if let Err(fault) = self.appends.end_append(append, first) {
            found.fault(fault, batch, || {
                format!("append {} was acknowledged at offset {first}: {fault:?}", append.number)
            });
        }
        Ok(FeedReply::Done(count))
    }

    fn judge_read(
        &self,
        (from, floor): (u64, u64),
        reader: Reader,
        body: &[u8],
        found: &mut ReplyFaults,
    ) -> Result<FeedReply, String> {
        let (mut next, mut count) = (from, 0);
        let read = records(body, |offset, payload| {
            if offset != next && reader != Reader::Whole {
                let fault = if offset > next { FeedFault::Lost } else { FeedFault::Reordered };
                let missing = offset.saturating_sub(next).max(1);
                found.fault(fault, missing, || format!("offset {offset} was received instead of {next}"));
            }
            let arrival = if reader == Reader::Whole { Arrival::Whole } else { Arrival::Read };
            self.judge_record(offset, payload, arrival, found);
            (next, count) = (offset.saturating_add(1), count + 1);
        });
        if reader == Reader::Continues {
            lock(&self.readers).push_back(next);
        }
        read?;
        let least = floor.saturating_sub(from).min(u64::from(self.sizes.read_records));
        // The reader of the whole stream counts its missing records when it ends.
        if count < least && reader != Reader::Whole {
            found.fault(FeedFault::Lost, least - count, || {
                format!("{count} records from offset {from}, and {least} were acknowledged before the read was sent")
            });
        }
        Ok(FeedReply::Done(count))
    }

    fn judge_fetch(&self, body: &[u8], found: &mut ReplyFaults) -> Result<FeedReply, String> {
        let fetched: Fetched<'_> = json(body)?;
        let records = fetched.messages.len() as u64;
        let mut last = None;
        for message in &fetched.messages {
            let offset = message.offset;
            self.judge_record(offset, message.payload.as_ref().map(|text| text.as_bytes()), Arrival::Fetch, found);
            if let Err(fault) = self.group.deliver(offset, message.deliveries) {
                found.fault(fault, 1, || format!("offset {offset} was delivered twice as the first delivery"));
            }
            if message.deliveries <= 1 && last.is_some_and(|last| offset <= last) {
                found.fault(FeedFault::Reordered, 1, || format!("offset {offset} was delivered after {last:?}"));
            }
            last = last.max((message.deliveries <= 1).then_some(offset));
        }
        match fetched.attempt {
            Some(attempt) => Ok(FeedReply::Fetched { attempt, records }),
            None if records == 0 => Ok(FeedReply::Done(0)),
            None => Err(format!("{records} records without an attempt")),
        }
    }

    fn judge_publish(&self, body: &[u8], found: &mut ReplyFaults) -> Result<FeedReply, String> {
        let Published { messages, missed } = json(body)?;
        self.acked_messages.fetch_add(messages, Ordering::AcqRel);
        self.missed.fetch_add(missed.saturating_mul(messages), Ordering::AcqRel);
        if messages != u64::from(self.sizes.messages) {
            found.fault(FeedFault::Wrong, 1, || {
                format!("{messages} of {} messages were published", self.sizes.messages)
            });
        }
        Ok(FeedReply::Done(messages))
    }

    fn judge_record(&self, offset: u64, payload: Option<&[u8]>, arrival: Arrival, found: &mut ReplyFaults) {
        let Some(number) = payload.and_then(|payload| self.texts.number_of(payload)) else {
            return found.fault(FeedFault::Wrong, 1, || format!("offset {offset} has content that was never appended"));
        };
        let placed = match arrival {
            Arrival::Whole => self.appends.find(number, offset),
            _ => self.appends.place(number, offset),
        };
        if let Err(fault) = placed {
            return found.fault(fault, 1, || format!("record {number} lies at offset {offset}: {fault:?}"));
        }
        let batch = u64::from(self.sizes.batch);
        if number % batch == 0 && arrival != Arrival::Whole {
            self.arrived(arrival, self.appended_at.get(number / batch));
        }
    }

    /// Returns the number of a message that a subscriber received; `None` if the run has not published it.
    pub fn message(&self, payload: &[u8]) -> Option<u64> {
        let messages = u64::from(self.sizes.messages);
        let bound = self.publishes.load(Ordering::Acquire) * messages;
        let number = self.messages.number_of(payload).filter(|number| *number < bound)?;
        if number % messages == 0 {
            self.arrived(Arrival::Message, self.published_at.get(number / messages));
        }
        Some(number)
    }

    /// Counts the time since a record or message was due, if it was due within the counted time.
    fn arrived(&self, arrival: Arrival, due: u64) {
        if due > self.counted_from.load(Ordering::Acquire) {
            lock(&self.times[arrival as usize]).record_nanos((self.clock.now() + 1).saturating_sub(due));
        }
    }
}

/// Faults that were found in a reply.
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
