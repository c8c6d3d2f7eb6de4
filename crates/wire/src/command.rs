//! Checks of the commands that clients send.
//!
//! Owns: the check of a [`Write`](crate::Write)'s payload, and the facts about a command that the server needs before
//! it proposes the command to the log. The server proposes the bytes of a checked command exactly as it received them,
//! so the command is never found malformed later. Does not own: the encoding (`thalweg_types::command`), or checking
//! that the ids in a command exist.

use thalweg_types::{
    Action, Classified, Durability,
    codec::Malformed,
    command::{
        BlindPut, Command, CommandError, Commit, Expect, GroupCommand, TimeCommand, Transaction, Write, check_key,
        check_value, unwrap,
    },
    limits::{MAX_COMMAND_BYTES, MAX_COMMIT_WRITES, MAX_RECORD_BYTES, MAX_TRANSACTION_SCANS},
    message::Messages,
};

/// Error returned when the server cannot accept a command from a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandRefused {
    /// The command does not decode.
    #[error("malformed command: {0}")]
    Malformed(#[from] Malformed),
    /// Clients may not send this command over the native protocol. Nodes issue it themselves: for maintenance, for a
    /// Redis client, or for a fetch of a consumer group, which needs facts that only a node has.
    #[error("clients cannot send commands of kind {kind}")]
    NotForClients {
        /// First byte of the command, which identifies its kind.
        kind: u8,
    },
    /// The command breaks a limit, for example on the length of a key.
    #[error(transparent)]
    AboveLimit(#[from] CommandError),
    /// An append has no records.
    #[error("an append needs at least one record")]
    EmptyBatch,
    /// A record of an append cannot be decoded or is too large, or the number of records differs from the stated one.
    #[error("bad records: {what}")]
    BadRecords {
        /// Description of what is wrong with the records.
        what: &'static str,
    },
    /// The client requested durability level `none`, at which the server does not report outcomes. The client needs the
    /// outcome of this command.
    #[error("a conditional write needs a durability of at least `os`: at `none` its outcome would be unknown")]
    LevelTooLow,
}

impl Classified for CommandRefused {
    fn code(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::NotForClients { .. } => "not_for_clients",
            Self::AboveLimit(CommandError::KeyTooLong { .. }) => "key_too_long",
            Self::AboveLimit(CommandError::ValueTooLong { .. }) => "value_too_long",
            Self::AboveLimit(_) => "commit_too_large",
            Self::EmptyBatch => "empty_batch",
            Self::BadRecords { .. } => "malformed_batch",
            Self::LevelTooLow => "level_too_low",
        }
    }

    fn action(&self) -> Action {
        Action::Fix
    }
}

/// Treatment of a command at durability level `none`, at which the server reports no outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtNone {
    /// The server executes the command and reports no outcome.
    Allowed,
    /// The server executes the command at level `os` instead, because the client needs a part of the answer, such as an
    /// id or a deadline.
    Raised,
    /// The server rejects the command: its effect depends on the state of the database, so without the outcome the
    /// client could not know the effect.
    Refused,
}

/// A completely checked command that a client may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientCommand<'a> {
    /// Bytes of the command, ready to be proposed to the log.
    pub bytes: &'a [u8],
    /// Treatment of this command at durability level `none`.
    pub at_none: AtNone,
    /// True if the command adds data. On a full disk, the server accepts only commands for which this is false.
    pub brings_data: bool,
    /// True if the command deletes all keys with a prefix.
    pub deletes_prefixes: bool,
}

