//! Commands about time: deadlines of keys, leases, and expiry.
//!
//! Owns the encodings of requested deadlines, of the lease commands, and of the commands by which background
//! maintenance removes expired keys. Does not own the effect of a deadline, which is part of the state machine.

use std::time::Duration;

use crate::{
    clock::SpaceTime,
    codec::{EncodeError, Field, List, Malformed, Reader, conversions, put_checked, variants},
    command::error::CommandError,
    ids::LeaseId,
    limits::{MAX_STALE_BYTES, MAX_STALE_ROW_BYTES, MAX_STALE_ROWS, MAX_TTL, MIN_LEASE_TTL},
};

/// Deadline that a write gives to a key: the key expires at this time. All times are by the clock that all replicas
/// share (space time).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deadline {
    /// Deadline by the keyspace's default TTL, counted from the time of the log entry; no deadline if the keyspace has
    /// no default TTL.
    #[default]
    Default,
    /// No deadline, even if the keyspace has a default TTL.
    Never,
    /// Deadline at this duration after the time of the log entry that carries the command.
    After(Duration),
    /// Deadline at this time by the clock that all replicas share (space time). A key whose deadline has already passed
    /// counts as deleted.
    At(SpaceTime),
    /// Deadline of the key's present value, or `Default` if the key has no value. In a touch (a write that changes only
    /// the deadline) it changes nothing.
    Keep,
}

impl Deadline {
    /// Returns an error if the deadline is a TTL of 0 or above [`MAX_TTL`].
    pub fn check(self) -> Result<Self, CommandError> {
        match self {
            Self::After(ttl) if ttl.as_micros() == 0 || ttl > MAX_TTL => Err(CommandError::BadTtl { got: ttl }),
            fine => Ok(fine),
        }
    }

    /// Returns true if the new deadline depends on the key's present value, so that the write must read it.
    #[must_use]
    pub fn reads(self) -> bool {
        self == Self::Keep
    }
}

/// Encodes a deadline as its kind (one byte) and a number of microseconds, which is 0 if the kind needs none.
impl<'a> Field<'a> for Deadline {
    fn layout() -> String {
        "deadline".to_owned()
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let (kind, micros) = match self {
            Self::Default => (0, 0),
            Self::Never => (1, 0),
            Self::After(ttl) => (2, u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX)),
            Self::At(time) => (3, time.0),
            Self::Keep => (4, 0),
        };
        out.push(kind);
        micros.put(out)
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        let at = reader.position();
        match (reader.u8(what)?, reader.u64(what)?) {
            (0, 0) => Ok(Self::Default),
            (1, 0) => Ok(Self::Never),
            (2, ttl @ 1..) => Ok(Self::After(Duration::from_micros(ttl))),
            (3, time) => Ok(Self::At(SpaceTime(time))),
            (4, 0) => Ok(Self::Keep),
            _ => Err(Malformed { at, expected: "deadline" }),
        }
    }
}

conversions! {
    /// Encoding of the time to live of a lease, in microseconds.
    LeaseTtl: Duration as u64, "lease ttl" {
        put |ttl| u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX),
        take |micros| Some(Duration::from_micros(micros)).filter(|ttl| check_lease_ttl(*ttl).is_ok())
    }

    /// Encoding of a list of row keys of the expiry index. The rows may be stale: their key or lease may have another
    /// deadline by now.
    StaleRows: List<'a, &'a [u8]> as List<'a, &'a [u8]>, "stale rows" {
        put |rows| *rows,
        take |rows| {
            let fine = rows.len() <= MAX_STALE_ROWS && rows.iter().all(|row| row.len() <= MAX_STALE_ROW_BYTES);
            fine.then_some(rows)
        }
    }
}

