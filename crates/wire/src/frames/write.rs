//! Writes, which are commands, and what comes of them.
//!
//! A write carries a command as `docs/formats/command.md` describes it, byte for byte what goes into the log. So there
//! is one encoding of what can be written, the server proposes the bytes as they came, and whatever a commit or a
//! transaction can hold, a client can send. What it costs a client: keyspaces, streams and groups are named by
//! id, so it asks for them once ([`FindKeyspace`](super::FindKeyspace) and the like, or the command that creates them)
//! and remembers; ids are never used twice, so one that is remembered for too long is refused and never misread.
//! What may be sent is checked by [`ClientCommand`](crate::ClientCommand).

use thalweg_types::{Attempt, Durability, LeaseId, Offset, Revision, SpaceTime, StreamId, command::CommandError};

use super::Kind;
use crate::{
    codec::{EncodeError, Field, Level, List, Rest},
    header::{Fields, put_frame},
    layouts::{structure, variants},
};

structure! {
    /// Carries out a command.
    Write<'a> as "write" {
        /// Which ack is wanted.
        level: Level,
        /// The command, without an entry's frame around it.
        command: Rest<'a>,
    }
}

/// Appends a [`Write`] frame whose command `encode` writes in place: saves the copy of a large one.
pub fn put_write(
    out: &mut Vec<u8>,
    id: u32,
    level: Level,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>,
) -> Result<(), PutWriteError> {
    let mut refused = None;
    let begin = out.len();
    put_frame(out, Kind::Write as u16, id, &Fields::default(), |out| {
        level.put(out)?;
        refused = encode(out).err();
        Ok(())
    })?;
    match refused {
        None => Ok(()),
        Some(error) => {
            out.truncate(begin);
            Err(error.into())
        }
    }
}

/// A command can't be sent. The buffer is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutWriteError {
    /// It breaks a limit of commands.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The frame is too large.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

structure! {
    /// Carries out a command, and if that was done at the level wanted, publishes batches: at most once, and not if the
    /// server stops in between. What must not be lost is an append in the same command.
    WriteAndPublish<'a> as "write and publish" {
        /// Which ack is wanted.
        level: Level,
        /// [`Batch`](crate::Batch)es.
        batches: List<'a, &'a [u8]>,
        /// The command.
        command: Rest<'a>,
    }
}

structure! {
    /// Where an append put its records.
    Appended as "appended" {
        /// The stream.
        stream: StreamId,
        /// Offset of the first.
        first: Offset,
        /// How many.
        count: u32,
    }
}

structure! {
    /// A commit was carried out, or at level `none`: taken, and its outcome is not known.
    Committed<'a> as "committed" {
        /// The level that was reached.
        durability: Durability,
        /// Whether it had been carried out before: a producer sent it again.
        duplicate: bool,
        /// The commit's revision; 0 at level `none`.
        revision: Revision,
        /// One for each append, in order.
        appends: List<'a, Appended>,
    }
}

structure! {
    /// A condition that did not hold.
    FailedCondition as "failed condition" {
        /// Which, from 0.
        condition: u32,
        /// What the key is at; 0: it has no value.
        revision: Revision,
    }
}

structure! {
    /// A pair that a transaction read.
    ScannedPair<'a> as "scanned pair" {
        /// When it was written.
        revision: Revision,
        /// The key.
        key: &'a [u8],
        /// The value, if it was asked for.
        value: Option<&'a [u8]>,
    }
}

variants! {
    /// What came of an operation of a transaction.
    OperationResult<'a> as "result" {
        /// The key has the value.
        Put = 0 "put" {},
        /// The key has no value.
        Deleted = 1 "deleted" {
            /// Whether it had one.
            existed: bool
        },
        /// The records are appended.
        Appended = 2 "appended" {
            /// Where.
            at: Appended
        },
        /// The counter has been added to.
        Added = 3 "added" {
            /// What it is now.
            value: i64
        },
        /// The key ends at another time.
        Touched = 4 "touched" {
            /// Whether there was one.
            existed: bool
        },
        /// No key has the prefix.
        PrefixDeleted = 5 "prefix deleted" {
            /// How many had, if they were counted.
            keys: Option<u64>
        },
        /// Records of a group are acked or given back.
        Settled = 6 "settled" {
            /// How many.
            records: u32
        },
        /// A key was read.
        Got = 7 "got" {
            /// When it was written; 0: it has no value.
            revision: Revision,
            /// The value.
            value: &'a [u8]
        },
        /// Pairs were read.
        Scanned = 8 "scanned" {
            /// The last key looked at, if the page ended before the range did.
            after: Option<&'a [u8]>,
            /// In the order asked for.
            pairs: List<'a, ScannedPair<'a>>
        },
    }
}