impl<'a> ClientCommand<'a> {
    /// Checks the payload of a [`Write`](crate::Write) in one pass, without allocating.
    pub fn check(bytes: &'a [u8]) -> Result<Self, CommandRefused> {
        if bytes.len() > MAX_COMMAND_BYTES {
            return Err(CommandError::CommitTooLarge.into());
        }
        // The version that the command needs is checked later, by the proposer: only the node knows the version in
        // force.
        let inner = unwrap(bytes).bytes;
        if let Some(BlindPut { key, value, .. }) = BlindPut::decode(inner) {
            check_key(key)?;
            check_value(value)?;
            return Ok(Self { bytes, at_none: AtNone::Allowed, brings_data: true, deletes_prefixes: false });
        }
        let mut deletes_prefixes = false;
        let (at_none, brings_data) = match &Command::decode(inner)? {
            Command::Commit(commit) => check_commit(commit)?,
            Command::Transaction(transaction) => {
                let mut conditions = 0;
                for condition in transaction.conditions() {
                    check_key(condition?.key)?;
                    conditions += 1;
                }
                let [then, otherwise] = transaction.branches()?;
                let mut seen = CheckedWrites::default();
                for operation in then.chain(otherwise) {
                    seen.write(&operation?)?;
                }
                seen.within(conditions)?;
                deletes_prefixes = seen.deletes_prefixes;
                (AtNone::Refused, seen.brings_data)
            }
            Command::CreateKeyspace { .. } | Command::CreateStream { .. } | Command::OpenProducer { .. } => {
                (AtNone::Raised, true)
            }
            Command::ConfigureKeyspace { .. } | Command::DropKeyspace { .. } => (AtNone::Raised, false),
            Command::ConfigureStream { .. } | Command::DeleteStream { .. } | Command::TrimStream { .. } => {
                (AtNone::Allowed, false)
            }
            Command::Time(TimeCommand::Grant { .. } | TimeCommand::Keep { .. } | TimeCommand::Revoke { .. }) => {
                (AtNone::Raised, false)
            }
            Command::Group(GroupCommand::Create { .. }) => (AtNone::Raised, true),
            Command::Group(
                GroupCommand::Configure { .. }
                | GroupCommand::Delete { .. }
                | GroupCommand::Settle(_)
                | GroupCommand::Extend { .. }
                | GroupCommand::Seek { .. },
            ) => (AtNone::Refused, false),
            Command::Sweep { .. }
            | Command::ForgetProducers { .. }
            | Command::EnforceRetention { .. }
            | Command::PruneVersions { .. }
            | Command::Digest { .. }
            | Command::RaiseVersion { .. }
            | Command::Redis(_)
            | Command::RedisJoint(_)
            | Command::Time(TimeCommand::Expire { .. } | TimeCommand::Forget { .. })
            | Command::Group(GroupCommand::Fetch(_) | GroupCommand::Reclaim { .. }) => {
                return Err(CommandRefused::NotForClients { kind: inner.first().copied().unwrap_or_default() });
            }
        };
        Ok(Self { bytes, at_none, brings_data, deletes_prefixes })
    }

    /// Decodes the checked command.
    #[must_use]
    pub fn command(&self) -> Command<'a> {
        Command::decode(unwrap(self.bytes).bytes).expect("check() decoded these bytes")
    }

    /// Returns the command if it is a transaction that only reads. The server answers it without the log.
    #[must_use]
    pub fn reading_transaction(&self) -> Option<Transaction<'a>> {
        if self.at_none != AtNone::Refused || self.brings_data {
            return None;
        }
        match self.command() {
            Command::Transaction(transaction) => transaction.only_reads().ok()?.then_some(transaction),
            _ => None,
        }
    }

    /// Returns the durability level at which the server proposes the command, if the client has requested the level
    /// `wanted`.
    pub fn level(&self, wanted: Durability) -> Result<Durability, CommandRefused> {
        match (wanted, self.at_none) {
            (Durability::None, AtNone::Refused) => Err(CommandRefused::LevelTooLow),
            (Durability::None, AtNone::Raised) => Ok(Durability::Os),
            (level, _) => Ok(level),
        }
    }
}

