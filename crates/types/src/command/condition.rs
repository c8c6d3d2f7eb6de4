//! Conditions of commits and transactions: requirements on a key or a range of keys that the state machine checks
//! first.

use crate::{
    codec::{EncodeError, Encoding, Field, Malformed, Reader, put_checked, structure, variants},
    ids::{KeyspaceId, Revision},
};

variants! {
    /// Requirement that a condition makes on its key.
    #[derive(Copy)]
    Expect<'a> as "expect" {
        /// The key has no value.
        Absent = 0 "absent",
        /// The key has a value.
        Present = 1 "present",
        /// The key's value was written at this revision.
        Revision(revision: Revision) = 2 "at revision",
        /// The key has exactly this value.
        Value(value: &'a [u8]) = 3 "value",
        /// The key's value was written before this revision, or the key has no value: an absent key counts as written
        /// at revision 0.
        Before(revision: Revision) = 4 "before",
        /// The key's value was written after this revision.
        After(revision: Revision) = 5 "after",
        /// The range that begins at the key is unchanged since the client read it: it has as many pairs of key and
        /// value, and none was written at a later revision.
        Unchanged[range: UnchangedRange<'a>] = 6 "unchanged",
        /// No requirement: the condition always holds. A commit carries this condition to declare that one of its
        /// writes reads the state, such as a touch.
        Any = 16 "any",
    }
}

structure! {
    /// Summary of a range of keys as a client read it. The condition holds if no pair of the range has been put,
    /// replaced or removed since then, and none has expired.
    #[derive(Copy)]
    UnchangedRange<'a> as "unchanged range" {
        /// Revision of the view in which the client read the range.
        since: Revision,
        /// Number of pairs of key and value in the range.
        count: u32,
        /// Exclusive end key of the range; `None` for the end of the keyspace.
        end: Option<&'a [u8]> as EndKey,
    }
}

/// Encoding of an end key: a key, or the length `u32::MAX` for the end of the keyspace.
enum EndKey {}

impl<'a> Encoding<'a, Option<&'a [u8]>> for EndKey {
    fn layout() -> String {
        "end key".to_owned()
    }

    fn put(end: &Option<&'a [u8]>, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match end {
            Some(end) => end.put(out),
            None => u32::MAX.put(out),
        }
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Option<&'a [u8]>, Malformed> {
        let len = reader.u32(what)?;
        (len != u32::MAX).then(|| reader.take(len as usize, what)).transpose()
    }
}

structure! {
    /// A condition of a commit or transaction on one key, or on a range that begins at this key.
    #[derive(Copy)]
    Condition<'a> as "condition" {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key that must meet the requirement.
        key: &'a [u8],
        /// Requirement that the key must meet.
        expect: Expect<'a>,
    }
}

impl<'a> Condition<'a> {
    /// The condition that always holds, whatever the state is.
    pub(super) const ANY: Self = Self { keyspace: KeyspaceId(0), key: &[], expect: Expect::Any };

    /// Maximum size of the encoded condition in bytes.
    pub(super) fn max_bytes(&self) -> usize {
        let operand = match self.expect {
            Expect::Value(value) => value.len(),
            Expect::Unchanged(range) => range.end.map_or(0, <[u8]>::len),
            _ => 0,
        };
        self.key.len() + operand + 32
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_checked(out, self);
    }

    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        Self::take(reader, "condition")
    }
}
