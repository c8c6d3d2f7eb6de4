//! Leftovers of destroyed groups: their consumers and pending entries.
//!
//! Destroying a group removes only a few of its rows. If rows are left, a *grave* row records this, and each later
//! change of the stream removes a few more. So no single command pays for a large group.

use std::ops::{Bound, ControlFlow};

use thalweg_types::limits::MAX_REDIS_SWEPT_ROWS;

use super::{
    id::EntryId,
    layout::{self, GRAVES, Meta, NOTHING, Pending},
    visit::{Order, visit_parts},
};
use crate::store::{CollectionId, Store, StoreError};

/// Removes some rows of a destroyed group. If rows are left, writes a grave row: it makes later changes of the stream
/// remove more of them.
pub(super) fn remove<'a>(
    at: CollectionId,
    meta: &mut Meta,
    store: &mut dyn Store<'a>,
    group: u64,
) -> Result<(), StoreError> {
    if empty(at, store, group)? == RemovalProgress::Some {
        store.put_part(at, &layout::grave(group), NOTHING)?;
        meta.graves = meta.graves.saturating_add(1);
    }
    Ok(())
}

/// Removes some of the rows that a destroyed group has left. Does nothing if no destroyed group has rows left.
pub(super) fn sweep<'a>(at: CollectionId, meta: &mut Meta, store: &mut dyn Store<'a>) -> Result<(), StoreError> {
    if meta.graves == 0 {
        return Ok(());
    }
    let mut grave = None;
    let range = (Bound::Included(GRAVES.0), Bound::Excluded(GRAVES.1));
    visit_parts(&*store, at, range, Order::Ascending, &mut |name, _| {
        grave = Some(layout::number_of(name)?);
        Ok(ControlFlow::Break(()))
    })?;
    let Some(group) = grave else {
        meta.graves = 0;
        return Ok(());
    };
    if empty(at, store, group)? == RemovalProgress::None {
        store.delete_part(at, &layout::grave(group))?;
        meta.graves -= 1;
    }
    Ok(())
}

/// Result of a removal: rows of the destroyed group are left, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RemovalProgress {
    None,
    Some,
}

/// Removes up to [`MAX_REDIS_SWEPT_ROWS`] pending entries and consumers of a destroyed group.
fn empty<'a>(at: CollectionId, store: &mut dyn Store<'a>, group: u64) -> Result<RemovalProgress, StoreError> {
    let mut names = Vec::new();
    let (lower, upper) = (layout::pending(group, EntryId::ZERO), layout::pending(group, EntryId::MAX));
    let pending = (Bound::Included(&lower[..]), Bound::Included(&upper[..]));
    let flow = |names: &Vec<_>| match names.len() < 2 * MAX_REDIS_SWEPT_ROWS {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    };
    visit_parts(&*store, at, pending, Order::Ascending, &mut |name, value| {
        let Pending { consumer, .. } = Pending::decode(value)?;
        names.push(layout::pending_with(consumer, layout::id_of(name)?).to_vec());
        names.push(name.to_vec());
        Ok(flow(&names))
    })?;
    let (lower, upper) = (layout::consumer_name(group, b""), layout::consumer_name(group.saturating_add(1), b""));
    let consumers = (Bound::Included(&lower[..]), Bound::Excluded(&upper[..]));
    if flow(&names).is_continue() {
        visit_parts(&*store, at, consumers, Order::Ascending, &mut |name, value| {
            names.push(layout::consumer(layout::decode_number(value)?).to_vec());
            names.push(name.to_vec());
            Ok(flow(&names))
        })?;
    }
    for name in &names {
        store.delete_part(at, name)?;
    }
    Ok(if flow(&names).is_continue() { RemovalProgress::None } else { RemovalProgress::Some })
}