fn check_commit(commit: &Commit<'_>) -> Result<(AtNone, bool), CommandRefused> {
    let mut seen = CheckedWrites::default();
    let mut conditional = false;
    for condition in commit.conditions() {
        let condition = condition?;
        check_key(condition.key)?;
        conditional |= condition.expect != Expect::Any;
    }
    for write in commit.writes()? {
        seen.write(&write?)?;
    }
    seen.within(commit.condition_count() as usize)?;
    let at_none = if conditional || seen.depends { AtNone::Refused } else { AtNone::Allowed };
    Ok((at_none, seen.brings_data))
}

/// Summary of the writes of one command, collected while they are checked one by one.
#[derive(Debug, Default)]
struct CheckedWrites {
    count: usize,
    scans: usize,
    brings_data: bool,
    /// True if the outcome of at least one write depends on data in the database.
    depends: bool,
    deletes_prefixes: bool,
}

impl CheckedWrites {
    fn write(&mut self, write: &Write<'_>) -> Result<(), CommandRefused> {
        self.count += 1;
        match write {
            Write::Put { key, value, .. } => {
                self.brings_data = true;
                check_key(key)?;
                check_value(value)?;
            }
            Write::PutUntil { key, value, lease, .. } => {
                self.brings_data = true;
                self.depends |= lease.is_some();
                check_key(key)?;
                check_value(value)?;
            }
            Write::Append { expected, producer, count, batch, .. } => {
                self.brings_data = true;
                self.depends |= expected.is_some() || producer.is_some();
                check_records(*count, batch)?;
            }
            Write::Add { key, .. } => {
                self.brings_data = true;
                check_key(key)?;
            }
            Write::Delete { key, .. } | Write::Touch { key, .. } | Write::Get { key, .. } => check_key(key)?,
            Write::DeletePrefix { prefix, .. } => {
                self.deletes_prefixes = true;
                check_key(prefix)?;
            }
            Write::Scan { scan, .. } => {
                self.scans += 1;
                if self.scans > MAX_TRANSACTION_SCANS {
                    return Err(CommandError::TooManyScans.into());
                }
                [Some(scan.prefix), scan.start, scan.end].into_iter().flatten().try_for_each(check_key)?;
            }
            Write::Settle(_) => self.depends = true,
        }
        Ok(())
    }

    fn within(&self, conditions: usize) -> Result<(), CommandRefused> {
        if self.count + conditions > MAX_COMMIT_WRITES { Err(CommandError::CommitTooLarge.into()) } else { Ok(()) }
    }
}

