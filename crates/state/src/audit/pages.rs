//! Loops over rows that read them in pages, because a backend may not support a get during a scan.

use std::ops::{Bound, ControlFlow};

use thalweg_store::{BackendError, Direction, View};
use thalweg_types::key_order::after_prefix;

use crate::{error::MachineError, keys::KeyRange};

/// Maximum number of rows in a page. A page also ends at [`PAGE_BYTES`].
const PAGE_ROWS: usize = 1000;
const PAGE_BYTES: usize = 1024 * 1024;

type Row = (Vec<u8>, Vec<u8>);

/// Calls `visit` with every row of a key range, in order. `visit` may read other rows of the same view.
pub(crate) fn each_row(
    view: &dyn View,
    range: &KeyRange,
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), MachineError>,
) -> Result<(), MachineError> {
    let mut rest = range.clone();
    loop {
        let (page, more) = page(view, &rest)?;
        for (key, row) in &page {
            visit(key, row)?;
        }
        match page.into_iter().next_back() {
            Some((last, _)) if more => rest.set_lower(Bound::Excluded(last)),
            _ => return Ok(()),
        }
    }
}

fn page(view: &dyn View, range: &KeyRange) -> Result<(Vec<Row>, bool), BackendError> {
    let (mut rows, mut bytes, mut more) = (Vec::new(), 0, false);
    view.scan(range.lower(), range.upper(), Direction::Forward, &mut |key, row| {
        if rows.len() == PAGE_ROWS || bytes >= PAGE_BYTES {
            more = true;
            return ControlFlow::Break(());
        }
        bytes += key.len() + row.len();
        rows.push((key.to_vec(), row.to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok((rows, more))
}

/// Calls `visit` once for each distinct value of the first `len` bytes of the row keys with the prefix `prefix`. Skips
/// all further rows with the same first bytes.
pub(crate) fn each_beginning(
    view: &dyn View,
    prefix: &[u8],
    len: usize,
    mut visit: impl FnMut(&[u8]) -> Result<(), MachineError>,
) -> Result<(), MachineError> {
    let mut range = KeyRange::with_prefix(prefix);
    loop {
        let mut first = None;
        view.scan(range.lower(), range.upper(), Direction::Forward, &mut |key, _| {
            first = Some(key[..len.min(key.len())].to_vec());
            ControlFlow::Break(())
        })?;
        let Some(first) = first else { return Ok(()) };
        visit(&first)?;
        match after_prefix(&first) {
            Some(next) => range.set_lower(Bound::Included(next)),
            None => return Ok(()),
        }
        if range.is_empty() {
            return Ok(());
        }
    }
}

/// Returns true if the view contains a row with this key.
pub(crate) fn is_there(view: &dyn View, key: &[u8]) -> Result<bool, BackendError> {
    Ok(view.get(key)?.is_some())
}