variants! {
    /// A decoded command about leases, or about the expiry of keys.
    TimeCommand<'a> as "known command kind" {
        /// Grants a lease, to which keys can be attached so that they end with the lease.
        Grant = 16 "grant lease" {
            /// Id of the lease; 0 lets the state machine choose one.
            id: LeaseId,
            /// Time to live that the lease gets now and after each keep-alive.
            ttl: Duration as LeaseTtl,
        },
        /// Keeps a lease alive: sets its deadline to the time of this command's log entry plus the lease's time to
        /// live.
        Keep = 17 "keep lease alive" {
            /// Id of the lease to keep alive.
            id: LeaseId,
        },
        /// Ends a lease and removes its keys.
        Revoke = 18 "revoke lease" {
            /// Id of the lease to end.
            id: LeaseId,
        },
        /// Removes keys and leases that have expired.
        Expire = 19 "expire" {
            /// Maximum number of rows of the expiry index to process.
            max: u32,
        },
        /// Removes stale rows of the expiry index. A row is stale if its key or lease now has another deadline, or its
        /// key is attached to another lease.
        Forget = 20 "forget rows" {
            /// Keys of the rows in the expiry index that may be stale.
            rows: List<'a, &'a [u8]> as StaleRows,
        },
    }
}

fn check_lease_ttl(ttl: Duration) -> Result<(), CommandError> {
    if ttl < MIN_LEASE_TTL || ttl > MAX_TTL {
        return Err(CommandError::BadTtl { got: ttl });
    }
    Ok(())
}

/// Appends the encoded command that grants a lease. If `id` is `None`, the state machine chooses an id.
pub fn encode_grant_lease(out: &mut Vec<u8>, id: Option<LeaseId>, ttl: Duration) -> Result<(), CommandError> {
    check_lease_ttl(ttl)?;
    if id == Some(LeaseId::ZERO) {
        return Err(CommandError::BadLeaseId);
    }
    put_checked(out, &TimeCommand::Grant { id: id.unwrap_or_default(), ttl });
    Ok(())
}

/// Appends the encoded command that keeps a lease alive for another time to live.
pub fn encode_keep_lease(out: &mut Vec<u8>, id: LeaseId) {
    put_checked(out, &TimeCommand::Keep { id });
}

/// Appends the encoded command that ends a lease and removes its keys.
pub fn encode_revoke_lease(out: &mut Vec<u8>, id: LeaseId) {
    put_checked(out, &TimeCommand::Revoke { id });
}

/// Appends the encoded command that removes expired keys and leases. The command processes at most `max` rows of the
/// expiry index.
pub fn encode_expire(out: &mut Vec<u8>, max: u32) {
    put_checked(out, &TimeCommand::Expire { max });
}

