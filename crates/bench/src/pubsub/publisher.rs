//! Publishes the messages of a benchmark on one channel (a stream of a connection). It composes batches of messages
//! when they are due, or as fast as the server accepts them.
//!
//! Owns: the due times and the numbers of each publisher's messages, the batches that are not acknowledged yet, and the
//! pool of their buffers. Does not own: the layout of a batch (`batch`), the event loop of a channel (`thalweg_load`),
//! or the counts of a run (`recorder`).

use std::{collections::VecDeque, rc::Rc, time::Duration};

use bytes::Bytes;
use thalweg_wire::{Frame as _, Kind, Published, batch::put_publish_prefix};

use super::{
    batch::{batch_bytes, put_batch_head},
    options::PubsubOptions,
    recorder::Shared,
};
use crate::{
    latency::nanos,
    load::{Pace, Pacer},
    native::{ChannelError, Head, Payloads, ReadyChannel, Session, SessionWait, body, drive, unexpected},
};

/// Number of bytes of composed batches that are gathered before they are written to the connection. A single batch may
/// be larger.
const WRITE_BYTES: usize = 64 << 10;
/// Size in bytes above which a batch gets a buffer of its own. Smaller batches are composed in the channel's buffer.
const OWN_BYTES: usize = 32 << 10;

/// A publisher: its number, the number of its next message, and the due times of its messages.
#[derive(Debug)]
struct Publisher {
    number: u32,
    next: u64,
    pacer: Pacer,
    /// Due times of the messages that wait until they fill a batch. Used only if the schedule has a due time for each
    /// message, not for each batch.
    waiting: VecDeque<u64>,
}

/// All publishers that send on one channel, a stream of a connection.
pub(super) struct PublishChannel {
    publishers: Vec<Publisher>,
    shared: Rc<Shared>,
    payloads: Rc<Payloads>,
    batch: u32,
    /// Longest time that a message waits for others to share a batch; `None` if the schedule consists of whole batches.
    linger: Option<Duration>,
    /// Request ids that are not in use. Always empty if the publishers do not request acks.
    free: Vec<u32>,
    acked: bool,
    unacked: usize,
    /// Time at which batches were last composed, in nanoseconds since the start of the run.
    now: u64,
    /// True if the last write did not send all bytes.
    is_blocked: bool,
    /// Time at which the channel last became able to send a batch, in nanoseconds since the start of the run: the
    /// server accepts bytes, and a request id is free. If a batch was due earlier, the server caused its lateness up to
    /// this time, not the load generator.
    free_since: u64,
    /// True if all batches are published and acknowledged, and the number of their messages is reported to the
    /// subscribers.
    is_reported: bool,
    pool: Pool,
    delivered: u64,
    missed: u64,
}

impl PublishChannel {
    /// Creates the publishers of one channel (a TCP connection or a QUIC stream). `numbers` yields the number of each
    /// publisher in the run.
    pub(super) fn new(
        line: &ReadyChannel,
        numbers: impl Iterator<Item = usize>,
        options: &PubsubOptions,
        shared: Rc<Shared>,
        payloads: Rc<Payloads>,
    ) -> Self {
        let pace = match (options.pace(), options.linger) {
            (Pace::Open { rate, arrivals }, None) => {
                let batch = f64::from(options.batch);
                Pace::Open { rate: rate / batch, arrivals: arrivals.divided(batch) }
            }
            (pace, _) => pace,
        };
        let (counted, seed) = (shared.counted.clone(), options.load.seed);
        let pacer = |number| Pacer::new(pace, counted.clone(), number, options.publishers, seed);
        let publisher = |number: usize| Publisher {
            number: u32::try_from(number).unwrap_or(u32::MAX),
            next: 0,
            pacer: pacer(number),
            waiting: VecDeque::new(),
        };
        Self {
            publishers: numbers.map(publisher).collect(),
            batch: options.batch,
            linger: options.linger,
            free: (1..=options.in_flight.min(line.max_requests)).rev().collect(),
            acked: options.in_flight > 0,
            unacked: 0,
            now: 0,
            is_blocked: false,
            free_since: 0,
            is_reported: false,
            pool: Pool::default(),
            delivered: 0,
            missed: 0,
            shared,
            payloads,
        }
    }

