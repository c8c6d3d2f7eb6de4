//! Decisions taken from a byte string.

/// A byte string that is read from the front. Where it ends, every further decision is zero, so every input means
/// something and a shorter one means a simpler case.
#[derive(Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Returns true once no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A byte; zero at the end.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    /// A number below `bound`, which is at most 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// True about once in `bound` times.
    pub fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == bound - 1
    }

    /// Two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Eight bytes, near zero, near the top, or as they come.
    pub fn number(&mut self) -> u64 {
        match self.byte() % 4 {
            0 => u64::from(self.byte()),
            1 => u64::MAX - u64::from(self.byte()),
            2 => u64::from(self.short()),
            _ => (0..4).fold(0, |number, _| number << 16 | u64::from(self.short())),
        }
    }

    /// At most `len` bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(len.min(self.0.len()));
        self.0 = later;
        now
    }

    /// Bytes behind a length of one byte.
    #[allow(dead_code, reason = "only fuzz targets ask for it")]
    pub fn bytes(&mut self) -> &'a [u8] {
        let len = self.byte();
        self.take(len.into())
    }
}
