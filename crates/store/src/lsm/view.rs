//! The tables of one version of the state, as the immutable view of a store behind memtables.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;

use super::tables::{BorrowedRunCursor, OwnedRunCursor, RESERVED, RunCursor, TableEntry, TableSet};
use crate::{
    backend::{BackendError, VerifiedRows},
    buffered::{OwnedSource, StoreView},
    merge::Source,
    span::{OwnedSpan, Span},
};

impl StoreView for TableSet {
    type Cursor<'a> = BorrowedRunCursor<'a>;
    type OwnedCursor = OwnedRunCursor;

    #[inline]
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        if key.starts_with(RESERVED) {
            return Ok(None);
        }
        match self.get(key)? {
            Some(TableEntry::Value(value)) => Ok(Some(value)),
            Some(TableEntry::Deleted) | None => Ok(None),
        }
    }

    fn read_ahead(&self, key: &[u8]) {
        if !key.starts_with(RESERVED) {
            self.read_ahead(key);
        }
    }

    fn verify(&self, step: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<VerifiedRows, BackendError> {
        let mut verified = VerifiedRows::default();
        for table in self.tables() {
            if table.verify(&mut verified, step)?.is_break() {
                return Ok(verified);
            }
        }
        verified.is_complete = true;
        Ok(verified)
    }

    fn run_count(&self) -> usize {
        self.runs().len()
    }

    fn add_sources<'a>(
        &'a self,
        span: Span<'a>,
        sources: &mut Vec<Source<'a, BorrowedRunCursor<'a>>>,
    ) -> Result<(), BackendError> {
        let span = Span { upper: exclude_reserved(span.upper), ..span };
        for run in self.runs() {
            sources.extend(RunCursor::open(run.tables(), span)?.map(|cursor| Source::Run(Box::new(cursor))));
        }
        Ok(())
    }

    fn add_owned_sources(
        &self,
        span: &OwnedSpan,
        sources: &mut Vec<OwnedSource<OwnedRunCursor>>,
    ) -> Result<bool, BackendError> {
        let upper = match exclude_reserved(span.upper()) {
            Bound::Excluded(RESERVED) => Bound::Excluded(RESERVED.into()),
            _ => span.upper.clone(),
        };
        let span = OwnedSpan { upper, ..span.clone() };
        for run in self.runs() {
            sources.extend(RunCursor::open(run.shared_tables(), span.clone())?.map(OwnedSource::Run));
        }
        Ok(true)
    }
}

/// Returns the upper bound, lowered if necessary so that it excludes the keys that the backend reserves for itself.
fn exclude_reserved(upper: Bound<&[u8]>) -> Bound<&[u8]> {
    match upper {
        Bound::Included(key) | Bound::Excluded(key) if key < RESERVED => upper,
        _ => Bound::Excluded(RESERVED),
    }
}
