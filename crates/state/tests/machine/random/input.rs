//! Decisions derived from a byte string.

/// A byte string that is read from the front. After its end every decision is zero. So every input is valid, and a
/// shorter one means a simpler case.
#[derive(Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Returns true if no bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a byte; zero after the end.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    /// Returns a number below `bound`, which is at most 256.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// Returns true about once in `bound` calls.
    pub fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == bound - 1
    }

    /// Returns a number of two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Returns a number of eight bytes: near zero, near the maximum, or arbitrary.
    pub fn number(&mut self) -> u64 {
        match self.byte() % 4 {
            0 => u64::from(self.byte()),
            1 => u64::MAX - u64::from(self.byte()),
            2 => u64::from(self.short()),
            _ => (0..4).fold(0, |number, _| number << 16 | u64::from(self.short())),
        }
    }

    /// Returns at most `len` bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(len.min(self.0.len()));
        self.0 = later;
        now
    }

    /// Returns bytes whose length is in the first byte.
    #[allow(dead_code, reason = "only fuzz targets ask for it")]
    pub fn bytes(&mut self) -> &'a [u8] {
        let len = self.byte();
        self.take(len.into())
    }
}
