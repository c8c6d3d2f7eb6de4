//! Loops over the rows of a key range in a view.

use std::ops::ControlFlow;

use thalweg_store::{Direction, View};

use crate::{error::MachineError, keys::KeyRange};

/// Calls `each` with the rows of a range until it breaks. The first error that `each` returns ends the scan and is
/// returned.
pub(crate) fn visit_rows(
    view: &dyn View,
    range: &KeyRange,
    mut each: impl FnMut(&[u8], &[u8]) -> Result<ControlFlow<()>, MachineError>,
) -> Result<(), MachineError> {
    let mut failure = None;
    view.scan(range.lower(), range.upper(), Direction::Forward, &mut |key, row| {
        each(key, row).unwrap_or_else(|error| {
            failure = Some(error);
            ControlFlow::Break(())
        })
    })?;
    failure.map_or(Ok(()), Err)
}

/// Calls `each` with every row of a range, like [`visit_rows`].
pub(crate) fn load_rows(
    view: &dyn View,
    range: &KeyRange,
    mut each: impl FnMut(&[u8], &[u8]) -> Result<(), MachineError>,
) -> Result<(), MachineError> {
    visit_rows(view, range, |key, row| each(key, row).map(ControlFlow::Continue))
}

/// Returns at most `max` keys of a range, and true if there are more.
pub(crate) fn keys_of(view: &dyn View, range: &KeyRange, max: u32) -> Result<(Vec<Vec<u8>>, bool), MachineError> {
    let (mut found, mut more) = (Vec::new(), false);
    view.scan(range.lower(), range.upper(), Direction::Forward, &mut |key, _| {
        if found.len() == max as usize {
            more = true;
            return ControlFlow::Break(());
        }
        found.push(key.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok((found, more))
}
