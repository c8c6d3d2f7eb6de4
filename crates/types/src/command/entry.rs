//! Log entries: sequences of commands, each framed by its length.
//!
//! ```text
//! entry := (len u32 | command)*          payload of a log record of kind entry
//! ```

use crate::{
    codec::{Malformed, Reader},
    command::versions::{FIRST_VERSION, Unwrapped, unwrap},
};

/// An encoded command, preceded by its length, as a log entry contains it (`len u32 | command`). An entry's payload
/// consists of one or more such frames, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Framed(Vec<u8>);

impl Framed {
    /// Creates a frame that contains no command yet. Callers fill the frame with [`encode`](Self::encode).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a frame that contains no command yet, with memory for a command of `bytes` bytes.
    #[must_use]
    pub fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(4 + bytes))
    }

    /// Replaces the command in the frame with the bytes that `encode` writes. The allocated memory is kept. On error
    /// the frame contains no command.
    pub fn encode<E>(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        self.0.clear();
        self.0.extend_from_slice(&[0; 4]);
        let encoded = encode(&mut self.0);
        if encoded.is_err() {
            self.0.clear();
            return encoded;
        }
        let len = u32::try_from(self.0.len() - 4).expect("commands are checked against MAX_COMMAND_BYTES");
        self.0[..4].copy_from_slice(&len.to_le_bytes());
        Ok(())
    }

    /// Bytes of the frame: the command's length and the command.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Frees the frame's memory, and with it the command, if more than `max_bytes` are allocated.
    pub fn shrink(&mut self, max_bytes: usize) {
        if self.0.capacity() > max_bytes {
            self.0 = Vec::new();
        }
    }
}

/// Iterator over the commands of a log entry's payload. Each command is returned with the offset of its first byte in
/// the payload, so that `payload offset + command offset + value_at` is a byte position in the log segment. Some
/// commands are wrapped together with the version of the state machine that they need. For these, the offset and the
/// bytes are those of the command inside the wrapper.
#[derive(Clone, Debug)]
pub struct Commands<'a> {
    reader: Reader<'a>,
    failed: bool,
    version: u16,
}

impl<'a> Commands<'a> {
    /// Creates an iterator over an entry's payload.
    #[must_use]
    pub fn new(payload: &'a [u8]) -> Self {
        Self { reader: Reader::at(payload, 0), failed: false, version: FIRST_VERSION }
    }

    /// Version of the state machine that the last returned command needs. It is 1 if the command names no version.
    #[inline]
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }
}

impl<'a> Iterator for Commands<'a> {
    type Item = Result<(usize, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.is_empty() {
            return None;
        }
        let command = self.reader.u32("command length").and_then(|len| {
            let at = self.reader.position();
            let framed = self.reader.take(len as usize, "command")?;
            let Unwrapped { version, bytes } = unwrap(framed);
            self.version = version;
            Ok((at + framed.len() - bytes.len(), bytes))
        });
        self.failed = command.is_err();
        Some(command)
    }
}