    /// Publishes until the time is up, and reports the number of published messages. Then keeps the channel (a TCP
    /// connection or a QUIC stream) open until all subscribers have finished, because closing a connection may discard
    /// bytes in transit.
    pub(super) async fn run(mut self, mut line: ReadyChannel) -> Result<(), ChannelError> {
        let shared = Rc::clone(&self.shared);
        shared.finish.register_task().await;
        let ended = drive(&mut line, &shared.clock, &mut self).await;
        if self.is_reported {
            return Ok(());
        }
        self.report();
        ended
    }

    fn report(&mut self) {
        self.is_reported = true;
        for publisher in &self.publishers {
            self.shared.finish.sent(publisher.number as usize, publisher.next);
        }
        let own = &mut self.shared.tally.borrow_mut().own;
        own.acked_deliveries += self.delivered;
        own.acked_misses += self.missed;
    }

    /// Composes one batch of the publisher with this index, if a batch is due. Returns true if a batch was composed.
    fn compose_one(&mut self, index: usize, line: &mut ReadyChannel) -> bool {
        let now = self.now;
        let Publisher { pacer, waiting, .. } = &mut self.publishers[index];
        let Some(due) = pacer.next_due(now).or(waiting.front().copied()) else { return false };
        match self.linger {
            Some(linger) if pacer.is_open() => {
                while waiting.len() < self.batch as usize
                    && let Some(due) = pacer.scheduled().filter(|due| *due <= now)
                {
                    pacer.take();
                    waiting.push_back(due);
                }
                let Some(ready_at) = ready_at(waiting, self.batch, linger).filter(|at| *at <= now) else {
                    return false;
                };
                let mut waiting = std::mem::take(waiting);
                self.lag(ready_at);
                self.put(line, index, waiting.len() as u32, |at| waiting[at]);
                waiting.clear();
                self.publishers[index].waiting = waiting;
            }
            _ if due > now => return false,
            _ => {
                pacer.take();
                if pacer.is_open() {
                    self.lag(due);
                }
                self.put(line, index, self.batch, |_| due);
            }
        }
        true
    }

    fn lag(&self, due: u64) {
        if self.free_since <= due && due >= self.shared.counted.start {
            self.shared.tally.borrow_mut().lag.record_nanos(self.now - due);
        }
    }

    /// Returns the next time at which a batch is due, in nanoseconds since the start of the run; `None` if no more
    /// batches follow.
    fn next_due(&self) -> Option<u64> {
        let next = |publisher: &Publisher| {
            let arrival = publisher.pacer.next_due(self.now);
            let ready = self.linger.and_then(|linger| Some(publisher.waiting.front()? + nanos(linger)));
            arrival.into_iter().chain(ready).min()
        };
        self.publishers.iter().filter_map(next).min()
    }

    /// Appends a publish frame to the outgoing bytes. The frame has one batch of `count` messages.
    fn put(&mut self, line: &mut ReadyChannel, index: usize, count: u32, due: impl Fn(usize) -> u64) {
        let publisher = &mut self.publishers[index];
        let id = if self.acked { self.free.pop().unwrap_or(0) } else { 0 };
        self.unacked += usize::from(self.acked);
        let len = batch_bytes(count, self.payloads.payload_bytes());
        put_publish_prefix(line.out.buffer(), id, len).expect("options keep batches below the largest frame");
        let first = publisher.next;
        publisher.next += u64::from(count);
        let number = publisher.number;
        let fill = |out: &mut Vec<u8>| {
            out.reserve(len);
            put_batch_head(out, count);
            for at in 0..count as usize {
                let head = Head { sequence: first + at as u64, due: due(at), publisher: number };
                self.payloads.put_record(head, out);
            }
        };
        if len <= OWN_BYTES {
            fill(line.out.buffer());
        } else {
            let bytes = self.pool.fill(fill);
            line.out.share(bytes);
        }
    }
}

