//! Reads a stream in one of two ways: by requests, each of which continues where the previous one ended, or as a tail
//! (a subscription to the stream).
//!
//! Owns: both ways of reading, and the check that a reader gets every record once and in order. Does not own: appending
//! the records (`append`), or the scenarios (`scenario`).

use std::{sync::Arc, time::Duration};

use thalweg_transport::Outbox;
use thalweg_types::{Offset, StreamId};
use thalweg_wire::{
    Frame as _, Kind, List, Messages, Permit, Position, RawFrame, Read, ReceiveCredit, RecordRun, Records, Tail, Tailed,
};

use crate::{
    load::Clock,
    native::{
        ChannelError, ChannelRequests, Payloads, ReadyChannel, Runs, Session, SessionWait, SubscriberAccount, body,
        drive, unexpected,
    },
};

/// Checks records that were read from a stream: their offsets must follow one another, and each must have the content
/// that a publisher wrote.
#[derive(Debug)]
pub(super) struct Checker {
    payloads: Arc<Payloads>,
    runs: Runs,
    /// Account of the messages of each publisher that were read since the start of the stream.
    pub account: SubscriberAccount,
    next: u64,
}

impl Checker {
    /// Creates a checker that expects the stream's first record next.
    pub(super) fn new(payloads: Arc<Payloads>, account: SubscriberAccount) -> Self {
        Self { payloads, runs: Runs::default(), account, next: 0 }
    }

    /// Checks the record runs of a reply. A record run is a sequence of records with consecutive offsets. Returns the
    /// number of records in all of them.
    pub(super) fn take<'a>(&mut self, runs: &List<'a, RecordRun<'a>>) -> Result<u64, ChannelError> {
        let mut records = 0;
        for run in runs.iter() {
            if run.first.get() != self.next {
                let got = run.first.get();
                return Err(ChannelError::Protocol(format!("offset {got} was received instead of {}", self.next)));
            }
            self.next += u64::from(run.count);
            let mut right = 0;
            self.runs.clear();
            for message in Messages::new(run.records) {
                if let Some(head) = message.ok().and_then(|message| self.payloads.judge(message.payload)) {
                    self.runs.push(head.publisher, head.sequence);
                    right += 1;
                }
            }
            self.account.take(self.runs.all());
            self.account.wrong += u64::from(run.count).abs_diff(right);
            records += u64::from(run.count);
        }
        Ok(records)
    }

    /// Makes the checker expect the stream's first record again. `account` replaces the account of the messages that
    /// were read.
    fn rewind(&mut self, account: SubscriberAccount) {
        self.account = account;
        self.next = 0;
    }
}

/// Requests that read a stream from its first record to its last, repeatedly. Each request starts at the end of the
/// previous one, so only one request is in progress.
pub(super) struct ReadWork {
    stream: StreamId,
    batch: u32,
    /// Maximum size of a reply in bytes. It is large enough for `batch` records.
    max_bytes: u32,
    /// Number of records in the stream.
    end: u64,
    checker: Checker,
    fresh: SubscriberAccount,
    /// True while a read request of this reader is in progress.
    is_waiting: bool,
    again: AtStreamEnd,
}

/// Behaviour of a reader at the end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AtStreamEnd {
    /// The reader begins again at the stream's start.
    Yes,
    /// The reader stops, because it has read everything.
    No,
}

impl ReadWork {
    /// Creates a reader of a stream of `end` records. `fresh` is an account without messages, with which each pass over
    /// the stream begins.
    pub(super) fn new(
        stream: StreamId,
        batch: u32,
        end: u64,
        payloads: Arc<Payloads>,
        fresh: SubscriberAccount,
        again: AtStreamEnd,
    ) -> Self {
        let max_bytes = batch.saturating_mul(u32::try_from(payloads.payload_bytes() + 32).unwrap_or(u32::MAX));
        let checker = Checker::new(payloads, fresh.clone());
        Self { stream, batch, max_bytes, end, checker, fresh, is_waiting: false, again }
    }

    /// Makes the reader begin at this offset instead of the stream's start.
    pub(super) fn from(mut self, offset: u64) -> Self {
        self.checker.next = offset;
        self
    }

    /// Returns the account of the messages that were read since the start of the stream.
    pub(super) fn account(&self) -> &SubscriberAccount {
        &self.checker.account
    }

    /// Returns the offset of the next record to read.
    pub(super) fn next(&self) -> u64 {
        self.checker.next
    }
}

