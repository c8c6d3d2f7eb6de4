//! Audit of the names of keyspaces and streams, and of rows that belong to no existing keyspace, stream or group.

use thalweg_store::View;

use crate::{
    audit::{
        pages::each_row,
        report::{FindingKind, Report},
        visible_names::Names,
    },
    error::MachineError,
    keys::{self, KeyRange, TAG_COUNTS, TAG_TRASH},
};

/// Lowest first byte of the keys that backends reserve for themselves.
const BACKENDS: u8 = 0xf0;

pub(crate) fn check(view: &dyn View, names: &Names, report: &mut Report) -> Result<(), MachineError> {
    for tag in TAG_TRASH + 1..BACKENDS {
        each_row(view, &KeyRange::with_prefix(&[tag]), |key, _| {
            report.add(FindingKind::UnknownKind, key, "a kind that this version recognises", format_args!("{tag:02x}"));
            Ok(())
        })?;
    }
    for (keyspace, prefix, clear) in names.clears.iter() {
        let key = [&keys::clear_prefix(keyspace), prefix].concat();
        if names.keyspaces.row(keyspace).is_none() {
            report.add(FindingKind::Stray, &key, "a keyspace that exists", keyspace.0);
        }
        if clear.revision > names.revision {
            report.add(FindingKind::FutureRevision, &key, names.revision.0, clear.revision.0);
        }
        let revisions = || clear.kept.iter().chain([&clear.revision]);
        if revisions().zip(revisions().skip(1)).any(|(one, next)| one >= next) {
            report.add(FindingKind::Clear, &key, "earlier deletes in order", format_args!("{:?}", clear.kept));
        }
        if clear.swept.as_deref().is_some_and(|swept| !swept.starts_with(prefix)) {
            report.add(FindingKind::Clear, &key, "a key with the prefix", "another key as the last one swept");
        }
    }
    each_row(view, &KeyRange::with_prefix(&[TAG_COUNTS]), |key, _| {
        let row = keys::id_of(key).and_then(|id| names.keyspaces.row(thalweg_types::KeyspaceId(id)));
        if row.is_none_or(|row| !row.config.exact_counts) {
            report.add(FindingKind::Stray, key, "a keyspace that counts exactly", "no such keyspace");
        }
        Ok(())
    })
}
