//! Reference parser for tests of [`Input`](super::Input). It receives all bytes in one piece, copies
//! everything, and applies Redis's rules one after the other.

/// Result of parsing: the requests before the end of the bytes, or before the first protocol error.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Parsed {
    /// Arguments of each request.
    pub requests: Vec<Vec<Vec<u8>>>,
    /// Error sent to the client, if there is one.
    pub error: Option<String>,
}

/// Parses all bytes as requests. If `authenticated` is false, the smaller limits for clients that have not
/// authenticated apply.
pub(super) fn parse(mut bytes: &[u8], authenticated: bool) -> Parsed {
    let mut parsed = Parsed::default();
    loop {
        let next = if bytes.first() == Some(&b'*') { array(bytes, authenticated) } else { inline(bytes) };
        match next {
            Ok(None) => return parsed,
            Ok(Some((request, rest))) => {
                if !request.is_empty() {
                    parsed.requests.push(request);
                }
                bytes = rest;
            }
            Err(error) => {
                parsed.error = Some(error);
                return parsed;
            }
        }
    }
}

type Next<'a> = Result<Option<(Vec<Vec<u8>>, &'a [u8])>, String>;

fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|byte| *byte == b'\r')?;
    (bytes.len() >= at + 2).then(|| (&bytes[..at], &bytes[at + 2..]))
}

fn number(text: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == text).then_some(number)
}

fn array(bytes: &[u8], authenticated: bool) -> Next<'_> {
    let Some((count, mut bytes)) = line(bytes) else { return Ok(None) };
    let most = if authenticated { 1024 * 1024 } else { i64::from(i32::MAX) };
    let count = number(&count[1..]).filter(|count| *count <= most);
    let count = count.ok_or("Protocol error: invalid multibulk length")?;
    if count > 10 && !authenticated {
        return Err("Protocol error: unauthenticated multibulk length".into());
    }
    let mut request = Vec::new();
    for _ in 0..count.max(0) {
        let Some((announced, rest)) = line(bytes) else { return Ok(None) };
        let first = bytes[0];
        if first != b'$' {
            return Err(format!("Protocol error: expected '$', got '{}'", first as char));
        }
        let most = if authenticated { 16 } else { 512 } * 1024 * 1024;
        let len = number(&announced[1..]).filter(|len| (0..=most).contains(len));
        let len = len.ok_or("Protocol error: invalid bulk length")? as usize;
        if len > 16 * 1024 && !authenticated {
            return Err("Protocol error: unauthenticated bulk length".into());
        }
        if rest.len() < len + 2 {
            return Ok(None);
        }
        request.push(rest[..len].to_vec());
        bytes = &rest[len + 2..];
    }
    Ok(Some((request, bytes)))
}

fn inline(bytes: &[u8]) -> Next<'_> {
    let Some(at) = bytes.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    let line = bytes[..at].strip_suffix(b"\r").unwrap_or(&bytes[..at]);
    let words = words(line).ok_or("Protocol error: unbalanced quotes in request")?;
    Ok(Some((words, &bytes[at + 1..])))
}

/// Splits an inline command into words, character by character. Treats the end of the line as a zero byte.
fn words(line: &[u8]) -> Option<Vec<Vec<u8>>> {
    let at = |at: usize| line.get(at).copied().unwrap_or(0);
    let space = |byte: u8| b" \t\n\x0b\x0c\r".contains(&byte);
    let (mut words, mut p) = (Vec::new(), 0);
    loop {
        while space(at(p)) {
            p += 1;
        }
        if at(p) == 0 {
            return Some(words);
        }
        let (mut word, mut quote) = (Vec::new(), 0);
        loop {
            let byte = at(p);
            match (quote, byte) {
                (b'"', b'\\')
                    if at(p + 1) == b'x' && at(p + 2).is_ascii_hexdigit() && at(p + 3).is_ascii_hexdigit() =>
                {
                    let digits = String::from_utf8(vec![at(p + 2), at(p + 3)]).ok()?;
                    word.push(u8::from_str_radix(&digits, 16).ok()?);
                    p += 3;
                }
                (b'"', b'\\') if at(p + 1) != 0 => {
                    p += 1;
                    word.push(match at(p) {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 8,
                        b'a' => 7,
                        other => other,
                    });
                }
                (b'\'', b'\\') if at(p + 1) == b'\'' => {
                    p += 1;
                    word.push(b'\'');
                }
                (b'"' | b'\'', 0) => return None,
                (b'"' | b'\'', _) if byte == quote => {
                    if at(p + 1) != 0 && !space(at(p + 1)) {
                        return None;
                    }
                    p += 1;
                    break;
                }
                (0, b' ' | b'\n' | b'\r' | b'\t' | 0) => break,
                (0, b'"' | b'\'') => quote = byte,
                _ => word.push(byte),
            }
            p += 1;
        }
        words.push(word);
    }
}
