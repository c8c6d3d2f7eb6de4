//! Audit of the parts (fields and entries) of Redis hashes and streams. Each part belongs to a collection that a key
//! refers to, or that has a trash row, because its key was removed.

use thalweg_store::View;

use crate::{
    audit::{
        pages::{each_beginning, each_row, is_there},
        report::{FindingKind, Report},
        values::ReferencedCollections,
    },
    error::MachineError,
    keys::{self, KeyRange, PART_PREFIX_LEN, TAG_PART, TAG_TRASH},
};

pub(crate) fn check(view: &dyn View, held: &ReferencedCollections, report: &mut Report) -> Result<(), MachineError> {
    each_beginning(view, &[TAG_PART], PART_PREFIX_LEN, |beginning| {
        match keys::collection_of_trash(beginning) {
            Some(of) if held.contains(&of) => {}
            Some((keyspace, collection)) if is_there(view, &keys::trash_row(keyspace, collection))? => {}
            _ => {
                let expected = "parts of a collection that is held or trash";
                report.add(FindingKind::Collection, beginning, expected, "neither");
            }
        }
        Ok(())
    })?;
    each_row(view, &KeyRange::with_prefix(&[TAG_TRASH]), |key, _| {
        match keys::collection_of_trash(key) {
            Some(of) if !held.contains(&of) => {}
            Some(_) => report.add(FindingKind::Collection, key, "a collection that no key holds", "a key holds it"),
            None => report.add(FindingKind::Undecodable, key, "the key of a trash row", "another key"),
        }
        Ok(())
    })
}
