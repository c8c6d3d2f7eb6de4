//! Rows in the form that all replicas of a space have in common.

use std::collections::BTreeMap;

use thalweg_state::digest::{RowScope, replicated_row};

use crate::support::Map;

/// Replicated forms by key.
pub type Replicated = BTreeMap<Vec<u8>, Vec<u8>>;

/// Returns the replicated forms of all rows that have one.
pub fn of(map: &Map) -> Replicated {
    let forms = map.iter().filter_map(|(key, row)| {
        let mut form = Vec::new();
        let standing = replicated_row(key, row, &mut form).expect("a row that decodes");
        (standing == RowScope::Replicated).then(|| (key.clone(), form))
    });
    forms.collect()
}
