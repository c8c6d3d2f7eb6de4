//! Blocking reads: the state of a session that waits because of `BLOCK`.
//!
//! Owns: the decision if a command blocks, its maximum wait and its keys, and the check if it would now find an entry.
//! Does not own: the waiting itself, or waking the session.
//!
//! Sequence: a session creates a [`Blocked`] from the arguments over one view. Then it executes the command as given.
//! If the command only reads, it uses the same view. If the reply is a null array, and the command is not within
//! `MULTI`, the session waits until a key of [`Blocked::keys`] is written. It then calls [`Blocked::poll`]. If this
//! returns `Ready`, the session executes [`Blocked::arguments`]. If the reply is again a null array, because another
//! consumer was faster, the session continues to wait.

use std::time::Duration;

use bytes::Bytes;

use super::{
    groups,
    id::EntryId,
    read::{ReadStart, Reading, has_entries},
    stream::Stream,
};
use crate::{
    Reply,
    errors::{CommandEnd, c_string},
    store::{Read, StoreError},
};

/// Maximum number of entries of each stream that a command returns if it has waited and has no option `COUNT`.
const COUNT_AFTER_WAITING: u64 = 1000;

/// An `XREAD` or `XREADGROUP` command with the option `BLOCK`, which waits until one of its streams has a new
/// entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    group: Option<(Bytes, Bytes)>,
    count: u64,
    no_ack: bool,
    timeout: Option<Duration>,
    streams: Vec<(Bytes, Option<EntryId>)>,
}

/// State of a blocking command that waits for an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Poll {
    /// No stream of the command has an entry for the command yet.
    Waiting,
    /// The command would return an entry if it were executed now.
    Ready,
    /// The command must end because its stream or group no longer exists. Contains the error reply for the client.
    Ended(Reply),
}

impl Blocked {
    /// Parses the arguments of a command that may have to wait for an entry. Returns `None` if the command is not a
    /// valid `XREAD` or `XREADGROUP` with the option `BLOCK`.
    pub fn begin(read: &dyn Read, arguments: &[&[u8]]) -> Result<Option<Self>, StoreError> {
        let is_one = |name| arguments.first().is_some_and(|command| super::arguments::is(command, name));
        if !is_one("xread") && !is_one("xreadgroup") {
            return Ok(None);
        }
        match Self::of(read, arguments) {
            Ok(blocked) => Ok(blocked),
            Err(CommandEnd::Refused(_)) => Ok(None),
            Err(CommandEnd::Failed(error)) => Err(error),
        }
    }

    fn of(read: &dyn Read, arguments: &[&[u8]]) -> Result<Option<Self>, CommandEnd> {
        let reading = Reading::parse(arguments)?;
        let Some(block) = reading.block else { return Ok(None) };
        let mut streams = Vec::new();
        for (&key, &id) in reading.keys.iter().zip(&reading.ids) {
            let last = match c_string(id) {
                b"$" => Stream::find(read, key)?.map_or(EntryId::ZERO, |stream| stream.meta.last_id),
                _ => EntryId::ZERO,
            };
            let after = match reading.from(id, last)? {
                ReadStart::After(_) if reading.group.is_some() => return Ok(None),
                ReadStart::After(id) => Some(id),
                ReadStart::New => None,
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

    /// Maximum time that the command waits; `None` without a limit.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns true if the command reads for a consumer group. Such a command ends if its group or its stream is
    /// deleted.
    #[must_use]
    pub fn has_group(&self) -> bool {
        self.group.is_some()
    }

    /// Keys of the streams that the command reads.
    pub fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.streams.iter().map(|(key, _)| key)
    }

    /// Returns the arguments of the command to execute once there is an entry. This command does not block, and its ids
    /// do not depend on the time at which it is executed.
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

    /// Checks if the waiting command would find an entry now. Reads each stream's meta, and at most one entry of each
    /// stream.
    pub fn poll(&self, read: &dyn Read) -> Result<Poll, StoreError> {
        for (key, after) in &self.streams {
            let found = match (&self.group, after) {
                (Some((group, _)), _) => match Self::poll_group(read, key, group)? {
                    Poll::Waiting => false,
                    Poll::Ready => true,
                    ended @ Poll::Ended(_) => return Ok(ended),
                },
                (None, after) => has_entries(read, key, after.unwrap_or(EntryId::ZERO))?,
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
            Ok(None) | Err(CommandEnd::Refused(_)) => return gone("UNBLOCKED the stream key no longer exists"),
            Err(CommandEnd::Failed(error)) => return Err(error),
        };
        match groups::find(read, &stream, group)? {
            None => gone("NOGROUP the consumer group this client was blocked on no longer exists"),
            Some(group) if stream.has_after(read, group.last_id)? => Ok(Poll::Ready),
            Some(_) => Ok(Poll::Waiting),
        }
    }
}
