//! Texts of records and messages. Each text contains its number.
//!
//! ```text
//! text := '"' | number, ten digits | '.' | letters and digits that follow from the number | '"'
//! ```
//!
//! A text is a JSON string, so that requests can have one on each line.

use crate::data::{KEY_BYTES, Values, write_key};

/// Length in bytes of the shortest text: the two quotes, the number and the point.
pub const LEAST_TEXT_BYTES: usize = 2 + HEAD_BYTES;
const HEAD_BYTES: usize = 11;

/// Makes numbered texts of one length, which serve as records and messages, and recognises them in replies.
#[derive(Clone, Debug)]
pub struct NumberedTexts {
    letters: Values,
}

impl NumberedTexts {
    /// Creates texts of `bytes` bytes, quotes included. `bytes` is at least [`LEAST_TEXT_BYTES`].
    pub fn new(bytes: usize, seed: u64) -> Self {
        Self { letters: Values::text(bytes - LEAST_TEXT_BYTES, seed) }
    }

    /// Returns the length of each text in bytes.
    pub fn text_bytes(&self) -> usize {
        self.letters.len() + LEAST_TEXT_BYTES
    }

    /// Appends the text that contains `number`, which has at most ten digits.
    #[inline]
    pub fn put(&self, number: u64, out: &mut Vec<u8>) {
        out.push(b'"');
        out.extend_from_slice(&head(number));
        out.extend_from_slice(self.letters.of(number));
        out.push(b'"');
    }

    /// Returns the number that a text contains; `None` if any byte of the text is wrong.
    #[inline]
    pub fn number_of(&self, text: &[u8]) -> Option<u64> {
        let inner = text.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        let (found, letters) = inner.split_at_checked(HEAD_BYTES)?;
        let number = std::str::from_utf8(&found[..HEAD_BYTES - 1]).ok()?.parse().ok()?;
        (found == head(number) && letters == self.letters.of(number)).then_some(number)
    }
}

fn head(number: u64) -> [u8; HEAD_BYTES] {
    let (mut key, mut head) = ([0; KEY_BYTES], [b'.'; HEAD_BYTES]);
    write_key(number, &mut key);
    head[..HEAD_BYTES - 1].copy_from_slice(&key[KEY_BYTES - HEAD_BYTES + 1..]);
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_its_number_and_every_byte_counts() {
        let texts = NumberedTexts::new(60, 1);
        let mut text = Vec::new();
        texts.put(1234, &mut text);
        assert_eq!((text.len(), texts.text_bytes()), (60, 60));
        assert!(text.starts_with(b"\"0000001234.") && serde_like(&text));
        assert_eq!(texts.number_of(&text), Some(1234));
        for at in 0..60 {
            let mut wrong = text.clone();
            wrong[at] ^= 1;
            assert_eq!(texts.number_of(&wrong), None, "byte {at}");
        }
        assert!((0..60).all(|len| texts.number_of(&text[..len]).is_none()));
        assert_eq!(NumberedTexts::new(60, 2).number_of(&text), None, "of another run");
        let shortest = NumberedTexts::new(LEAST_TEXT_BYTES, 1);
        let mut text = Vec::new();
        shortest.put(9_999_999_999, &mut text);
        assert_eq!(shortest.number_of(&text), Some(9_999_999_999));
    }

    /// Returns true if no character between the quotes of a text needs an escape in JSON.
    fn serde_like(text: &[u8]) -> bool {
        text[1..text.len() - 1].iter().all(|byte| byte.is_ascii_graphic() && !b"\"\\".contains(byte))
    }
}
