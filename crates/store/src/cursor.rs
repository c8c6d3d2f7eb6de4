//! The interface of a cursor over sorted pairs, which memtables, tables and stores implement and a merge reads.

use crate::{
    backend::{BackendError, Visit},
    passed::note_passed,
};

/// A cursor over sorted pairs of key and value, for example of a memtable or of a sorted run of tables. Until `advance`
/// returns false, the cursor is positioned on a pair.
pub trait Cursor {
    /// Returns the key of the pair on which the cursor is positioned.
    fn key(&self) -> &[u8];
    /// Returns the value of the pair on which the cursor is positioned; `None` if the key was deleted.
    fn value(&self) -> Option<&[u8]>;
    /// Moves the cursor to the next pair. Returns false if there is no next pair; the cursor must not be read
    /// afterwards.
    fn advance(&mut self) -> Result<bool, BackendError>;

    /// Calls `visit` with the pairs from the cursor's position until the end, or until `visit` returns `Break`.
    fn walk(&mut self, visit: &mut Visit<'_>) -> Result<(), BackendError> {
        loop {
            let goes_on = match self.value() {
                Some(value) => visit(self.key(), value).is_continue(),
                None => note_passed().is_continue(),
            };
            if !goes_on || !self.advance()? {
                return Ok(());
            }
        }
    }
}
