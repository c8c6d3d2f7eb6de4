//! The longest value that a node never left in its log.
//!
//! Owns the row that says it: no value of at most so many bytes was ever left in an entry of this node's log, whatever its
//! options were. Whoever looks for live values in a segment passes over such values without looking at the state, and that
//! is most of them. Node-local: it follows from the node's options.
//!
//! ```text
//! 04 := bytes u32      little-endian; missing in directories from before it: `MIN_INLINE_VALUE_BYTES`
//! ```
//! Invariants: it never rises. A row with a pointer to a shorter value is never stored before it has been lowered: it is
//! written with the first record after the machine was opened.

use thalweg_types::limits::MIN_INLINE_VALUE_BYTES;

use crate::{
    backend::{View, WriteBatch},
    keys,
    machine::MachineError,
};

/// As stored, and whether that must be written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InlineFloor {
    bytes: u32,
    is_stored: bool,
}

impl InlineFloor {
    /// The floor of a node that leaves values in its log from now on that are longer than `inline_value_bytes`.
    /// `is_new`: nothing was ever applied.
    pub(crate) fn load(view: &dyn View, inline_value_bytes: usize, is_new: bool) -> Result<Self, MachineError> {
        let before = match view.get(&keys::INLINE_FLOOR)? {
            Some(row) => decode(&row)?,
            None if is_new => u32::MAX,
            None => MIN_INLINE_VALUE_BYTES as u32,
        };
        let bytes = before.min(u32::try_from(inline_value_bytes).unwrap_or(u32::MAX));
        Ok(Self { bytes, is_stored: false })
    }

    pub(crate) fn bytes(self) -> usize {
        self.bytes as usize
    }

    /// Adds the row, unless an earlier batch had it.
    #[inline]
    pub(crate) fn write_once(&mut self, batch: &mut WriteBatch) {
        if !self.is_stored {
            batch.put(&[&keys::INLINE_FLOOR], &[&self.bytes.to_le_bytes()]);
            self.is_stored = true;
        }
    }
}

/// Adds the row of a node that has left no value in an entry yet.
pub(crate) fn write_none_left(batch: &mut WriteBatch) {
    batch.put(&[&keys::INLINE_FLOOR], &[&u32::MAX.to_le_bytes()]);
}

fn decode(row: &[u8]) -> Result<u32, MachineError> {
    let corrupt = || MachineError::corrupt("inline floor", &keys::INLINE_FLOOR, "row of a wrong length");
    Ok(u32::from_le_bytes(row.try_into().map_err(|_| corrupt())?))
}
