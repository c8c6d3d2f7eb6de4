//! Verdicts: facts about an entry's commands that its bytes alone do not determine.
//!
//! Owns: the encoding of the row, the builder that records changes, and the readers. Does not own: the choice of
//! commands whose changes are recorded (`machine/verdicts`).
//!
//! ```text
//! verdict   := exception*                                     at key 0b | index u64 BE
//! exception := command u32 | 0                                 a commit that was refused
//!            | command u32 | 1 | count u32 | change*           it used a revision, and changed this
//! change    := 0 | keyspace u32 | len u32 | key                deleted
//!            | 1 | keyspace u32 | len u32 | key                expired
//!            | 2 | keyspace u32 | len u32 | prefix             all with the prefix deleted
//!            | 3 | keyspace u32 | len u32 | len u32 | key | value          put
//!            | 4 | keyspace u32 | len u32 | len u32 | key | at u32         put; the value is in the entry
//! ```
//! Little-endian. Commands are in order, numbered from 0 within the entry; `at` is an offset from the beginning of
//! the entry's payload. A command without an exception has the effect that [`uses_revision`] predicts: it was a
//! commit that succeeded, or it used no revision.
//!
//! [`uses_revision`]: thalweg_types::command::uses_revision

use thalweg_types::{
    KeyspaceId,
    codec::{Malformed, Reader},
};

use crate::changes::key_change::KeyChange;

const REFUSED: u8 = 0;
const TOLD: u8 = 1;

const DELETE: u8 = 0;
const EXPIRE: u8 = 1;
const DELETE_PREFIX: u8 = 2;
const PUT: u8 = 3;
const PUT_FROM_ENTRY: u8 = 4;

/// Builder of the verdict of the log entry being applied: the row with facts that the entry's bytes do not determine.
#[derive(Debug, Default)]
pub(crate) struct VerdictBuilder {
    row: Vec<u8>,
    /// Encoded changes that the current command has recorded so far.
    recorded: Vec<u8>,
    count: u32,
    is_recording: bool,
}

/// Bytes and number of the current command's recorded changes at the time of the savepoint. A rollback returns to them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Savepoint {
    bytes: usize,
    count: u32,
}

impl VerdictBuilder {
    /// Starts recording the current command's changes, which the log entry's bytes do not determine.
    pub(crate) fn start_recording(&mut self) {
        self.is_recording = true;
    }

    #[inline]
    pub(crate) fn is_recording(&self) -> bool {
        self.is_recording
    }

    /// Records a change of the current command. `value_at` is the offset of a put's value within the entry's payload.
    pub(crate) fn push(&mut self, change: &KeyChange<'_>, value_at: Option<u32>) {
        let (keyspace, key) = change.target();
        let kind = match (change, value_at) {
            (KeyChange::Delete { .. }, _) => DELETE,
            (KeyChange::Expire { .. }, _) => EXPIRE,
            (KeyChange::DeletePrefix { .. }, _) => DELETE_PREFIX,
            (KeyChange::Put { .. }, None) => PUT,
            (KeyChange::Put { .. }, Some(_)) => PUT_FROM_ENTRY,
        };
        let out = &mut self.recorded;
        out.push(kind);
        out.extend_from_slice(&keyspace.0.to_le_bytes());
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        if let KeyChange::Put { value, .. } = change {
            out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        }
        out.extend_from_slice(key);
        match (change, value_at) {
            (KeyChange::Put { .. }, Some(at)) => out.extend_from_slice(&at.to_le_bytes()),
            (KeyChange::Put { value, .. }, None) => out.extend_from_slice(value),
            _ => {}
        }
        self.count += 1;
    }

    /// Returns a savepoint of the recorded changes of the current command, to which a rollback can return.
    pub(crate) fn savepoint(&self) -> Savepoint {
        Savepoint { bytes: self.recorded.len(), count: self.count }
    }

    /// Removes the changes that the current command has recorded since the savepoint.
    pub(crate) fn roll_back(&mut self, to: Savepoint) {
        self.recorded.truncate(to.bytes);
        self.count = to.count;
    }

    /// Records that the command `number` was rejected, although its bytes are those of a commit.
    pub(crate) fn record_rejection(&mut self, number: u32) {
        self.row.extend_from_slice(&number.to_le_bytes());
        self.row.push(REFUSED);
        self.discard_recording();
    }

    /// Records that the command `number` used a revision and made the recorded changes.
    pub(crate) fn record_exception(&mut self, number: u32) {
        self.row.extend_from_slice(&number.to_le_bytes());
        self.row.push(TOLD);
        self.row.extend_from_slice(&self.count.to_le_bytes());
        self.row.extend_from_slice(&self.recorded);
        self.discard_recording();
    }

    /// Ends the current command, because its effect is as its bytes predict. Drops the changes recorded for it.
    pub(crate) fn discard_recording(&mut self) {
        self.recorded.clear();
        self.count = 0;
        self.is_recording = false;
    }

    /// Returns the verdict row of the log entry; empty if the effect of all its commands is as their bytes predict.
    pub(crate) fn row(&self) -> &[u8] {
        &self.row
    }

