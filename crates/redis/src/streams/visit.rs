//! Visits of the rows of a Redis stream (its entries, groups and consumers) in the order of the rows' names.
//!
//! Owns: the direction of a visit, and visitors that can fail. Does not own: the names (see [`layout`](super::layout)).

use std::ops::{Bound, ControlFlow};

use crate::store::{CollectionId, Read, StoreError};

/// Result that a visitor returns for each visited row: continue the visit, stop it, or end it with an error.
pub(super) type Flow = Result<ControlFlow<()>, StoreError>;

/// Direction of a visit: by ascending or descending names of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Ascending,
    Descending,
}

/// Visits the rows of a hash or a stream. The visitor can return an error.
pub(super) fn visit_parts(
    read: &dyn Read,
    at: CollectionId,
    (lower, upper): (Bound<&[u8]>, Bound<&[u8]>),
    order: Order,
    visit: &mut dyn FnMut(&[u8], &[u8]) -> Flow,
) -> Result<(), StoreError> {
    let mut outcome = Ok(());
    read.parts(at, lower, upper, order == Order::Descending, &mut |name, value| match visit(name, value) {
        Ok(flow) => flow,
        Err(error) => {
            outcome = Err(error);
            ControlFlow::Break(())
        }
    })?;
    outcome
}
