//! What a Redis command answers, before it is bytes of RESP2 or RESP3. Here because it is the outcome of commands of
//! the log, too; the commands are in `thalweg-redis`.

use std::borrow::Cow;

use bytes::Bytes;

/// A reply. How it looks depends on the connection's protocol; what it says does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`.
    Ok,
    /// A simple string without line breaks.
    Simple(&'static str),
    /// An error: its code, a space, its text; without line breaks.
    Error(Cow<'static, str>),
    /// An integer.
    Integer(i64),
    /// Bytes.
    Bulk(Bytes),
    /// No value: a null bulk string, or RESP3's null.
    Null,
    /// No value where an array would be: a null array, or RESP3's null.
    NullArray,
    /// Replies in order.
    Array(Vec<Reply>),
    /// Pairs; in RESP2 a flat array.
    Map(Vec<(Reply, Reply)>),
    /// Pairs; in RESP2 an array of arrays of two (what `XREAD` answers).
    Pairs(Vec<(Reply, Reply)>),
    /// Pairs; in RESP2 a flat array, in RESP3 an array of arrays of two (what `HRANDFIELD` answers).
    FlatPairs(Vec<(Reply, Reply)>),
    /// A set; in RESP2 an array.
    Set(Vec<Reply>),
    /// Out of band; in RESP2 an array.
    Push(Vec<Reply>),
}

impl Reply {
    /// Bytes copied.
    #[must_use]
    pub fn bulk(bytes: &[u8]) -> Self {
        Self::Bulk(Bytes::copy_from_slice(bytes))
    }

    /// An error with its code.
    #[must_use]
    pub fn error(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Error(text.into())
    }

    /// Bytes of what is in it, without lengths and marks.
    #[must_use]
    pub fn content_bytes(&self) -> usize {
        let of_pairs = |pairs: &[(Self, Self)]| -> usize {
            pairs.iter().map(|(first, second)| first.content_bytes() + second.content_bytes()).sum()
        };
        match self {
            Self::Ok | Self::Integer(_) | Self::Null | Self::NullArray => 0,
            Self::Simple(text) => text.len(),
            Self::Error(text) => text.len(),
            Self::Bulk(bytes) => bytes.len(),
            Self::Array(items) | Self::Set(items) | Self::Push(items) => items.iter().map(Self::content_bytes).sum(),
            Self::Map(pairs) | Self::Pairs(pairs) | Self::FlatPairs(pairs) => of_pairs(pairs),
        }
    }

    /// 1 or 0.
    #[must_use]
    pub fn flag(yes: bool) -> Self {
        Self::Integer(i64::from(yes))
    }
}