    pub(crate) fn clear(&mut self) {
        const KEPT_BYTES: usize = 1024 * 1024;
        if self.row.capacity() + self.recorded.capacity() > KEPT_BYTES {
            *self = Self::default();
        }
        self.row.clear();
        self.discard_recording();
    }
}

/// Exception in a verdict (facts about a log entry): a command with another effect than its bytes alone predict.
#[derive(Clone, Debug)]
pub(crate) enum Exception<'a> {
    NoRevision,
    Recorded(RecordedChanges<'a>),
}

/// Iterates over the exceptions in a verdict: the commands whose effect differs from what their bytes predict.
#[derive(Clone, Debug)]
pub(crate) struct Exceptions<'a> {
    reader: Reader<'a>,
    /// Number of the next command with an exception (another effect than its bytes predict), read ahead; `None` if no
    /// exception is left.
    next: Option<u32>,
    begun: bool,
}

impl<'a> Exceptions<'a> {
    pub(crate) fn new(row: &'a [u8]) -> Self {
        Self { reader: Reader::at(row, 0), next: None, begun: false }
    }

    /// Returns the exception for the command `number`, or `None` if the command's effect is as its bytes predict.
    /// Callers must query the commands of a log entry in order.
    pub(crate) fn of(&mut self, number: u32) -> Result<Option<Exception<'a>>, Malformed> {
        if !self.begun {
            self.begun = true;
            self.advance()?;
        }
        if self.next != Some(number) {
            return Ok(None);
        }
        let at = self.reader.position();
        let exception = match self.reader.u8("verdict kind")? {
            REFUSED => Exception::NoRevision,
            TOLD => Exception::Recorded(RecordedChanges::pass(&mut self.reader)?),
            _ => return Err(Malformed { at, expected: "known verdict kind" }),
        };
        self.advance()?;
        if self.next.is_some_and(|next| next <= number) {
            return Err(Malformed { at, expected: "verdicts in order" });
        }
        Ok(Some(exception))
    }

    fn advance(&mut self) -> Result<(), Malformed> {
        self.next = if self.reader.is_empty() { None } else { Some(self.reader.u32("command number")?) };
        Ok(())
    }
}

/// The changes of one command, as recorded in the verdict row of its log entry.
#[derive(Clone, Debug)]
pub(crate) struct RecordedChanges<'a> {
    reader: Reader<'a>,
    count: u32,
}

impl<'a> RecordedChanges<'a> {
    /// Moves `reader` past the recorded changes of one command, checks that they decode, and returns them.
    fn pass(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let count = reader.u32("change count")?;
        let recorded = Self { reader: reader.clone(), count };
        for _ in 0..count {
            Raw::decode(reader)?;
        }
        Ok(recorded)
    }

    pub(crate) fn visit(&self, payload: &'a [u8], visit: &mut dyn FnMut(KeyChange<'a>)) -> Result<(), Malformed> {
        let mut reader = self.reader.clone();
        for _ in 0..self.count {
            visit(Raw::decode(&mut reader)?.resolve(payload)?);
        }
        Ok(())
    }
}