impl ChannelRequests for ReadWork {
    #[inline]
    fn ask(&mut self, _slot: usize, id: u32, out: &mut Outbox) -> Result<bool, ChannelError> {
        if self.is_waiting {
            return Err(ChannelError::Protocol("a reader asks for one page at a time".to_owned()));
        }
        if self.checker.next >= self.end {
            if self.again == AtStreamEnd::No {
                return Ok(false);
            }
            self.checker.rewind(self.fresh.clone());
        }
        let read = Read {
            stream: self.stream,
            from: Position::Offset { offset: Offset(self.checker.next) },
            max_records: self.batch,
            max_bytes: self.max_bytes,
        };
        read.encode(out.buffer(), id).map_err(ChannelError::protocol)?;
        self.is_waiting = true;
        Ok(true)
    }

    #[inline]
    fn judge(&mut self, _slot: usize, reply: RawFrame<'_>) -> Result<u64, ChannelError> {
        if reply.header.kind != Kind::Records as u16 {
            return Err(unexpected(reply));
        }
        self.is_waiting = false;
        let page = Records::decode_body(body(&reply))?;
        let records = self.checker.take(&page.runs)?;
        if records == 0 {
            let next = self.checker.next;
            return Err(ChannelError::Protocol(format!("no record from offset {next} of a stream of {}", self.end)));
        }
        if self.checker.account.wrong > 0 {
            return Err(ChannelError::Protocol(format!("{} records with wrong content", self.checker.account.wrong)));
        }
        Ok(records)
    }
}

/// Tails a stream (reads it by a subscription) from its start until `end` records have arrived. Returns the duration,
/// the number of received bytes, and the account of the received messages.
pub(super) async fn tail(
    mut line: ReadyChannel,
    clock: Clock,
    stream: StreamId,
    end: u64,
    checker: Checker,
    window: &Permit,
) -> Result<(Duration, u64, SubscriberAccount), ChannelError> {
    let mut tailing = Tailing { checker, end, credit: ReceiveCredit::new(window), bytes: 0 };
    let request = Tail { stream, from: Position::Start {}, permit: tailing.credit.permit() };
    request.encode(line.out.buffer(), 1).map_err(ChannelError::protocol)?;
    drive(&mut line, &clock, &mut tailing).await?;
    Ok((Duration::from_nanos(clock.now()), tailing.bytes, tailing.checker.account))
}

struct Tailing {
    checker: Checker,
    end: u64,
    credit: ReceiveCredit,
    bytes: u64,
}

impl Session for Tailing {
    fn compose(&mut self, _: &mut ReadyChannel) -> Result<(), ChannelError> {
        Ok(())
    }

    fn receive(&mut self, line: &mut ReadyChannel, bytes: usize) -> Result<(), ChannelError> {
        self.bytes += bytes as u64;
        let (mut messages, mut amount) = (0, 0);
        while let Some(raw) = line.frame()? {
            if raw.header.kind == Kind::Tailing as u16 {
                continue;
            }
            if raw.header.kind != Kind::Tailed as u16 {
                return Err(unexpected(raw));
            }
            let tailed = Tailed::decode_body(body(&raw))?;
            messages += self.checker.take(&tailed.runs)?;
            amount += tailed.runs.iter().map(|run| run.records.len() as u64).sum::<u64>();
        }
        self.credit.received(messages, amount).map_err(ChannelError::protocol)?;
        if let Some(credit) = self.credit.consumed(messages, amount) {
            credit.encode(line.out.buffer(), 1).map_err(ChannelError::protocol)?;
        }
        Ok(())
    }

    fn next(&mut self, _: bool) -> SessionWait {
        if self.checker.next >= self.end { SessionWait::Done } else { SessionWait::Channel }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::{Depth, Head, Share};
    use thalweg_types::{SpaceTime, record::RecordBatch};

    fn taken(changes: impl FnOnce(&mut Vec<u8>), first: u64) -> Result<(u64, SubscriberAccount), ChannelError> {
        let payloads = Arc::new(Payloads::new(40, 1, Depth::Full));
        let mut batch = RecordBatch::new();
        for sequence in 0..3 {
            let mut payload = Vec::new();
            payloads.put(Head { sequence, due: 0, publisher: 0 }, &mut payload);
            batch.push_payload(&payload).unwrap();
        }
        let mut bytes = batch.bytes().to_vec();
        changes(&mut bytes);
        let run = RecordRun { first: Offset(first), time: SpaceTime(0), count: 3, records: &bytes };
        let mut checker = Checker::new(payloads, SubscriberAccount::new(Share::All, 1));
        let count = checker.take(&List::Items(&[run]))?;
        Ok((count, checker.account))
    }

    #[test]
    fn records_are_checked_for_content_order_and_offsets() {
        let (count, account) = taken(|_| {}, 0).unwrap();
        assert!(count == 3 && !account.faults(&[3]).any());
        assert_eq!(account.faults(&[4]).lost, 1, "one more was acked");
        let (_, account) = taken(|bytes| bytes[35] ^= 1, 0).unwrap();
        assert_eq!(account.wrong, 1);
        assert!(taken(|_| {}, 1).is_err(), "an offset is missing");
    }
}
