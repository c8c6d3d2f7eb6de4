//! The inline floor: the maximum length of values that this node has always stored in the state and never in its log.
//!
//! Owns: the row with the inline floor. Maintenance that searches a segment for live values skips those of at most this
//! length without a lookup in the state; most are shorter. The floor is node-local, because it follows from the node's
//! options.
//!
//! ```text
//! 04 := bytes u32      little-endian; if missing (older directories): `MIN_INLINE_VALUE_BYTES`
//! ```
//! Invariants: the stored floor never increases. The first record after an open writes the floor, in the batch that may
//! also contain the first pointer to a value above the new floor, so a crash cannot separate the two.

use thalweg_store::{View, WriteBatch};
use thalweg_types::limits::MIN_INLINE_VALUE_BYTES;

use crate::{error::MachineError, keys};

/// The inline floor: length in bytes of values that are always in the state. The flag is true once it is written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InlineFloor {
    bytes: u32,
    is_stored: bool,
}

impl InlineFloor {
    /// Loads the inline floor: the length up to which values are always in the state. The node's option is now
    /// `inline_value_bytes`. `is_new` is true for a state to which no record was ever applied.
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

    /// Adds the row of the inline floor (length up to which values are always in the state) to the batch, if this is
    /// the first batch after an open.
    #[inline]
    pub(crate) fn write_once(&mut self, batch: &mut WriteBatch) {
        if !self.is_stored {
            batch.put(&[&keys::INLINE_FLOOR], &[&self.bytes.to_le_bytes()]);
            self.is_stored = true;
        }
    }
}

/// Adds the row of the inline floor (length up to which values are always in the state) for a restored state, with the
/// highest floor: the new log has no entry with a value yet.
pub(crate) fn write_none_left(batch: &mut WriteBatch) {
    batch.put(&[&keys::INLINE_FLOOR], &[&u32::MAX.to_le_bytes()]);
}

fn decode(row: &[u8]) -> Result<u32, MachineError> {
    let corrupt = || MachineError::corrupt("inline floor", &keys::INLINE_FLOOR, "row of a wrong length");
    Ok(u32::from_le_bytes(row.try_into().map_err(|_| corrupt())?))
}
