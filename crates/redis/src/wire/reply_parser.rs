//! Parser of replies for clients: RESP2 and RESP3, token by token, borrowed from the received bytes.
//!
//! Owns: the boundaries of tokens and of complete replies, and their meaning. Does not own: requests, or a buffer. The
//! caller keeps incomplete bytes, and bounds their size.
//!
//! ```text
//! token := type u8 | line | \r\n | (payload | \r\n)    payload only for bulk and verbatim strings and bulk errors
//! ```
//! Invariants: the parser never allocates, whatever sizes a reply announces. An incomplete reply is `None`, never an
//! error. Bytes that cannot become a reply are an error as soon as they arrive. The streamed types of RESP3 (`$?`,
//! `*?`) are errors, because Redis never sends them.

/// Maximum length in bytes of a line. The parser reports an error if it has found no end of the line within it.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// Maximum length in bytes that a token may announce for its payload. It is Redis's own limit.
pub const MAX_PAYLOAD_BYTES: usize = 512 << 20;

/// Maximum number of values that an array, map or set may announce.
pub const MAX_VALUES: usize = 1 << 30;

/// A value, or the head of an array, map or set, whose values follow as separate tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// A simple string (`+`).
    Simple(&'a [u8]),
    /// An error: `-`, or `!` with the length of the text.
    Error(&'a [u8]),
    /// An integer (`:`).
    Integer(i64),
    /// A bulk string (`$`).
    Bulk(&'a [u8]),
    /// A verbatim string (`=`): three letters that name the format, a colon, and the text.
    Verbatim(&'a [u8]),
    /// A null value (`_`, or `$-1`).
    Null,
    /// A null array (`*-1`).
    NullArray,
    /// A boolean (`#`).
    Boolean(bool),
    /// A floating-point number (`,`), as the text that the server sent.
    Double(&'a [u8]),
    /// An integer of any size (`(`), as the text that the server sent.
    BigNumber(&'a [u8]),
    /// The beginning of an array (`*`) with this number of values, which follow as separate tokens.
    Array(usize),
    /// The beginning of a map (`%`) with this number of pairs, whose keys and values follow as separate tokens.
    Map(usize),
    /// The beginning of a set (`~`) with this number of values, which follow as separate tokens.
    Set(usize),
    /// The head of a push message (`>`) with this number of values. A push message is not a reply to a request.
    Push(usize),
    /// The head of attributes (`|`) with this number of pairs. The pairs describe the value that follows them.
    Attribute(usize),
}

impl Token<'_> {
    /// Returns the number of values after this token that belong to it. For attributes, this includes the value that
    /// the attributes describe.
    #[must_use]
    pub fn values(self) -> usize {
        match self {
            Self::Array(values) | Self::Set(values) | Self::Push(values) => values,
            Self::Map(pairs) => 2 * pairs,
            Self::Attribute(pairs) => 2 * pairs + 1,
            _ => 0,
        }
    }
}

/// Error returned for bytes that cannot begin a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The type byte does not exist in RESP.
    #[error("a reply cannot begin with 0x{0:02x}; is this a server that speaks RESP?")]
    Type(u8),
    /// A number is malformed or out of range.
    #[error("a reply announces a number that is malformed or too large")]
    Number,
    /// A line or payload does not end with CR LF.
    #[error("a line or a payload of a reply does not end with CR LF")]
    End,
    /// A line is longer than [`MAX_LINE_BYTES`].
    #[error("a line of a reply is longer than {MAX_LINE_BYTES} bytes")]
    Line,
    /// Nested arrays, maps and sets announce too many values in total.
    #[error("a reply announces more than {MAX_VALUES} values")]
    Values,
}

/// Parses the first token of the bytes. Returns the token with its length in bytes, or `None` if more bytes are
/// needed.
pub fn token(bytes: &[u8]) -> Result<Option<(Token<'_>, usize)>, ReplyError> {
    let Some((&kind, rest)) = bytes.split_first() else { return Ok(None) };
    if !b"+-:$*_#,(%~>|!=".contains(&kind) {
        return Err(ReplyError::Type(kind));
    }
    let Some(line) = line(rest)? else { return Ok(None) };
    let head = 1 + line.len() + 2;
    let token = match kind {
        b'+' => Token::Simple(line),
        b'-' => Token::Error(line),
        b':' => Token::Integer(number(line)?),
        b',' => Token::Double(line),
        b'(' => Token::BigNumber(line),
        b'_' if line.is_empty() => Token::Null,
        b'#' if line == b"t" => Token::Boolean(true),
        b'#' if line == b"f" => Token::Boolean(false),
        b'$' if line == b"-1" => Token::Null,
        b'*' if line == b"-1" => Token::NullArray,
        b'*' => Token::Array(count(line, MAX_VALUES)?),
        b'~' => Token::Set(count(line, MAX_VALUES)?),
        b'>' => Token::Push(count(line, MAX_VALUES)?),
        b'%' => Token::Map(count(line, MAX_VALUES / 2)?),
        b'|' => Token::Attribute(count(line, MAX_VALUES / 2 - 1)?),
        b'$' | b'!' | b'=' => {
            let payload_bytes = count(line, MAX_PAYLOAD_BYTES)?;
            let Some(payload) = payload(&bytes[head..], payload_bytes)? else { return Ok(None) };
            let token = match kind {
                b'$' => Token::Bulk(payload),
                b'!' => Token::Error(payload),
                _ => Token::Verbatim(payload),
            };
            return Ok(Some((token, head + payload_bytes + 2)));
        }
        _ => return Err(ReplyError::Number),
    };
    Ok(Some((token, head)))
}

/// Returns the length in bytes of the first complete reply, or `None` if more bytes are needed. Each call parses from
/// the beginning. So a caller that waits for a large reply should call this function again only after many more bytes
/// have arrived.
pub fn whole(bytes: &[u8]) -> Result<Option<usize>, ReplyError> {
    let (mut at, mut left) = (0, 1_usize);
    while left > 0 {
        let Some((token, len)) = token(&bytes[at..])? else { return Ok(None) };
        at += len;
        left = left - 1 + token.values();
        if left > MAX_VALUES {
            return Err(ReplyError::Values);
        }
    }
    Ok(Some(at))
}

/// Returns the first line in `bytes`, without the CR LF that ends it; `None` if the line is incomplete.
#[inline]
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, ReplyError> {
    let looked = &bytes[..bytes.len().min(MAX_LINE_BYTES + 2)];
    match looked.iter().position(|byte| *byte == b'\n') {
        Some(0) => Err(ReplyError::End),
        Some(end) if looked[end - 1] == b'\r' => Ok(Some(&looked[..end - 1])),
        Some(_) => Err(ReplyError::End),
        None if bytes.len() > MAX_LINE_BYTES + 1 => Err(ReplyError::Line),
        None => Ok(None),
    }
}

#[inline]
fn payload(bytes: &[u8], len: usize) -> Result<Option<&[u8]>, ReplyError> {
    match bytes.get(len..len + 2) {
        Some(b"\r\n") => Ok(Some(&bytes[..len])),
        Some(_) => Err(ReplyError::End),
        None if bytes.get(len).is_some_and(|byte| *byte != b'\r') => Err(ReplyError::End),
        None => Ok(None),
    }
}

/// Parses the decimal number in `line`: a length, or a number of values. Returns an error if the number exceeds `max`.
#[inline]
fn count(line: &[u8], max: usize) -> Result<usize, ReplyError> {
    if line.is_empty() || line.len() > 10 || !line.iter().all(u8::is_ascii_digit) {
        return Err(ReplyError::Number);
    }
    let value = line.iter().fold(0_usize, |value, digit| value * 10 + usize::from(digit - b'0'));
    if value <= max { Ok(value) } else { Err(ReplyError::Number) }
}

fn number(line: &[u8]) -> Result<i64, ReplyError> {
    std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(ReplyError::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(bytes: &[u8]) -> Token<'_> {
        let (token, len) = token(bytes).unwrap().unwrap();
        assert_eq!(len, bytes.len());
        token
    }

    #[test]
    fn every_type_is_read() {
        assert_eq!(only(b"+OK\r\n"), Token::Simple(b"OK"));
        assert_eq!(only(b"-ERR no\r\n"), Token::Error(b"ERR no"));
        assert_eq!(only(b"!6\r\nERR no\r\n"), Token::Error(b"ERR no"));
        assert_eq!(only(b":-42\r\n"), Token::Integer(-42));
        assert_eq!(only(b"$5\r\na\r\nbc\r\n"), Token::Bulk(b"a\r\nbc"));
        assert_eq!(only(b"$0\r\n\r\n"), Token::Bulk(b""));
        assert_eq!(only(b"=7\r\ntxt:abc\r\n"), Token::Verbatim(b"txt:abc"));
        assert_eq!(only(b"_\r\n"), Token::Null);
        assert_eq!(only(b"$-1\r\n"), Token::Null);
        assert_eq!(only(b"*-1\r\n"), Token::NullArray);
        assert_eq!(only(b"#t\r\n"), Token::Boolean(true));
        assert_eq!(only(b",inf\r\n"), Token::Double(b"inf"));
        assert_eq!(only(b"(123456789012345678901234567890\r\n"), Token::BigNumber(b"123456789012345678901234567890"));
        assert_eq!(only(b"%2\r\n").values(), 4);
        assert_eq!(only(b"|1\r\n").values(), 3);
        assert_eq!(only(b">3\r\n"), Token::Push(3));
        assert_eq!(only(b"~0\r\n"), Token::Set(0));
    }

    #[test]
    fn a_reply_is_whole_only_with_its_last_byte() {
        let replies: [&[u8]; 5] = [
            b"*2\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n",
            b"%1\r\n+k\r\n~2\r\n:1\r\n:2\r\n",
            b"|1\r\n+ttl\r\n:9\r\n$1\r\nv\r\n",
            b"*0\r\n",
            b"$3\r\nabc\r\n",
        ];
        for reply in replies {
            for end in 0..reply.len() {
                assert_eq!(whole(&reply[..end]), Ok(None), "{:?}", String::from_utf8_lossy(&reply[..end]));
            }
            assert_eq!(whole(reply), Ok(Some(reply.len())));
            assert_eq!(whole(&[reply, b"+next\r\n"].concat()), Ok(Some(reply.len())));
        }
    }

    #[test]
    fn what_can_be_no_reply_is_refused_at_once() {
        for (bytes, error) in [
            (&b"HTTP/1.1 200"[..], ReplyError::Type(b'H')),
            (b":\r\n", ReplyError::Number),
            (b":1x\r\n", ReplyError::Number),
            (b"$-2\r\n", ReplyError::Number),
            (b"$?\r\n", ReplyError::Number),
            (b"$536870913\r\n", ReplyError::Number),
            (b"*99999999999\r\n", ReplyError::Number),
            (b"#y\r\n", ReplyError::Number),
            (b"+OK\n", ReplyError::End),
            (b"$1\r\nab", ReplyError::End),
            (b"$1\r\nab\r\n", ReplyError::End),
        ] {
            assert_eq!(token(bytes), Err(error), "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn bounds_hold_at_the_bound() {
        let line = |len: usize| [b"+", &vec![b'x'; len][..]].concat();
        assert_eq!(token(&line(MAX_LINE_BYTES)), Ok(None));
        assert_eq!(token(&line(MAX_LINE_BYTES + 2)), Err(ReplyError::Line));
        let whole_line = [&line(MAX_LINE_BYTES)[..], b"\r\n"].concat();
        assert_eq!(token(&whole_line).unwrap().unwrap().1, MAX_LINE_BYTES + 3);
        assert_eq!(token(b"$536870912\r\n"), Ok(None), "announced but not sent, so no memory is used");
        assert_eq!(whole(b"*1073741824\r\n"), Ok(None));
        assert_eq!(whole(b"*1073741824\r\n*1073741824\r\n"), Err(ReplyError::Values));
    }
}
