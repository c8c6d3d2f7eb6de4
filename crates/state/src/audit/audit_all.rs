//! The audit of the whole state: recomputes redundant rows from the rows that determine them, and compares both.
//!
//! Owns: [`audit`], which calls the checks of all areas. Does not own: repair, or the log. An audit does not read the
//! log bytes that rows point to (`thalweg log verify` does).
//!
//! ```text
//! kept twice                                         recomputed from                       by
//! live bytes and counts of a segment (04)            every row that points into it         segments
//! exact counts (07)                                  values (10), clears (06)              values
//! deadlines (08), attachments (0a), lease.keys (09)  values (10), leases (09)              values, ends
//! stream heads (03)                                  index entries (11), producers (0d)    streams
//! times of versions (12 02), order of versions       versions (12 01)                      history
//! trash (15)                                         collections that keys hold            collections
//! consumer groups (0e, 0f, 14)                       each other                            groups
//! ```
//!
//! Rows are read in pages of one view. So the memory that an audit needs is a few numbers for each segment, keyspace,
//! collection and consumer group, however large their content is.

use thalweg_store::View;

use crate::{
    audit::{
        collections, ends, groups, history, names,
        report::{Finding, Report, Values},
        segments::Segments,
        streams, values,
        visible_names::Names,
    },
    error::MachineError,
};

/// Audits all rows of a view, and returns all disagreements, area by area.
///
/// # Errors
/// Returns an error if the backend fails. Rows that do not decode are findings, and data that depends on them is
/// not compared.
pub fn audit(view: &dyn View, values: Values) -> Result<Vec<Finding>, MachineError> {
    let mut report = Report::default();
    let Some(names) = report.unless_corrupt(Names::load(view))? else { return Ok(report.0) };
    let mut segments = Segments::default();
    names::check(view, &names, &mut report)?;
    let held = values::check(view, &names, &mut segments, &mut report)?;
    ends::check(view, &mut report)?;
    streams::check(view, &mut segments, &mut report)?;
    history::check(view, &names, &mut segments, &mut report)?;
    collections::check(view, &held, &mut report)?;
    groups::check(view, &mut report)?;
    segments.check(view, values, &mut report)?;
    Ok(report.0)
}
