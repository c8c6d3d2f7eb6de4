//! Replies as a client reads them: RESP2 and RESP3, token by token, borrowed from the bytes that came.
//!
//! Owns: where a token and where a whole reply ends, and what they say. Does not own what was asked, nor a buffer: whoever
//! reads keeps what is not yet whole, and bounds how much that may be.
//!
//! ```text
//! token := type u8 | line | \r\n | (payload | \r\n)        payload only for bulk strings, verbatim strings and bulk errors
//! ```
//! Invariants: nothing is allocated, whatever is announced; a part of a reply is `None`, never an error; bytes that can't
//! become a reply are an error as soon as they are there. The streamed types of RESP3 (`$?`, `*?`) are errors: Redis sends none.

/// The longest line that is looked through for its end.
pub const MAX_LINE_BYTES: usize = 64 << 10;

/// The longest payload that a token may announce: Redis's own bound.
pub const MAX_PAYLOAD_BYTES: usize = 512 << 20;

/// The most values that an aggregate may announce.
pub const MAX_VALUES: usize = 1 << 30;

/// A value, or the head of an aggregate whose values follow as tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token<'a> {
    /// `+`.
    Simple(&'a [u8]),
    /// `-`, or `!` with its length.
    Error(&'a [u8]),
    /// `:`.
    Integer(i64),
    /// `$`.
    Bulk(&'a [u8]),
    /// `=`: three letters of format, a colon, the text.
    Verbatim(&'a [u8]),
    /// `_`, or `$-1`.
    Null,
    /// `*-1`.
    NullArray,
    /// `#`.
    Boolean(bool),
    /// `,` as it was written.
    Double(&'a [u8]),
    /// `(` as it was written.
    BigNumber(&'a [u8]),
    /// `*`: so many values follow.
    Array(usize),
    /// `%`: so many pairs follow.
    Map(usize),
    /// `~`: so many values follow.
    Set(usize),
    /// `>`: so many values follow, and they answer nothing.
    Push(usize),
    /// `|`: so many pairs follow, about the value behind them.
    Attribute(usize),
}

impl Token<'_> {
    /// How many values follow that belong to this one. Those about the next value count, and so does it.
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

/// Bytes that no reply begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// A type that RESP does not have.
    #[error("0x{0:02x} begins no reply; is this a server that speaks RESP?")]
    Type(u8),
    /// A number that is none, or out of bounds.
    #[error("a reply announces a number that is none, or too large")]
    Number,
    /// No line end where one belongs.
    #[error("a line or a payload of a reply does not end with CR LF")]
    End,
    /// A line beyond the bound.
    #[error("a line of a reply is longer than {MAX_LINE_BYTES} bytes")]
    Line,
    /// Aggregates in aggregates that add up to too much.
    #[error("a reply announces more than {MAX_VALUES} values")]
    Values,
}

/// The first token, and how many bytes it takes. `None`: more bytes are needed.
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

/// How many bytes the first reply takes with all that belongs to it. `None`: more bytes are needed. Begins anew with each
/// call, so who waits for a large aggregate should ask again only after a good deal more has come.
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

/// What stands before the next CR LF.
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

/// A length or a count: digits only.
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
        assert_eq!(token(b"$536870912\r\n"), Ok(None), "announced, not sent: nothing is kept for it");
        assert_eq!(whole(b"*1073741824\r\n"), Ok(None));
        assert_eq!(whole(b"*1073741824\r\n*1073741824\r\n"), Err(ReplyError::Values));
    }
}
