//! Frames that write, which carry commands, and the replies to them.
//!
//! Owns: the contents of these frames. Does not own: the encoding of commands (`thalweg_types::command`), or the choice
//! of the reply to an outcome (`outcome`).
//!
//! A write carries a command in the encoding of `docs/formats/command.md`. The server writes the same bytes to the log.
//! So writes have only one encoding, and a client can send everything that a commit or a transaction can contain.
//!
//! The cost for clients is that commands name keyspaces, streams and groups by id. A client looks up an id once, with
//! [`FindKeyspace`](super::FindKeyspace) or a similar request, or gets it from the command that creates the object. Ids
//! are never reused, so the server rejects an outdated id instead of applying the command to another object.
//! [`ClientCommand`](crate::ClientCommand) checks if a client may send a command.

use thalweg_types::{
    Attempt, Durability, LeaseId, Offset, Revision, SpaceTime, StreamId,
    codec::{EncodeError, Field, Level, List, RemainingBytes, structure, variants},
    command::CommandError,
};

use super::Kind;
use crate::header::{Fields, put_frame};

structure! {
    /// Requests the execution of a command.
    Write<'a> as "write" {
        /// Durability level that the command must reach before the server acknowledges it.
        level: Level,
        /// Encoded command, without the frame of a log entry around it.
        command: RemainingBytes<'a>,
    }
}

/// Appends a [`Write`] frame. `encode` writes the command directly into `out`, which avoids copying a large command.
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

/// Error returned when a command cannot be encoded in a frame. The output buffer is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PutWriteError {
    /// The command breaks a limit, for example on the length of a key.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The frame exceeds the size limit of the protocol.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

structure! {
    /// Requests the execution of a command, and then the publishing of batches. The server publishes the batches at
    /// most once, and only if the command reaches the requested durability level. If the server stops in between, they
    /// are not published. For messages that must not be lost, use an append in the same command instead.
    WriteAndPublish<'a> as "write and publish" {
        /// Durability level that the command must reach before the server acknowledges it.
        level: Level,
        /// Encoded batches to publish, see [`Batch`](crate::Batch).
        batches: List<'a, &'a [u8]>,
        /// Encoded command to execute.
        command: RemainingBytes<'a>,
    }
}

structure! {
    /// Stream and offsets of the records of one append.
    Appended as "appended" {
        /// Id of the stream to which the records were appended.
        stream: StreamId,
        /// Offset of the first appended record.
        first: Offset,
        /// Number of appended records.
        count: u32,
    }
}

structure! {
    /// Reply to a commit that the server executed. At level `none` the server has only queued the commit, and the
    /// outcome is unknown.
    Committed<'a> as "committed" {
        /// Durability level that the commit reached.
        durability: Durability,
        /// True if the server had executed this commit before, and the producer has sent it again.
        duplicate: bool,
        /// Revision of the commit; 0 at level `none`.
        revision: Revision,
        /// Stream and offsets of each append that the commit contained, in order.
        appends: List<'a, Appended>,
    }
}

structure! {
    /// A condition of a commit or transaction that did not hold.
    FailedCondition as "failed condition" {
        /// Index of the condition among those of the request, from 0.
        condition: u32,
        /// Present revision of the key that the condition is about; 0 means that the key has no value.
        revision: Revision,
    }
}

structure! {
    /// A key-value pair that a transaction read in a scan.
    ScannedPair<'a> as "scanned pair" {
        /// Revision of the commit that wrote the value.
        revision: Revision,
        /// Key of the pair.
        key: &'a [u8],
        /// Value of the pair; none if the request excluded values.
        value: Option<&'a [u8]>,
    }
}

variants! {
    /// Result of one operation of a transaction.
    OperationResult<'a> as "result" {
        /// The put set the key's value.
        Put = 0 "put" {},
        /// The delete left the key without a value.
        Deleted = 1 "deleted" {
            /// True if the key had a value.
            existed: bool
        },
        /// The append added records to a stream.
        Appended = 2 "appended" {
            /// Stream, and offsets of the appended records.
            at: Appended
        },
        /// The addition changed a counter.
        Added = 3 "added" {
            /// Value of the counter after the addition.
            value: i64
        },
        /// The operation changed the deadline of a key.
        Touched = 4 "touched" {
            /// True if the key had a value.
            existed: bool
        },
        /// The operation deleted all keys with a prefix.
        PrefixDeleted = 5 "prefix deleted" {
            /// Number of deleted keys, if the server counted them.
            keys: Option<u64>
        },
        /// The operation acked or nacked records of a consumer group.
        Settled = 6 "settled" {
            /// Number of records that were acked or nacked.
            records: u32
        },
        /// The operation read a key.
        Got = 7 "got" {
            /// Revision of the commit that wrote the value; 0 means that the key has no value.
            revision: Revision,
            /// Value of the key that the operation read.
            value: &'a [u8]
        },
        /// The operation read a page of key-value pairs in a scan.
        Scanned = 8 "scanned" {
            /// Last key of the page, if keys of the range remain after the page.
            after: Option<&'a [u8]>,
            /// Pairs of the page in the requested order.
            pairs: List<'a, ScannedPair<'a>>
        },
    }
}

