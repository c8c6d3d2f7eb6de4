//! Inline commands: a line of words, typed by a person.
//!
//! White space separates words. `"..."` can contain white space and escapes (`\n`, `\xff`, ...), `'...'`
//! white space and `\'`. Unescaping never makes a word longer, so words stay inside their line's bytes.

use super::request::Part;

/// Returns true for bytes that separate words. A zero byte ends the line, as in C.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Error returned for a word with a quote that is not closed, or that is not followed by white space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unbalanced;

/// Splits a line into words, and unescapes the words in place. Appends the position of each word to `parts`, in bytes.
/// `origin` is the position of the line's first byte.
pub(super) fn split(line: &mut [u8], origin: usize, parts: &mut Vec<Part>) -> Result<(), Unbalanced> {
    let len = line.iter().position(|byte| *byte == 0).unwrap_or(line.len());
    let line = &mut line[..len];
    let mut read = 0;
    loop {
        read += line[read..].iter().take_while(|byte| is_space(**byte)).count();
        if read == line.len() {
            return Ok(());
        }
        let begin = read;
        let written = word(line, &mut read)?;
        parts.push(Part::new(origin + begin, written));
    }
}

/// Unescapes the word that begins at the position `read`, and sets `read` to the position after the word. Returns
/// the length of the unescaped word in bytes.
fn word(line: &mut [u8], read: &mut usize) -> Result<usize, Unbalanced> {
    let begin = *read;
    let mut write = begin;
    while let Some(&byte) = line.get(*read) {
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => break,
            b'"' | b'\'' => {
                *read += 1;
                quoted(line, read, &mut write, byte)?;
                break;
            }
            _ => {
                line[write] = byte;
                write += 1;
                *read += 1;
            }
        }
    }
    Ok(write - begin)
}

/// Unescapes a quoted word after its opening quote, up to its closing quote.
fn quoted(line: &mut [u8], read: &mut usize, write: &mut usize, quote: u8) -> Result<(), Unbalanced> {
    loop {
        let rest = &line[*read..];
        let (byte, taken) = match *rest {
            [] => return Err(Unbalanced),
            [b'\\', b'x', high, low, ..] if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (digit(high) << 4 | digit(low), 4)
            }
            [b'\\', escaped, ..] if quote == b'"' => (unescaped(escaped), 2),
            [b'\\', b'\'', ..] if quote == b'\'' => (b'\'', 2),
            [byte, ..] if byte == quote => {
                *read += 1;
                return match line.get(*read) {
                    Some(next) if !is_space(*next) => Err(Unbalanced),
                    _ => Ok(()),
                };
            }
            [byte, ..] => (byte, 1),
        };
        line[*write] = byte;
        *write += 1;
        *read += taken;
    }
}

fn unescaped(byte: u8) -> u8 {
    match byte {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

/// Returns the value of a hexadecimal digit.
fn digit(hex: u8) -> u8 {
    char::from(hex).to_digit(16).map_or(0, |digit| digit as u8)
}