/// A change of a key as the verdict row stores it: complete, or with a reference to a value in the log entry's payload.
enum Raw<'a> {
    Whole(KeyChange<'a>),
    FromEntry { keyspace: KeyspaceId, key: &'a [u8], at: usize, len: usize },
}

impl<'a> Raw<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let at = reader.position();
        let kind = reader.u8("change kind")?;
        let keyspace = KeyspaceId(reader.u32("keyspace id")?);
        let len = reader.u32("key length")? as usize;
        Ok(Self::Whole(match kind {
            DELETE => KeyChange::Delete { keyspace, key: reader.take(len, "key")? },
            EXPIRE => KeyChange::Expire { keyspace, key: reader.take(len, "key")? },
            DELETE_PREFIX => KeyChange::DeletePrefix { keyspace, prefix: reader.take(len, "prefix")? },
            PUT => {
                let value_len = reader.u32("value length")? as usize;
                KeyChange::Put { keyspace, key: reader.take(len, "key")?, value: reader.take(value_len, "value")? }
            }
            PUT_FROM_ENTRY => {
                let value_len = reader.u32("value length")? as usize;
                let key = reader.take(len, "key")?;
                let at = reader.u32("value position")? as usize;
                return Ok(Self::FromEntry { keyspace, key, at, len: value_len });
            }
            _ => return Err(Malformed { at, expected: "known change kind" }),
        }))
    }

    fn resolve(self, payload: &'a [u8]) -> Result<KeyChange<'a>, Malformed> {
        match self {
            Self::Whole(change) => Ok(change),
            Self::FromEntry { keyspace, key, at, len } => {
                let value = payload.get(at..).and_then(|rest| rest.get(..len));
                let value = value.ok_or(Malformed { at, expected: "value within the entry" })?;
                Ok(KeyChange::Put { keyspace, key, value })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::{
        Revision,
        command::{CommitBuilder, KeyspaceConfig, encode_create_keyspace},
    };

    use super::*;
    use crate::changes::commits::EntryCommits;

    const KS: KeyspaceId = KeyspaceId(7);

    fn frame(commands: &[Vec<u8>]) -> Vec<u8> {
        commands.iter().flat_map(|command| [&(command.len() as u32).to_le_bytes(), &command[..]].concat()).collect()
    }

    fn put(key: &[u8]) -> Vec<u8> {
        let (mut commit, mut out) = (CommitBuilder::new(), Vec::new());
        commit.put(KS, key, b"value").unwrap().encode(&mut out);
        out
    }

    fn changes_of(payload: &[u8], verdict: Option<&[u8]>) -> Result<Vec<(u64, String)>, Malformed> {
        let mut commits = EntryCommits::new(payload, verdict, Revision(10));
        let mut recorded = Vec::new();
        while let Some(commit) = commits.next_commit()? {
            let before = recorded.len();
            commit.visit(&mut |change| recorded.push((commit.revision.0, format!("{change:?}"))))?;
            if recorded.len() == before {
                recorded.push((commit.revision.0, String::new()));
            }
        }
        Ok(recorded)
    }

    fn all_kinds() -> VerdictBuilder {
        let mut verdict = VerdictBuilder::default();
        verdict.record_rejection(1);
        verdict.start_recording();
        verdict.push(&KeyChange::Delete { keyspace: KS, key: b"d" }, None);
        verdict.push(&KeyChange::Expire { keyspace: KS, key: b"e" }, None);
        verdict.push(&KeyChange::DeletePrefix { keyspace: KS, prefix: b"p" }, None);
        verdict.push(&KeyChange::Put { keyspace: KS, key: b"k", value: b"v" }, None);
        verdict.push(&KeyChange::Put { keyspace: KS, key: b"l", value: b"abc" }, Some(4));
        verdict.record_exception(3);
        verdict
    }

    #[test]
    fn layout_is_pinned() {
        let expected: &[&[u8]] = &[
            b"\x01\0\0\0\x00",
            b"\x03\0\0\0\x01\x05\0\0\0",
            b"\x00\x07\0\0\0\x01\0\0\0d",
            b"\x01\x07\0\0\0\x01\0\0\0e",
            b"\x02\x07\0\0\0\x01\0\0\0p",
            b"\x03\x07\0\0\0\x01\0\0\0\x01\0\0\0kv",
            b"\x04\x07\0\0\0\x01\0\0\0\x03\0\0\0l\x04\0\0\0",
        ];
        assert_eq!(all_kinds().row(), expected.concat());
    }

    #[test]
    fn revisions_are_counted_and_changes_come_from_the_entry_or_the_verdict() {
        let mut create = Vec::new();
        encode_create_keyspace(&mut create, "name", &KeyspaceConfig::default()).unwrap();
        let payload = frame(&[put(b"a"), put(b"b"), create.clone(), create, put(b"c")]);
        let put = |key: &'static [u8]| format!("{:?}", KeyChange::Put { keyspace: KS, key, value: b"value" });
        assert_eq!(changes_of(&payload, None).unwrap(), [(11, put(b"a")), (12, put(b"b")), (13, put(b"c"))]);
        let verdict = all_kinds();
        let recorded = changes_of(&payload, Some(verdict.row())).unwrap();
        let revisions: Vec<_> = recorded.iter().map(|(revision, _)| *revision).collect();
        assert_eq!(revisions, [11, 12, 12, 12, 12, 12, 13], "the second is refused, the fourth told");
        let value = KeyChange::Put { keyspace: KS, key: b"l", value: &payload[4..7] };
        assert_eq!((&recorded[0].1, &recorded[5].1, &recorded[6].1), (&put(b"a"), &format!("{value:?}"), &put(b"c")));
    }

    #[test]
    fn a_cut_or_flipped_verdict_is_an_error_or_another_one_never_a_panic() {
        let payload = frame(&[put(b"a"), put(b"b"), put(b"c"), put(b"d")]);
        let row = all_kinds().row().to_vec();
        for cut in 1..row.len() {
            let _ = changes_of(&payload, Some(&row[..cut]));
        }
        for at in 0..row.len() {
            for bit in 0..8 {
                let mut row = row.clone();
                row[at] ^= 1 << bit;
                let _ = changes_of(&payload, Some(&row));
            }
        }
        assert!(changes_of(&payload, Some(&row[..row.len() - 1])).is_err());
        assert!(changes_of(&payload, Some(b"\0\0\0\0\x09")).is_err());
    }

    #[test]
    fn what_a_command_tells_is_not_the_next_ones() {
        let mut verdict = VerdictBuilder::default();
        verdict.start_recording();
        verdict.push(&KeyChange::Delete { keyspace: KS, key: b"d" }, None);
        verdict.discard_recording();
        assert!(!verdict.is_recording() && verdict.row().is_empty());
        verdict.record_exception(0);
        assert_eq!(verdict.row(), b"\0\0\0\0\x01\0\0\0\0");
        verdict.clear();
        assert!(verdict.row().is_empty());
    }
}