structure! {
    /// Reply to a transaction. The server executed one of the transaction's two lists of operations.
    Transacted<'a> as "transacted" {
        /// Durability level that the transaction reached.
        durability: Durability,
        /// True if the executed operations wrote data.
        wrote: bool,
        /// Revision of the transaction if it wrote data, else the last revision before the transaction.
        revision: Revision,
        /// First condition that did not hold; none if all held.
        failed: Option<FailedCondition>,
        /// Results of the operations of the executed list, in order.
        results: List<'a, OperationResult<'a>>,
    }
}

structure! {
    /// Reply to a command that configures, trims, deletes or drops an object, such as a stream or a consumer group.
    Done as "done" {
        /// Durability level that the command reached.
        durability: Durability,
        /// Revision of the command, if it has one; otherwise 0.
        revision: Revision,
    }
}

structure! {
    /// Reply to a command that creates a keyspace, stream or group.
    Created as "created" {
        /// Durability level that the command reached.
        durability: Durability,
        /// True if this command created the keyspace, stream or group; false if it already existed.
        created: bool,
        /// Id of the keyspace, stream or group that the command created or found.
        id: u32,
    }
}

structure! {
    /// Reply to a command that grants a lease or keeps one alive.
    Granted as "granted" {
        /// Durability level that the command reached.
        durability: Durability,
        /// Id of the lease that was granted or kept alive.
        lease: LeaseId,
        /// Time for which a keep-alive extends the lease, in microseconds.
        ttl: u64,
        /// Time at which the lease ends unless a keep-alive arrives, in microseconds since 1970 by the clock that all
        /// nodes share.
        deadline: SpaceTime,
    }
}

structure! {
    /// Reply to the command that opens a producer with a new epoch. The producer's next sequence number is 0.
    ProducerOpened as "producer opened" {
        /// Durability level that the command reached.
        durability: Durability,
        /// Epoch of the producer; appends with lower epochs are rejected.
        epoch: u32,
    }
}

structure! {
    /// Records that a member could not ack or nack. Their delivery was no longer valid, for example after its deadline,
    /// or the records had been acked or nacked before.
    Lapsed as "lapsed" {
        /// Number of the delivery (attempt) that the member named.
        attempt: Attempt,
        /// Offset of the first record that could not be acked or nacked.
        first: Offset,
        /// Number of records, with consecutive offsets from `first` on, that could not be acked or nacked; 0 means all
        /// records of the delivery.
        count: u32,
    }
}

structure! {
    /// Reply to an ack or nack of records of a consumer group.
    Settled<'a> as "settled" {
        /// Durability level that the command reached.
        durability: Durability,
        /// Number of records that were acked or nacked.
        settled: u32,
        /// Records that could not be acked or nacked.
        lapsed: List<'a, Lapsed>,
    }
}

structure! {
    /// Reply to a command that extends the deadlines of deliveries.
    Extended<'a> as "extended" {
        /// Durability level that the command reached.
        durability: Durability,
        /// New deadline of the deliveries, in microseconds since 1970 by the clock that all nodes share.
        deadline: SpaceTime,
        /// Numbers of the deliveries (attempts) that hold no records any more, so that their deadlines were not
        /// extended.
        lapsed: List<'a, Attempt>,
    }
}

structure! {
    /// Reply to the command that moves the cursor of a consumer group.
    Sought as "sought" {
        /// Durability level that the command reached.
        durability: Durability,
        /// Offset of the next record that the group delivers.
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
        Write { level, command: RemainingBytes(&command) }.encode(&mut copied, 5).unwrap();
        put_write(&mut in_place, 5, level, |out| encode_put(out, KeyspaceId(1), b"k", b"v")).unwrap();
        assert_eq!(in_place, copied);

        let long = vec![0; MAX_KEY_BYTES + 1];
        let refused = put_write(&mut in_place, 6, level, |out| encode_put(out, KeyspaceId(1), &long, b"v"));
        assert_eq!(refused, Err(PutWriteError::Command(CommandError::KeyTooLong { got: long.len() })));
        assert_eq!(in_place, copied, "the buffer is unchanged");
    }
}