/// Appends the encoded command that removes the given rows of the expiry index if they are stale. The command contains
/// at most [`MAX_STALE_ROWS`] rows, and no further row after [`MAX_STALE_BYTES`] bytes; the other rows are ignored. No
/// row may be longer than [`MAX_STALE_ROW_BYTES`].
pub fn encode_forget_rows<'a>(out: &mut Vec<u8>, rows: impl Iterator<Item = &'a [u8]>) {
    let mut bytes = 4;
    let fits = |row: &&[u8]| {
        let fits = bytes < MAX_STALE_BYTES;
        bytes += 4 + row.len();
        fits
    };
    let rows: Vec<_> = rows.take(MAX_STALE_ROWS).take_while(fits).collect();
    put_checked(out, &TimeCommand::Forget { rows: List::Items(&rows) });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        command::{Command, Commit, CommitBuilder, Expect, Write, encode_put_until},
        ids::KeyspaceId,
        limits::{MAX_COMMAND_BYTES, MAX_KEY_BYTES},
    };

    const KS: KeyspaceId = KeyspaceId(0x0102);

    fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        encode(&mut out);
        out
    }

    fn decoded(bytes: &[u8]) -> Result<TimeCommand<'_>, Malformed> {
        match Command::decode(bytes)? {
            Command::Time(command) => Ok(command),
            other => panic!("not about time: {other:?}"),
        }
    }

    fn commit_of(bytes: &[u8]) -> Commit<'_> {
        match Command::decode(bytes) {
            Ok(Command::Commit(commit)) => commit,
            other => panic!("not a commit: {other:?}"),
        }
    }

    #[test]
    fn layouts_of_commands_are_pinned() {
        let ttl = Duration::from_millis(258);
        let grant = encoded(|out| encode_grant_lease(out, Some(LeaseId(5)), ttl).unwrap());
        assert_eq!(grant, b"\x10\x05\0\0\0\0\0\0\0\xd0\xef\x03\0\0\0\0\0");
        assert_eq!(decoded(&grant), Ok(TimeCommand::Grant { id: LeaseId(5), ttl }));
        let unnamed = encoded(|out| encode_grant_lease(out, None, ttl).unwrap());
        assert_eq!(decoded(&unnamed), Ok(TimeCommand::Grant { id: LeaseId(0), ttl }));
        let keep = encoded(|out| encode_keep_lease(out, LeaseId(258)));
        assert_eq!(keep, b"\x11\x02\x01\0\0\0\0\0\0");
        assert_eq!(decoded(&keep), Ok(TimeCommand::Keep { id: LeaseId(258) }));
        let revoke = encoded(|out| encode_revoke_lease(out, LeaseId(258)));
        assert_eq!(revoke, b"\x12\x02\x01\0\0\0\0\0\0");
        assert_eq!(decoded(&revoke), Ok(TimeCommand::Revoke { id: LeaseId(258) }));
        let expire = encoded(|out| encode_expire(out, 258));
        assert_eq!(expire, b"\x13\x02\x01\0\0");
        assert_eq!(decoded(&expire), Ok(TimeCommand::Expire { max: 258 }));
        let forget = encoded(|out| encode_forget_rows(out, [b"ab".as_slice(), b"", b"c"].into_iter()));
        assert_eq!(forget, b"\x14\x03\0\0\0\x02\0\0\0ab\x00\0\0\0\x01\0\0\0c");
        let Ok(TimeCommand::Forget { rows }) = decoded(&forget) else { panic!("no forget") };
        assert_eq!(rows.iter().collect::<Vec<_>>(), [b"ab".as_slice(), b"", b"c"]);
        for command in [grant, keep, revoke, expire, forget] {
            for cut in 0..command.len() {
                assert!(Command::decode(&command[..cut]).is_err(), "{command:?} cut to {cut}");
            }
            assert!(Command::decode(&[&command[..], b"x"].concat()).is_err(), "{command:?} and more");
        }
    }

    #[test]
    fn layouts_of_writes_are_pinned() {
        let mut commit = CommitBuilder::new();
        let ttl = Duration::from_micros(258);
        commit.put_until(KS, b"key", b"value", Deadline::After(ttl), Some(LeaseId(9))).unwrap();
        assert!(commit.is_conditional(), "the lease may be gone");
        let bytes = encoded(|out| commit.encode(out));
        let put = b"\x10\x02\x01\0\0\x03\0\0\0\x05\0\0\0\x02\x02\x01\0\0\0\0\0\0\x09\0\0\0\0\0\0\0keyvalue";
        assert_eq!(bytes, [b"\x01\0\0\0\0\x01\0\0\0".as_slice(), put].concat());
        let single = encoded(|out| {
            encode_put_until(out, KS, b"key", b"value", Deadline::After(ttl), Some(LeaseId(9))).unwrap();
        });
        assert_eq!(single, bytes);
        let write = commit_of(&bytes).writes().unwrap().next().unwrap().unwrap();
        let Write::PutUntil { keyspace, key, value, value_at, deadline, lease } = write else { panic!("no put") };
        assert_eq!((keyspace, key, value), (KS, b"key".as_slice(), b"value".as_slice()));
        assert_eq!((&bytes[value_at..], deadline, lease), (&b"value"[..], Deadline::After(ttl), Some(LeaseId(9))));
        for cut in 0..bytes.len() {
            let Ok(Command::Commit(commit)) = Command::decode(&bytes[..cut]) else { continue };
            assert!(commit.writes().and_then(Iterator::collect::<Result<Vec<_>, _>>).is_err(), "cut to {cut}");
        }
    }

    #[test]
    fn every_deadline_comes_back_and_a_touch_reads() {
        let ttl = Duration::from_secs(1);
        for deadline in
            [Deadline::Default, Deadline::Never, Deadline::After(ttl), Deadline::At(SpaceTime(7)), Deadline::Keep]
        {
            let mut commit = CommitBuilder::new();
            commit.touch(KS, b"k", deadline).unwrap();
            let bytes = encoded(|out| commit.encode(out));
            let commit = commit_of(&bytes);
            assert_eq!(commit.conditions().next().unwrap().unwrap().expect, Expect::Any);
            let writes: Vec<_> = commit.writes().unwrap().collect::<Result<_, _>>().unwrap();
            assert_eq!(writes, [Write::Touch { keyspace: KS, key: b"k", deadline }]);
        }
        for bad in
            [b"\x00\x01\0\0\0\0\0\0\0", b"\x02\0\0\0\0\0\0\0\0", b"\x05\0\0\0\0\0\0\0\0", b"\x04\x01\0\0\0\0\0\0\0"]
        {
            assert!(Deadline::take(&mut Reader::at(bad, 0), "deadline").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn times_have_limits() {
        let bad = |got| CommandError::BadTtl { got };
        let mut commit = CommitBuilder::new();
        for got in [Duration::ZERO, Duration::from_nanos(1), MAX_TTL + Duration::from_micros(1)] {
            let deadline = Deadline::After(got);
            assert_eq!(commit.put_until(KS, b"k", b"v", deadline, None).unwrap_err(), bad(got));
            assert_eq!(commit.touch(KS, b"k", deadline).unwrap_err(), bad(got));
            assert_eq!(encode_put_until(&mut Vec::new(), KS, b"k", b"v", deadline, None).unwrap_err(), bad(got));
            assert_eq!(encode_grant_lease(&mut Vec::new(), None, got).unwrap_err(), bad(got));
        }
        let short = MIN_LEASE_TTL - Duration::from_micros(1);
        assert_eq!(encode_grant_lease(&mut Vec::new(), None, short).unwrap_err(), bad(short));
        let none = encode_grant_lease(&mut Vec::new(), Some(LeaseId(0)), MIN_LEASE_TTL).unwrap_err();
        assert_eq!(none, CommandError::BadLeaseId);
        let rows = vec![b"r".as_slice(); MAX_STALE_ROWS + 1];
        let most = encoded(|out| encode_forget_rows(out, rows.iter().copied()));
        let Ok(TimeCommand::Forget { rows: found }) = decoded(&most) else { panic!("no forget") };
        assert_eq!(found.iter().count(), MAX_STALE_ROWS);
        let long = vec![7; MAX_KEY_BYTES];
        let many = encoded(|out| encode_forget_rows(out, rows.iter().map(|_| &long[..])));
        let Ok(TimeCommand::Forget { rows: found }) = decoded(&many) else { panic!("no forget") };
        assert!((1..MAX_STALE_ROWS).contains(&found.iter().count()));
        assert!((MAX_STALE_BYTES..MAX_COMMAND_BYTES / 2).contains(&many.len()), "{} bytes", many.len());
        let foreign = [&most[..1], &(MAX_STALE_ROWS as u32 + 1).to_le_bytes(), &most[5..], b"\x01\0\0\0r"].concat();
        assert!(decoded(&foreign).is_err());
        for (len, is_fine) in [(MAX_STALE_ROW_BYTES, true), (MAX_STALE_ROW_BYTES + 1, false), (1 << 20, false)] {
            let row = vec![8; len];
            let forget = encoded(|out| encode_forget_rows(out, [row.as_slice()].into_iter()));
            assert_eq!(decoded(&forget).is_ok(), is_fine, "{len}");
        }
    }
}