fn check_records(count: u32, batch: &[u8]) -> Result<(), CommandRefused> {
    if count == 0 {
        return Err(CommandRefused::EmptyBatch);
    }
    let mut found: u32 = 0;
    let mut from = 0;
    let mut messages = Messages::new(batch);
    while let Some(message) = messages.next() {
        let message = message.map_err(|malformed| CommandRefused::BadRecords { what: malformed.expected })?;
        if messages.position() - from > MAX_RECORD_BYTES + 4 {
            return Err(CommandRefused::BadRecords { what: "a record is larger than the limit" });
        }
        from = messages.position();
        message.key.map_or(Ok(()), check_key)?;
        found += 1; // a record has at least 5 bytes
    }
    if found == count {
        Ok(())
    } else {
        Err(CommandRefused::BadRecords { what: "the record count differs from the stated count" })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use thalweg_types::{
        GroupId, KeyspaceId, LeaseId, Offset, StreamId,
        command::{
            AppendConditions, CommitBuilder, Deadline, KeyspaceConfig, ProducerStamp, StreamConfig, TransactionBuilder,
            encode_append, encode_append_with, encode_create_keyspace, encode_create_stream, encode_delete,
            encode_digest, encode_enforce_retention, encode_expire, encode_forget_producers, encode_grant_lease,
            encode_open_producer, encode_put, encode_put_until, encode_raise_version, encode_sweep, encode_trim_stream,
            encode_versioned,
            groups::{Settlement, encode_ack, encode_fetch, encode_reclaim_group, encode_seek},
        },
        limits::MAX_KEY_BYTES,
        record::RecordBatch,
    };

    const KS: KeyspaceId = KeyspaceId(1);
    const STREAM: StreamId = StreamId(2);

    fn encoded(encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out).unwrap();
        out
    }

    fn infallible(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out);
        out
    }

    fn records(payloads: &[&[u8]]) -> RecordBatch {
        let mut batch = RecordBatch::new();
        payloads.iter().for_each(|payload| batch.push_payload(payload).unwrap());
        batch
    }

    #[test]
    fn a_wrapped_command_is_checked_like_the_one_in_it_and_goes_on_with_its_wrapper() {
        let wrap = |inner: &[u8]| infallible(|out| encode_versioned(out, 2, |out| out.extend_from_slice(inner)));
        let put = wrap(&encoded(|out| encode_put(out, KS, b"key", b"value")));
        assert_eq!(checked(&put), (AtNone::Allowed, true));
        assert!(matches!(ClientCommand::check(&put).unwrap().command(), Command::Commit(_)));
        let refused = |command: &[u8]| ClientCommand::check(command).unwrap_err();
        let long = wrap(&infallible(|out| {
            out.extend_from_slice(&[1, 0, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0]);
            out.extend_from_slice(&(MAX_KEY_BYTES as u32 + 1).to_le_bytes());
            out.resize(out.len() + MAX_KEY_BYTES + 1, b'k');
        }));
        assert_eq!(refused(&long), CommandError::KeyTooLong { got: MAX_KEY_BYTES + 1 }.into());
        assert!(matches!(refused(b"\xfe\x01\0\x05\x01\0\0\0"), CommandRefused::Malformed(_)));
        for (kind, own) in [
            (26, infallible(|out| encode_digest(out, 1))),
            (27, infallible(|out| encode_raise_version(out, 1))),
            (11, infallible(|out| encode_sweep(out, 1))),
        ] {
            for command in [wrap(&own), own] {
                assert_eq!(refused(&command), CommandRefused::NotForClients { kind });
            }
        }
    }

    fn checked(bytes: &[u8]) -> (AtNone, bool) {
        let command = ClientCommand::check(bytes).unwrap();
        assert_eq!(command.bytes, bytes);
        (command.at_none, command.brings_data)
    }

    #[test]
    fn what_clients_may_send_and_what_none_means_for_it() {
        let batch = records(&[b"r"]);
        let stamp = AppendConditions {
            producer: Some(ProducerStamp { id: "p", epoch: 0, sequence: 0 }),
            ..AppendConditions::default()
        };
        let mut conditional = CommitBuilder::new();
        conditional.expect(KS, b"k", Expect::Absent).unwrap().delete(KS, b"k").unwrap();
        let mut touch = CommitBuilder::new();
        touch.touch(KS, b"k", Deadline::Never).unwrap();
        let mut transaction = TransactionBuilder::new();
        transaction.then().get(KS, b"k").unwrap().add(KS, b"n", 1).unwrap();
        let lease = Some(LeaseId(9));
        let second = Duration::from_secs(1);
        for (bytes, wanted) in [
            (encoded(|out| encode_put(out, KS, b"k", b"v")), (AtNone::Allowed, true)),
            (encoded(|out| encode_delete(out, KS, b"k")), (AtNone::Allowed, false)),
            (infallible(|out| touch.encode(out)), (AtNone::Allowed, false)),
            (encoded(|out| encode_put_until(out, KS, b"k", b"v", Deadline::Keep, None)), (AtNone::Allowed, true)),
            (encoded(|out| encode_put_until(out, KS, b"k", b"v", Deadline::Default, lease)), (AtNone::Refused, true)),
            (infallible(|out| conditional.encode(out)), (AtNone::Refused, false)),
            (encoded(|out| transaction.encode(out)), (AtNone::Refused, true)),
            (infallible(|out| encode_append(out, STREAM, None, &batch)), (AtNone::Allowed, true)),
            (infallible(|out| encode_append(out, STREAM, Offset(3), &batch)), (AtNone::Refused, true)),
            (encoded(|out| encode_append_with(out, STREAM, &stamp, &batch)), (AtNone::Refused, true)),
            (encoded(|out| encode_create_keyspace(out, "k", &KeyspaceConfig::default())), (AtNone::Raised, true)),
            (encoded(|out| encode_create_stream(out, "s", &StreamConfig::default())), (AtNone::Raised, true)),
            (infallible(|out| encode_trim_stream(out, STREAM, Offset(3))), (AtNone::Allowed, false)),
            (encoded(|out| encode_open_producer(out, STREAM, "p")), (AtNone::Raised, true)),
            (encoded(|out| encode_grant_lease(out, lease, second)), (AtNone::Raised, false)),
            (encoded(|out| encode_ack(out, GroupId(1), &[Settlement::all(7.into())])), (AtNone::Refused, false)),
            (infallible(|out| encode_seek(out, GroupId(1), None)), (AtNone::Refused, false)),
        ] {
            assert_eq!(checked(&bytes), wanted, "{bytes:?}");
            for cut in 0..bytes.len() {
                assert!(ClientCommand::check(&bytes[..cut]).is_err(), "{bytes:?} cut to {cut}");
            }
            assert!(ClientCommand::check(&[&bytes[..], b"x"].concat()).is_err(), "{bytes:?} and more");
        }
    }

    #[test]
    fn maintenance_is_not_for_clients() {
        for bytes in [
            infallible(|out| encode_sweep(out, 1)),
            infallible(|out| encode_expire(out, 1)),
            infallible(|out| encode_forget_producers(out, STREAM, 1)),
            infallible(|out| encode_enforce_retention(out, STREAM, Offset(1), &StreamConfig::default())),
            encoded(|out| encode_fetch(out, GroupId(1), 1, Offset(0), &[], "m")),
            infallible(|out| encode_reclaim_group(out, GroupId(1), 1)),
        ] {
            let error = ClientCommand::check(&bytes).unwrap_err();
            assert_eq!(error, CommandRefused::NotForClients { kind: bytes[0] });
        }
    }

    #[test]
    fn records_are_checked_inside() {
        let empty = infallible(|out| encode_append(out, STREAM, None, &RecordBatch::new()));
        assert_eq!(ClientCommand::check(&empty).unwrap_err(), CommandRefused::EmptyBatch);
        let good = infallible(|out| encode_append(out, STREAM, None, &records(&[b"one", b"two"])));
        let flags_at = good.len() - 4;
        let mut bad = good.clone();
        bad[flags_at] = 0x80;
        assert!(matches!(ClientCommand::check(&bad), Err(CommandRefused::BadRecords { .. })));
        let mut bad = good;
        let count_at = bad.len() - 16 - 8;
        assert_eq!(bad[count_at], 2);
        bad[count_at] = 3;
        assert!(matches!(
            ClientCommand::check(&bad),
            Err(CommandRefused::BadRecords { .. } | CommandRefused::Malformed(_))
        ));
    }

    #[test]
    fn levels_are_raised_or_refused() {
        let put = encoded(|out| encode_put(out, KS, b"k", b"v"));
        let create = encoded(|out| encode_create_keyspace(out, "k", &KeyspaceConfig::default()));
        let ack = encoded(|out| encode_ack(out, GroupId(1), &[]));
        let level = |bytes: &[u8], wanted| ClientCommand::check(bytes).unwrap().level(wanted);
        assert_eq!(level(&put, Durability::None), Ok(Durability::None));
        assert_eq!(level(&create, Durability::None), Ok(Durability::Os));
        assert_eq!(level(&ack, Durability::None), Err(CommandRefused::LevelTooLow));
        assert_eq!(level(&ack, Durability::Disk), Ok(Durability::Disk));
    }
}