impl Session for PublishChannel {
    /// Composes batches that are due, until there are enough bytes for one write to the connection.
    fn compose(&mut self, line: &mut ReadyChannel) -> Result<(), ChannelError> {
        self.now = self.shared.clock.now();
        if self.is_blocked {
            self.free_since = self.now;
        }
        let (mut index, mut idle) = (0, 0);
        while idle < self.publishers.len() && line.out.len() < WRITE_BYTES && !(self.acked && self.free.is_empty()) {
            idle = if self.compose_one(index, line) { 0 } else { idle + 1 };
            index = (index + 1) % self.publishers.len();
        }
        Ok(())
    }

    fn receive(&mut self, line: &mut ReadyChannel, _: usize) -> Result<(), ChannelError> {
        if self.acked && self.free.is_empty() {
            self.free_since = self.shared.clock.now();
        }
        while let Some(raw) = line.frame()? {
            if raw.header.kind != Kind::Published as u16 {
                return Err(unexpected(raw));
            }
            let published = Published::decode_body(body(&raw))?;
            self.delivered += published.delivered;
            self.missed += published.missed;
            self.unacked -= 1;
            self.free.push(raw.header.id);
        }
        Ok(())
    }

    fn next(&mut self, is_blocked: bool) -> SessionWait {
        self.is_blocked = is_blocked;
        let finish = &self.shared.finish;
        if finish.is_given_up() || (self.is_reported && finish.is_over()) {
            return SessionWait::Done;
        }
        if is_blocked || (self.acked && self.free.is_empty()) {
            return SessionWait::Channel;
        }
        match self.next_due() {
            None => {
                if self.unacked == 0 && !self.is_reported {
                    self.report();
                }
                SessionWait::Channel // for acks, and for the end of the run
            }
            Some(at) if at > self.now => SessionWait::Due(at),
            // A batch is due, but subscribers on this thread get a turn first.
            Some(_) => SessionWait::Yield,
        }
    }
}

/// Returns the time at which the waiting messages are sent. They are sent as soon as they fill a batch, or when the
/// first of them has waited for `linger`. `None` if no message waits.
fn ready_at(waiting: &VecDeque<u64>, batch: u32, linger: Duration) -> Option<u64> {
    let patience = waiting.front()? + nanos(linger);
    Some(match waiting.get(batch as usize - 1) {
        Some(last) => patience.min(*last),
        None => patience,
    })
}

/// Pool of buffers for large batches. After a batch was sent, its buffer is used again, because touching fresh pages
/// costs more than writing the batch.
#[derive(Debug, Default)]
struct Pool {
    free: std::sync::Arc<std::sync::Mutex<Vec<Vec<u8>>>>,
}

struct Pooled {
    bytes: Vec<u8>,
    home: std::sync::Arc<std::sync::Mutex<Vec<Vec<u8>>>>,
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        if let Ok(mut free) = self.home.lock() {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl Pool {
    fn fill(&self, fill: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        let mut bytes = self.free.lock().ok().and_then(|mut free| free.pop()).unwrap_or_default();
        bytes.clear();
        fill(&mut bytes);
        Bytes::from_owner(Pooled { bytes, home: std::sync::Arc::clone(&self.free) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_wait_for_others_but_not_for_long() {
        let linger = Duration::from_nanos(100);
        let ready = |due: &[u64], batch| ready_at(&due.iter().copied().collect(), batch, linger);
        assert_eq!(ready(&[], 4), None);
        assert_eq!(ready(&[10], 1), Some(10));
        assert_eq!(ready(&[10, 20], 4), Some(110));
        assert_eq!(ready(&[10, 20, 30, 40], 4), Some(40));
        assert_eq!(ready(&[10, 20, 30, 400], 4), Some(110), "the first does not wait for the last");
    }

    #[test]
    fn memory_of_batches_is_used_again() {
        let pool = Pool::default();
        let first = pool.fill(|out| out.extend_from_slice(&[1; 40_000]));
        let place = first.as_ptr();
        drop(first);
        let second = pool.fill(|out| out.extend_from_slice(&[2; 40_000]));
        assert_eq!(second.as_ptr(), place);
        assert_eq!(second[39_999], 2);
    }
}
