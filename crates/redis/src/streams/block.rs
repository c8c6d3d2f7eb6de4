//! What a session waits for when a client reads with `BLOCK`.
//!
//! Owns: whether a command blocks, for how long and on which keys, and whether it would find something by now. Does not
//! own the waiting, nor who wakes it.
//!
//! In order: a session makes a [`Blocked`] of the arguments over one view; does the command as it was given, over the same
//! view if it only reads; and if that answered a null array, and there is no `MULTI` around it, waits until a key of
//! [`Blocked::keys`] was written, looks with [`Blocked::poll`], and does [`Blocked::arguments`] when that says so. If this
//! answers a null array (another consumer was first), it goes on waiting.

use std::time::Duration;

use bytes::Bytes;

use super::{
    groups,
    id::EntryId,
    read::{From, Reading, would_find},
    stream::Stream,
};
use crate::{
    Reply,
    command::Stop,
    store::{Read, StoreError},
};

/// Entries of each stream that a command gets that had to wait, if it does not say how many.
const COUNT_AFTER_WAITING: u64 = 1000;

/// A command that waits until there is something to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    group: Option<(Bytes, Bytes)>,
    count: u64,
    no_ack: bool,
    timeout: Option<Duration>,
    streams: Vec<(Bytes, Option<EntryId>)>,
}

/// How it stands with a command that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll {
    /// There is nothing yet.
    Waiting,
    /// The command would answer something.
    Ready,
    /// There won't be anything: this is its answer.
    Ended(Reply),
}

impl Blocked {
    /// The command of these arguments, if it is one that may block and was asked to. One that is wrong is none.
    pub fn begin(read: &dyn Read, arguments: &[&[u8]]) -> Result<Option<Self>, StoreError> {
        let is_one = |name| arguments.first().is_some_and(|command| super::arguments::is(command, name));
        if !is_one("xread") && !is_one("xreadgroup") {
            return Ok(None);
        }
        match Self::of(read, arguments) {
            Ok(blocked) => Ok(blocked),
            Err(Stop::Refused(_)) => Ok(None),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn of(read: &dyn Read, arguments: &[&[u8]]) -> Result<Option<Self>, Stop> {
        let reading = Reading::parse(arguments)?;
        let Some(block) = reading.block else { return Ok(None) };
        let mut streams = Vec::new();
        for (&key, &id) in reading.keys.iter().zip(&reading.ids) {
            let last = match id {
                b"$" => Stream::find(read, key)?.map_or(EntryId::ZERO, |stream| stream.meta.last_id),
                _ => EntryId::ZERO,
            };
            let after = match reading.from(id, last)? {
                From::After(_) if reading.group.is_some() => return Ok(None),
                From::After(id) => Some(id),
                From::New => None,
            };
            streams.push((Bytes::copy_from_slice(key), after));
        }
        let own = Bytes::copy_from_slice;
        Ok(Some(Self {
            group: reading.group.map(|(group, consumer)| (own(group), own(consumer))),
            count: reading.count.unwrap_or(COUNT_AFTER_WAITING),
            no_ack: reading.no_ack,
            timeout: (block > 0).then(|| Duration::from_millis(block)),
            streams,
        }))
    }

    /// For how long it waits; none: until there is something.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Whether it reads for a group: then it ends if that, or its stream, goes away.
    #[must_use]
    pub fn has_group(&self) -> bool {
        self.group.is_some()
    }

    /// The streams that it reads.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.streams.iter().map(|(key, _)| key)
    }

    /// The command that is done when there is something: it does not block, and has ids that don't depend on when it is
    /// done.
    #[must_use]
    pub fn arguments(&self) -> Vec<Bytes> {
        let word = Bytes::from_static;
        let mut arguments = match &self.group {
            None => vec![word(b"XREAD")],
            Some((group, consumer)) => vec![word(b"XREADGROUP"), word(b"GROUP"), group.clone(), consumer.clone()],
        };
        if self.no_ack {
            arguments.push(word(b"NOACK"));
        }
        arguments.extend([word(b"COUNT"), self.count.to_string().into(), word(b"STREAMS")]);
        arguments.extend(self.keys().cloned());
        let id = |after: &Option<EntryId>| after.map_or(word(b">"), |id| id.to_string().into());
        arguments.extend(self.streams.iter().map(|(_, after)| id(after)));
        arguments
    }

    /// Whether there is something by now. Looks at each stream, and at none of its entries but one.
    pub fn poll(&self, read: &dyn Read) -> Result<Poll, StoreError> {
        for (key, after) in &self.streams {
            let found = match (&self.group, after) {
                (Some((group, _)), _) => match Self::poll_group(read, key, group)? {
                    Poll::Waiting => false,
                    Poll::Ready => true,
                    ended @ Poll::Ended(_) => return Ok(ended),
                },
                (None, after) => would_find(read, key, after.unwrap_or(EntryId::ZERO))?,
            };
            if found {
                return Ok(Poll::Ready);
            }
        }
        Ok(Poll::Waiting)
    }

    fn poll_group(read: &dyn Read, key: &[u8], group: &[u8]) -> Result<Poll, StoreError> {
        let gone = |text: &'static str| Ok(Poll::Ended(Reply::error(text)));
        let stream = match Stream::find(read, key) {
            Ok(Some(stream)) => stream,
            Ok(None) | Err(Stop::Refused(_)) => return gone("UNBLOCKED the stream key no longer exists"),
            Err(Stop::Failed(error)) => return Err(error),
        };
        match groups::find(read, &stream, group)? {
            None => gone("NOGROUP the consumer group this client was blocked on no longer exists"),
            Some(group) if stream.has_after(read, group.last_id)? => Ok(Poll::Ready),
            Some(_) => Ok(Poll::Waiting),
        }
    }
}
