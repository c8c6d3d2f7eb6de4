//! Audit of versions (former values of keys): their order, the index rows of their times, and the agreement of each
//! keyspace's history with its configuration.

use thalweg_store::View;
use thalweg_types::{KeyspaceId, Revision, command::KeyspaceHistory};

use crate::{
    audit::{
        pages::{each_beginning, each_row, is_there},
        report::{FindingKind, Report},
        segments::Segments,
        visible_names::Names,
    },
    error::MachineError,
    history::rows::{
        HistoryKey, HistoryRow, HistoryWork, PREFIX_LEN, VersionEnd, VersionRow, VersionUpperBound, history_row,
        history_rows, keyspace_of_history, time_row, versions_prefix,
    },
    keys::{self, KeyRange, TAG_VERSIONS},
    keyspaces::{catalog::KeyspaceRow, values::decode_value},
    segments::liveness::BlobKind,
};

pub(crate) fn check(
    view: &dyn View,
    names: &Names,
    segments: &mut Segments,
    report: &mut Report,
) -> Result<(), MachineError> {
    for (id, row) in names.keyspaces.list() {
        let key = history_row(id);
        if row.config.history.is_kept() && !is_there(view, &key)? {
            report.add(FindingKind::History, &key, "the history of a keyspace that keeps one", "no row");
        }
    }
    each_row(view, &history_rows(), |key, row| {
        let Some(id) = keyspace_of_history(key) else {
            report.add(FindingKind::Undecodable, key, "the key of a history", "another key");
            return Ok(());
        };
        let Some(history) = report.decoded(key, HistoryRow::decode(key, row))? else { return Ok(()) };
        let bounds = bounds_of(names, id);
        if (history.work == HistoryWork::Remove) == bounds.is_kept() {
            let expected = if bounds.is_kept() { "a history that is kept" } else { "a history that is being removed" };
            report.add(FindingKind::History, key, expected, format_args!("{:?}", history.work));
        }
        if history.floor.max(history.gone) > names.revision {
            report.add(FindingKind::FutureRevision, key, names.revision.0, history.floor.max(history.gone).0);
        }
        Versions { view, names, id, bounds, work: history.work, newer: None }.check(segments, report)
    })?;
    for kind in [1, 2] {
        each_beginning(view, &[TAG_VERSIONS, kind], PREFIX_LEN, |beginning| {
            let id = beginning.get(2..).and_then(|id| Some(KeyspaceId(u32::from_be_bytes(id.try_into().ok()?))));
            match id {
                Some(id) if is_there(view, &history_row(id))? => {}
                _ => report.add(FindingKind::Stray, beginning, "a keyspace with a history", "none"),
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn bounds_of(names: &Names, id: KeyspaceId) -> KeyspaceHistory {
    let row = names.keyspaces.row(id).filter(|row| KeyspaceRow::is_live(row));
    row.map(|row| row.config.history).unwrap_or_default()
}

/// Check of the versions (former values) of one keyspace's keys, in the order of keys, each key's newest version first.
struct Versions<'a> {
    view: &'a dyn View,
    names: &'a Names,
    id: KeyspaceId,
    bounds: KeyspaceHistory,
    work: HistoryWork,
    /// The newer neighbour of the next version (former value) to check: its user key, and the revision of its value. A
    /// version of the same key must end at or before that revision.
    newer: Option<(Vec<u8>, Revision)>,
}

impl Versions<'_> {
    fn check(mut self, segments: &mut Segments, report: &mut Report) -> Result<(), MachineError> {
        each_row(self.view, &KeyRange::with_prefix(&versions_prefix(self.id)), |key, row| {
            let Some(of) = report.decoded(key, HistoryKey::of_version(key))? else { return Ok(()) };
            let until = match of.revision {
                Some(revision) => self.version(key, row, &of.key, revision, segments, report)?,
                None => report
                    .decoded(key, VersionUpperBound::of_forgotten(key, row))?
                    .map(|until| (until, self.bounds.age.is_some())),
            };
            let Some((until, has_time)) = until else { return Ok(()) };
            if until.revision > self.names.revision {
                report.add(FindingKind::FutureRevision, key, self.names.revision.0, until.revision.0);
            }
            let time = time_row(self.id, until.time, key);
            if self.work == HistoryWork::Settled && has_time && !is_there(self.view, &time)? {
                report.add(FindingKind::VersionTime, &time, "the row of a version's time", "no row");
            }
            Ok(())
        })
    }

    /// Checks the row of one version (former value). Returns the time and revision at which the version ended, and true
    /// if an index row of that time must exist.
    fn version(
        &mut self,
        key: &[u8],
        row: &[u8],
        user_key: &[u8],
        revision: Revision,
        segments: &mut Segments,
        report: &mut Report,
    ) -> Result<Option<(VersionUpperBound, bool)>, MachineError> {
        let decoded = VersionRow::decode(key, row).and_then(|version| Ok((version, version.decoded(key)?)));
        let Some((version, value)) = report.decoded(key, decoded)? else { return Ok(None) };
        if let Some(blob) = value.value.blob() {
            segments.add(BlobKind::Value, &blob);
        }
        report.same(FindingKind::Version, key, "the revision of its value", &value.revision, &revision);
        let newer = match self.newer.take() {
            Some((key, newer)) if key == user_key => Some(newer),
            _ => self.newest(user_key, report)?,
        };
        let until = version.until.revision;
        if until <= revision || newer.is_some_and(|newer| until > newer) {
            let newer = newer.map_or_else(|| "the end".to_owned(), |newer| newer.0.to_string());
            let expected = format_args!("until above {} and at most {newer}", revision.0);
            report.add(FindingKind::Version, key, expected, until.0);
        }
        self.newer = Some((user_key.to_vec(), revision));
        Ok(Some((version.until, self.bounds.age.is_some() || version.ending != VersionEnd::Overwritten)))
    }

    /// Returns the revision of the key's current value; `None` if the key has none.
    fn newest(&self, user_key: &[u8], report: &mut Report) -> Result<Option<Revision>, MachineError> {
        let full = [&keys::data_prefix(self.id), user_key].concat();
        let Some(row) = self.view.get(&full)? else { return Ok(None) };
        Ok(report.decoded(&full, decode_value(&full, &row))?.map(|value| value.revision))
    }
}
