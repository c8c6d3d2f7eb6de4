//! Replies of Redis commands before they are encoded as RESP2 or RESP3. They are in this crate because they are
//! outcomes of commands of the log too; the commands are in `thalweg-redis`.

use std::borrow::Cow;

use bytes::Bytes;

/// A reply. Its encoding depends on the protocol version of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The simple string `OK`.
    Ok,
    /// A simple string without line breaks.
    Simple(&'static str),
    /// An error: its code, a space and its text, without line breaks.
    Error(Cow<'static, str>),
    /// An integer.
    Integer(i64),
    /// A bulk string.
    Bulk(Bytes),
    /// A missing value: a null bulk string in RESP2, null in RESP3.
    Null,
    /// A missing array: a null array in RESP2, null in RESP3.
    NullArray,
    /// An array of replies.
    Array(Vec<Reply>),
    /// Pairs; a flat array in RESP2, a map in RESP3.
    Map(Vec<(Reply, Reply)>),
    /// Pairs; an array of arrays of two in RESP2, a map in RESP3 (the reply to `XREAD`).
    Pairs(Vec<(Reply, Reply)>),
    /// Pairs; a flat array in RESP2, an array of arrays of two in RESP3 (the reply to `HRANDFIELD`).
    FlatPairs(Vec<(Reply, Reply)>),
    /// A set; an array in RESP2.
    Set(Vec<Reply>),
    /// An out-of-band push; an array in RESP2.
    Push(Vec<Reply>),
}

impl Reply {
    /// Creates a bulk string from a copy of `bytes`.
    #[must_use]
    pub fn bulk(bytes: &[u8]) -> Self {
        Self::Bulk(Bytes::copy_from_slice(bytes))
    }

    /// Creates an error. The first word of `text` is its code.
    #[must_use]
    pub fn error(text: impl Into<Cow<'static, str>>) -> Self {
        Self::Error(text.into())
    }

    /// Number of bytes of the contents, without lengths and type marks.
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

    /// Creates the integer 1 for true, or 0 for false.
    #[must_use]
    pub fn flag(yes: bool) -> Self {
        Self::Integer(i64::from(yes))
    }
}
