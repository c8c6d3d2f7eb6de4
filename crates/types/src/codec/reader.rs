//! The reader of encoded bytes, and the error for bytes that do not decode.

/// Maximum length in bytes of a number in the encoding [`Varint`](super::Varint), which takes as few bytes as the
/// number needs.
pub const MAX_VARINT_BYTES: usize = 10;

/// Error returned when bytes do not decode as the expected type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed bytes at {at}: expected {expected}")]
pub struct Malformed {
    /// Byte offset, within the decoded slice, at which decoding failed.
    pub at: usize,
    /// Content that the decoder expected at that offset.
    pub expected: &'static str,
}

/// Reader of little-endian fields from a byte slice. It never reads past the end of the slice.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Creates a reader that begins at byte `at` of `bytes`.
    #[must_use]
    pub fn at(bytes: &'a [u8], at: usize) -> Self {
        Self { bytes, at: at.min(bytes.len()) }
    }

    /// Byte offset of the next field to be read.
    #[inline]
    #[must_use]
    pub fn position(&self) -> usize {
        self.at
    }

    /// All bytes of the slice, including those that have been read.
    #[inline]
    #[must_use]
    pub fn whole(&self) -> &'a [u8] {
        self.bytes
    }

    /// Moves the reader back to the field at byte offset `at`, which has been read before.
    #[inline]
    pub fn rewind(&mut self, at: usize) {
        debug_assert!(at <= self.at, "nothing is skipped");
        self.at = at;
    }

    /// Moves the reader past bytes that the caller has decoded from [`whole`](Self::whole).
    #[inline]
    pub(crate) fn advance(&mut self, len: usize) {
        debug_assert!(len <= self.bytes.len() - self.at, "within the slice");
        self.at += len;
    }

    /// Returns an error unless all bytes have been read; `expected` names the end of the encoding in this error.
    #[inline]
    pub fn expect_end(&self, expected: &'static str) -> Result<(), Malformed> {
        if self.is_empty() { Ok(()) } else { Err(Malformed { at: self.at, expected }) }
    }

    /// Returns true if no unread bytes are left.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// Reads and returns the next `len` bytes. On error nothing is consumed; `expected` names the field in the error.
    #[inline]
    pub fn take(&mut self, len: usize, expected: &'static str) -> Result<&'a [u8], Malformed> {
        let rest = &self.bytes[self.at..];
        if rest.len() < len {
            return Err(Malformed { at: self.at, expected });
        }
        self.at += len;
        Ok(&rest[..len])
    }

    /// Reads and returns all bytes that have not been read yet.
    pub fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// Reads one byte; `expected` names the field in errors.
    #[inline]
    pub fn u8(&mut self, expected: &'static str) -> Result<u8, Malformed> {
        Ok(self.take(1, expected)?[0])
    }

    /// Reads a u16; `expected` names the field in errors.
    #[inline]
    pub fn u16(&mut self, expected: &'static str) -> Result<u16, Malformed> {
        let bytes = self.take(2, expected)?;
        Ok(u16::from_le_bytes([bytes[0], bytes[1]]))
    }

    /// Reads a u32; `expected` names the field in errors.
    #[inline]
    pub fn u32(&mut self, expected: &'static str) -> Result<u32, Malformed> {
        let bytes = self.take(4, expected)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Reads a number of 1 to 10 bytes, as [`put_varint`](super::put_varint) encodes it. An encoding that is longer
    /// than the number needs is malformed, so each number has one encoding. On error nothing is consumed.
    pub fn varint(&mut self, expected: &'static str) -> Result<u64, Malformed> {
        let malformed = Malformed { at: self.at, expected };
        let mut value = 0_u64;
        for (count, &byte) in self.bytes[self.at..].iter().enumerate().take(MAX_VARINT_BYTES) {
            let bits = u64::from(byte & 0x7f);
            // The tenth byte has room for the highest bit only.
            if count == MAX_VARINT_BYTES - 1 && byte > 1 {
                return Err(malformed);
            }
            value |= bits << (7 * count);
            if byte & 0x80 == 0 {
                let is_longer_than_needed = byte == 0 && count > 0;
                if is_longer_than_needed {
                    return Err(malformed);
                }
                self.at += count + 1;
                return Ok(value);
            }
        }
        Err(malformed)
    }

    /// Reads a u64; `expected` names the field in errors.
    #[inline]
    pub fn u64(&mut self, expected: &'static str) -> Result<u64, Malformed> {
        let low = u64::from(self.u32(expected)?);
        let high = u64::from(self.u32(expected)?);
        Ok(high << 32 | low)
    }
}
