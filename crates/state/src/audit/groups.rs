//! Audit of consumer groups: the rows of a group agree with each other, and with the stream that the group reads.
//!
//! Loading a group already checks most of this: its members and attempts belong to it, its attempt numbers and offsets
//! are below the next ones to assign, and no record is pending twice.

use thalweg_store::View;

use crate::{
    audit::report::{FindingKind, Report},
    error::MachineError,
    groups::table::GroupTable,
    keys,
    streams::index,
};

pub(crate) fn check(view: &dyn View, report: &mut Report) -> Result<(), MachineError> {
    let Some(groups) = report.unless_corrupt(GroupTable::load(view))? else { return Ok(()) };
    for (id, group) in groups.iter() {
        let (key, stream) = (keys::group_head(id), group.head.stream);
        let Some(head) = report.decoded(&key, index::head(view, stream))? else { continue };
        match head.filter(|head| head.is_live()) {
            None => report.add(FindingKind::Group, &key, "a stream that exists", stream.0),
            Some(head) if group.head.cursor > head.next => {
                let expected = format_args!("a cursor of at most {}", head.next.0);
                report.add(FindingKind::Group, &key, expected, group.head.cursor.0);
            }
            Some(_) => {}
        }
    }
    Ok(())
}