structure! {
    /// One of a transaction's lists was carried out.
    Transacted<'a> as "transacted" {
        /// The level that was reached.
        durability: Durability,
        /// Whether it wrote.
        wrote: bool,
        /// Its revision if it wrote, else the last one before it.
        revision: Revision,
        /// The first condition that did not hold.
        failed: Option<FailedCondition>,
        /// One for each operation of the list.
        results: List<'a, OperationResult<'a>>,
    }
}

structure! {
    /// Something was configured, trimmed, deleted or dropped.
    Done as "done" {
        /// The level that was reached.
        durability: Durability,
        /// The command's revision; 0: it has none.
        revision: Revision,
    }
}

structure! {
    /// A keyspace, stream or group exists.
    Created as "created" {
        /// The level that was reached.
        durability: Durability,
        /// Whether this command created it.
        created: bool,
        /// Its id.
        id: u32,
    }
}

structure! {
    /// A lease lives.
    Granted as "granted" {
        /// The level that was reached.
        durability: Durability,
        /// Its id.
        lease: LeaseId,
        /// Microseconds that it lives without being kept alive.
        ttl: u64,
        /// When it ends unless it is kept alive, in space time.
        deadline: SpaceTime,
    }
}

structure! {
    /// A producer is open; the next sequence is 0.
    ProducerOpened as "producer opened" {
        /// The level that was reached.
        durability: Durability,
        /// Its epoch.
        epoch: u32,
    }
}

structure! {
    /// What was not settled because its attempt has lapsed or it was settled before.
    Lapsed as "lapsed" {
        /// The attempt.
        attempt: Attempt,
        /// First of the records.
        first: Offset,
        /// How many; 0: all that the attempt had.
        count: u32,
    }
}

structure! {
    /// Records of a group are acked or given back.
    Settled<'a> as "settled" {
        /// The level that was reached.
        durability: Durability,
        /// How many.
        settled: u32,
        /// What was not.
        lapsed: List<'a, Lapsed>,
    }
}

structure! {
    /// Attempts have another deadline.
    Extended<'a> as "extended" {
        /// The level that was reached.
        durability: Durability,
        /// The new one, in space time.
        deadline: SpaceTime,
        /// Attempts that hold nothing any more.
        lapsed: List<'a, Attempt>,
    }
}

structure! {
    /// A group delivers from another offset on.
    Sought as "sought" {
        /// The level that was reached.
        durability: Durability,
        /// Next to deliver.
        cursor: Offset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Frame;
    use thalweg_types::{KeyspaceId, command::encode_put, limits::MAX_KEY_BYTES};

    #[test]
    fn a_command_encoded_in_place_is_the_same_frame() {
        let (mut in_place, mut copied, mut command) = (vec![9], vec![9], Vec::new());
        encode_put(&mut command, KeyspaceId(1), b"k", b"v").unwrap();
        let level = Level(Some(Durability::Os));
        Write { level, command: Rest(&command) }.encode(&mut copied, 5).unwrap();
        put_write(&mut in_place, 5, level, |out| encode_put(out, KeyspaceId(1), b"k", b"v")).unwrap();
        assert_eq!(in_place, copied);

        let long = vec![0; MAX_KEY_BYTES + 1];
        let refused = put_write(&mut in_place, 6, level, |out| encode_put(out, KeyspaceId(1), &long, b"v"));
        assert_eq!(refused, Err(PutWriteError::Command(CommandError::KeyTooLong { got: long.len() })));
        assert_eq!(in_place, copied, "as it was");
    }
}
