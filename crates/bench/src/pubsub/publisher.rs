//! The publishing side of a channel: batches composed in place, when they are due or as fast as they go.

use std::{
    collections::VecDeque,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use thalweg_wire::{Frame as _, Kind, Published, batch::put_publish_prefix};

use super::{
    plan::{Pace, Plan, Unit},
    recorder::Shared,
};
use crate::{
    latency::nanos,
    load::schedule::Schedule,
    native::{
        alarm::Alarm,
        line::{Line, LineError, body, unexpected},
        payload::{Head, Payloads},
    },
};

/// The subject of all.
pub const SUBJECT: &[u8] = b"bench.pubsub";

/// Bytes gathered before they are written, unless a batch is larger.
const WRITE_BYTES: usize = 64 << 10;
/// Larger batches lie in memory of their own, which is used again, instead of in the channel's buffer.
const OWN_BYTES: usize = 32 << 10;

/// One who publishes: its number, how far it is, and its part of the schedule.
#[derive(Debug)]
struct Publisher {
    number: u32,
    next: u64,
    schedule: Option<Schedule>,
    /// Messages that are due and not sent, where each is scheduled by itself.
    waiting: VecDeque<u64>,
}

/// A channel and those who publish on it.
pub struct PublishChannel {
    line: Line,
    publishers: Vec<Publisher>,
    shared: Rc<Shared>,
    payloads: Rc<Payloads>,
    alarm: Alarm,
    batch: u32,
    unit: Unit,
    /// Ids that are free; all of them when nothing waits for an ack. Empty from the begin if none are asked for.
    free: Vec<u32>,
    acked: bool,
    unacked: usize,
    /// Publishes stop here, in nanoseconds of the clock.
    until: u64,
    counted_from: u64,
    /// The last write did not go through at once: what is late from then on is the server's doing.
    blocked: bool,
    pool: Pool,
    delivered: u64,
    missed: u64,
}

impl PublishChannel {
    /// Of the publishers `numbers` of the plan. `begin` is when the load begins.
    pub fn new(
        line: Line,
        numbers: impl Iterator<Item = usize>,
        plan: &Plan,
        shared: Rc<Shared>,
        payloads: Rc<Payloads>,
    ) -> Result<Self, LineError> {
        let schedule = |number: usize| match (plan.pace, plan.unit) {
            (Pace::Closed, _) => None,
            (Pace::Open { rate, arrivals }, unit) => {
                let per_second = if unit == Unit::Batch { rate / f64::from(plan.batch) } else { rate };
                Some(Schedule::new(arrivals, per_second, number, plan.publishers, plan.seed))
            }
        };
        let publishers = numbers
            .map(|number| Publisher {
                number: u32::try_from(number).unwrap_or(u32::MAX),
                next: 0,
                schedule: schedule(number),
                waiting: VecDeque::new(),
            })
            .collect();
        let in_flight = plan.in_flight.min(line.max_requests);
        Ok(Self {
            line,
            publishers,
            alarm: Alarm::new()?,
            batch: plan.batch,
            unit: plan.unit,
            free: (1..=in_flight).rev().collect(),
            acked: plan.in_flight > 0,
            unacked: 0,
            until: shared.begin + plan.counted().end,
            counted_from: shared.begin + plan.counted().start,
            blocked: false,
            pool: Pool::default(),
            delivered: 0,
            missed: 0,
            shared,
            payloads,
        })
    }

    /// Publishes until the time is up, and says how much it was.
    pub async fn run(mut self) -> Result<(), LineError> {
        let mut enlisted = false;
        let ended = std::future::poll_fn(|cx| {
            if !std::mem::replace(&mut enlisted, true) {
                self.shared.finish.enlist(cx.waker());
            }
            self.poll(cx)
        })
        .await;
        for publisher in &self.publishers {
            self.shared.finish.sent(publisher.number as usize, publisher.next);
        }
        self.count_acks();
        // Stays open until all is over: closing a connection may end what is still under way on it.
        if ended.is_ok() {
            self.linger().await;
        }
        ended
    }

    fn count_acks(&self) {
        let mut recorder = self.shared.recorder.borrow_mut();
        recorder.acked_deliveries += self.delivered;
        recorder.acked_misses += self.missed;
    }

    /// Reads, and answers pings, until everybody is done.
    async fn linger(&mut self) {
        std::future::poll_fn(|cx| {
            loop {
                if self.shared.finish.is_over() || self.receive().is_err() {
                    return Poll::Ready(());
                }
                self.line.keep_alive(cx);
                let _ = self.line.poll_send(cx);
                match self.line.poll_receive(cx) {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Ok(_)) => {}
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                }
            }
        })
        .await;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LineError>> {
        loop {
            if self.shared.finish.is_given_up() {
                return Poll::Ready(Ok(()));
            }
            let now = self.shared.clock.now();
            self.compose(now);
            self.line.keep_alive(cx);
            let sent = self.line.poll_send(cx)?;
            self.blocked = sent.is_pending();
            let arrived = match self.line.poll_receive(cx)? {
                Poll::Ready(_) => {
                    self.receive()?;
                    true
                }
                Poll::Pending => false,
            };
            if self.blocked {
                return Poll::Pending;
            }
            let over = now >= self.until && !self.any_due_before_the_end();
            if over && self.unacked == 0 {
                return Poll::Ready(Ok(()));
            }
            if arrived {
                continue; // there may be more
            }
            if over || (self.acked && self.free.is_empty()) {
                return Poll::Pending; // for acks
            }
            match self.next_due() {
                Some(at) if at > now => ready!(self.alarm.poll(cx, &self.shared.clock, at))?,
                // At once, but those who receive on the same thread have a turn before.
                _ => {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Composes what is due, as much as goes into one write.
    fn compose(&mut self, now: u64) {
        let (mut index, mut idle) = (0, 0);
        while idle < self.publishers.len() && self.line.out.len() < WRITE_BYTES {
            if self.acked && self.free.is_empty() {
                return;
            }
            match self.compose_one(index, now) {
                true => idle = 0,
                false => idle += 1,
            }
            index = (index + 1) % self.publishers.len();
        }
    }

    /// Composes a batch of one publisher, if one is due.
    fn compose_one(&mut self, index: usize, now: u64) -> bool {
        let publisher = &mut self.publishers[index];
        let Some(schedule) = &mut publisher.schedule else {
            if now >= self.until {
                return false;
            }
            self.put(index, self.batch, |_| now);
            return true;
        };
        let begin = self.shared.begin;
        let due = |schedule: &Schedule| begin + schedule.peek();
        match self.unit {
            Unit::Batch => {
                let at = due(schedule);
                if at > now || at >= self.until {
                    return false;
                }
                schedule.take();
                self.lag(at, now);
                self.put(index, self.batch, |_| at);
            }
            Unit::Message { linger } => {
                while publisher.waiting.len() < self.batch as usize && due(schedule) <= now.min(self.until - 1) {
                    publisher.waiting.push_back(begin + schedule.take());
                }
                let Some(ready_at) = ready_at(&publisher.waiting, self.batch, linger) else { return false };
                if ready_at > now {
                    return false;
                }
                let waiting = std::mem::take(&mut publisher.waiting);
                self.lag(ready_at, now);
                self.put(index, waiting.len() as u32, |at| waiting[at]);
                let publisher = &mut self.publishers[index];
                publisher.waiting = waiting;
                publisher.waiting.clear();
            }
        }
        true
    }

    fn lag(&self, due: u64, now: u64) {
        if !self.blocked && due >= self.counted_from {
            self.shared.recorder.borrow_mut().lag.record_nanos(now - due);
        }
    }

    /// Puts a publish frame of one batch behind what is to be sent.
    fn put(&mut self, index: usize, count: u32, due: impl Fn(usize) -> u64) {
        let publisher = &mut self.publishers[index];
        let id = if self.acked { self.free.pop().unwrap_or(0) } else { 0 };
        self.unacked += usize::from(self.acked);
        let payload_bytes = self.payloads.payload_bytes();
        let len = batch_bytes(count, payload_bytes);
        put_publish_prefix(self.line.out.buffer(), id, len).expect("options keep batches below the largest frame");
        let first = publisher.next;
        publisher.next += u64::from(count);
        let number = publisher.number;
        let fill = |out: &mut Vec<u8>| {
            out.reserve(len);
            put_batch_head(out, count);
            for at in 0..count as usize {
                put_record_head(out, payload_bytes);
                let head = Head { sequence: first + at as u64, due: due(at), publisher: number };
                self.payloads.put(head, out);
            }
        };
        if len <= OWN_BYTES {
            fill(self.line.out.buffer());
        } else {
            let bytes = self.pool.fill(fill);
            self.line.out.share(bytes);
        }
    }

    /// When something is due next; `None`: at once.
    fn next_due(&self) -> Option<u64> {
        let begin = self.shared.begin;
        let next = |publisher: &Publisher| {
            let schedule = publisher.schedule.as_ref()?;
            let arrival = begin + schedule.peek();
            Some(match self.unit {
                Unit::Batch => arrival,
                Unit::Message { linger } => {
                    publisher.waiting.front().map_or(arrival, |first| arrival.min(first + nanos(linger)))
                }
            })
        };
        let soonest = self.publishers.iter().map(next).min().flatten()?;
        Some(soonest.min(self.until))
    }

    fn any_due_before_the_end(&self) -> bool {
        self.publishers.iter().any(|publisher| {
            let scheduled =
                publisher.schedule.as_ref().is_some_and(|schedule| self.shared.begin + schedule.peek() < self.until);
            scheduled || !publisher.waiting.is_empty()
        })
    }

    fn receive(&mut self) -> Result<(), LineError> {
        while let Some(raw) = self.line.frame()? {
            if raw.header.kind != Kind::Published as u16 {
                return Err(unexpected(raw));
            }
            let published = Published::decode_body(body(&raw))?;
            self.delivered += published.delivered;
            self.missed += published.missed;
            self.unacked -= 1;
            let id = raw.header.id;
            self.free.push(id);
        }
        Ok(())
    }
}

/// When the messages that wait go out: when there are enough for a batch, or the first has waited long enough.
fn ready_at(waiting: &VecDeque<u64>, batch: u32, linger: Duration) -> Option<u64> {
    let patience = waiting.front()? + nanos(linger);
    Some(match waiting.get(batch as usize - 1) {
        Some(last) => patience.min(*last),
        None => patience,
    })
}

/// Bytes of a batch of so many payloads.
#[must_use]
pub fn batch_bytes(count: u32, payload_bytes: usize) -> usize {
    12 + SUBJECT.len() + count as usize * (5 + payload_bytes)
}

/// Checksum (none), count, subject, no subject for replies.
fn put_batch_head(out: &mut Vec<u8>, count: u32) {
    out.extend_from_slice(&0_u32.to_le_bytes());
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&(SUBJECT.len() as u16).to_le_bytes());
    out.extend_from_slice(SUBJECT);
    out.extend_from_slice(&0_u16.to_le_bytes());
}

/// A record that is only a payload.
#[inline]
pub fn put_record_head(out: &mut Vec<u8>, payload_bytes: usize) {
    let mut head = [0; 5];
    head[..4].copy_from_slice(&(payload_bytes as u32 + 1).to_le_bytes());
    out.extend_from_slice(&head);
}

/// Memory for batches, used again when they have been sent: fresh pages would cost more than what is written to them.
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
    use crate::native::payload::Depth;
    use thalweg_wire::Batch;

    #[test]
    fn batches_are_those_of_the_protocol() {
        let payloads = Payloads::new(100, 1, Depth::Full);
        let mut out = Vec::new();
        put_batch_head(&mut out, 3);
        for sequence in 0..3 {
            put_record_head(&mut out, 100);
            payloads.put(Head { sequence, due: 9, publisher: 1 }, &mut out);
        }
        assert_eq!(out.len(), batch_bytes(3, 100));
        let batch = Batch::decode(&out).unwrap();
        assert_eq!((batch.subject(), batch.reply(), batch.check()), (SUBJECT, &b""[..], Ok(())));
        for (sequence, message) in (0..).zip(batch.messages()) {
            let head = payloads.judge(message.unwrap().payload);
            assert_eq!(head, Some(Head { sequence, due: 9, publisher: 1 }));
        }
    }

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
