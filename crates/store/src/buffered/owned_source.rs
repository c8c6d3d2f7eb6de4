//! The inputs that a cursor merges: memtables and sorted runs. Unlike borrowed inputs, they keep their data alive.

use crate::{backend::BackendError, cursor::Cursor, memtable::MemtableCursor};

/// One input of a merged cursor, positioned on a pair.
#[derive(Clone)]
pub enum OwnedSource<C> {
    Memtable(MemtableCursor),
    Run(C),
}

impl<C: Cursor> Cursor for OwnedSource<C> {
    #[inline]
    fn key(&self) -> &[u8] {
        match self {
            Self::Memtable(cursor) => cursor.key(),
            Self::Run(cursor) => cursor.key(),
        }
    }

    #[inline]
    fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Memtable(cursor) => cursor.value(),
            Self::Run(cursor) => cursor.value(),
        }
    }

    #[inline]
    fn advance(&mut self) -> Result<bool, BackendError> {
        match self {
            Self::Memtable(cursor) => cursor.advance(),
            Self::Run(cursor) => cursor.advance(),
        }
    }
}
