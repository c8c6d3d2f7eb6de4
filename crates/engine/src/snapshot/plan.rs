//! Choice and order of those snapshots of a backup that lead to the target of a restore.
//!
//! Owns: [`Part`], which is one snapshot (full or an increment) at some location, and the plan made from the
//! descriptions of parts. Does not own: the contents of parts, which restoring checks again.
//!
//! ```text
//! full @100      full @400
//!    |--- 100..250 ---|--- 250..420 ---|                 since .. applied
//!                        |-- 400..600 --|
//! ```
//! The plan takes the newest full snapshot at or before the target. Then it repeatedly takes the increment that begins
//! at or before the position reached so far and ends last. The caller may pass parts in any order, and more parts than
//! needed.

use std::{
    fmt,
    fs::File,
    io::{self, Cursor, Read},
    path::Path,
};

use bytes::Bytes;
use thalweg_snapshot::{PartKind, SnapshotInfo, SnapshotReadError};
use thalweg_types::{Lsn, SpaceTime};

use super::RestoreError;

/// Function that opens the bytes of a backup's snapshot for reading. A restore calls it at least twice.
type Open = Box<dyn Fn() -> io::Result<Box<dyn Read>> + Send + Sync>;

/// A part of a backup: one snapshot (full or an increment) at some location, restored together with other parts.
pub struct Part {
    name: String,
    open: Open,
    /// Size of the snapshot in bytes, as stored; `None` if it is not known before it is read.
    stored_bytes: Option<u64>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Part").field(&self.name).finish()
    }
}

impl Part {
    /// Creates a part of a backup from a function that opens the bytes of its snapshot; `name` is used in messages.
    pub fn new(name: impl Into<String>, open: impl Fn() -> io::Result<Box<dyn Read>> + Send + Sync + 'static) -> Self {
        Self { name: name.into(), open: Box::new(open), stored_bytes: None }
    }

    /// Creates a part of a backup from the snapshot file at `path`. Messages name the part by this path.
    pub fn file(path: impl AsRef<Path>) -> Self {
        let path = path.as_ref().to_owned();
        let stored_bytes = path.metadata().ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len());
        let part = Self::new(path.display().to_string(), move || Ok(Box::new(File::open(&path)?)));
        Self { stored_bytes, ..part }
    }

    /// Creates a part of a backup from the bytes of a snapshot in memory; `name` is used in messages.
    pub fn bytes(name: impl Into<String>, bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let stored_bytes = Some(bytes.len() as u64);
        Self { stored_bytes, ..Self::new(name, move || Ok(Box::new(Cursor::new(bytes.clone())))) }
    }

    /// Returns the size of the snapshot in bytes, as stored, if it is known.
    pub(crate) fn stored_bytes(&self) -> Option<u64> {
        self.stored_bytes
    }

    /// Returns the name of this snapshot in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads the description of this snapshot from its first chunk.
    pub fn info(&self) -> Result<SnapshotInfo, SnapshotReadError> {
        thalweg_snapshot::info(self.open()?)
    }

    pub(crate) fn open(&self) -> io::Result<Box<dyn Read>> {
        (self.open)()
    }

    pub(crate) fn fault(&self, error: SnapshotReadError) -> RestoreError {
        RestoreError::Part { part: self.name.clone(), error }
    }
}

/// Position to which a restore brings the new directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RestoreTo {
    /// The restore applies everything up to the end of the last snapshot.
    #[default]
    End,
    /// The restore applies all log entries below this LSN and no later ones.
    Lsn(Lsn),
    /// The restore applies all log entries of this time or earlier. If the node had entries after the end of the
    /// snapshots and up to this time, their absence is not noticed.
    Time(SpaceTime),
}

impl fmt::Display for RestoreTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("the end"),
            Self::Lsn(lsn) => write!(f, "LSN {lsn}"),
            Self::Time(time) => write!(f, "time {} µs", time.0),
        }
    }
}

impl RestoreTo {
    /// Returns true if the snapshot with this description contains nothing after the position to restore to.
    fn allows(self, info: &SnapshotInfo) -> bool {
        match self {
            Self::End => true,
            Self::Lsn(lsn) => info.applied.lsn <= lsn,
            Self::Time(time) => info.applied.time <= time,
        }
    }
}

/// Returns the descriptions of the snapshots of a backup that a restore to `to` needs, in order, beginning with a full
/// one. Fails if the descriptions show that the backup cannot be restored.
pub fn chain(parts: &[Part], to: RestoreTo) -> Result<Vec<SnapshotInfo>, RestoreError> {
    Ok(plan(parts, to)?.into_iter().map(|(_, info)| info).collect())
}

/// Returns the snapshots of a backup that a restore to `to` needs, with their descriptions, beginning with a full one.
pub(crate) fn plan(parts: &[Part], to: RestoreTo) -> Result<Vec<(&Part, SnapshotInfo)>, RestoreError> {
    let mut all = Vec::with_capacity(parts.len());
    for part in parts {
        all.push((part, part.info().map_err(|error| part.fault(error))?));
    }
    choose(&all, to)
}

fn choose<'a>(all: &[(&'a Part, SnapshotInfo)], to: RestoreTo) -> Result<Vec<(&'a Part, SnapshotInfo)>, RestoreError> {
    if let Some(((_, first), rest)) = all.split_first()
        && let Some((part, other)) = rest.iter().find(|(_, info)| info.node != first.node)
    {
        let (found, expected) = (other.node.0, first.node.0);
        return Err(RestoreError::OtherNode { part: part.name.clone(), found, expected });
    }
    let fulls = || all.iter().filter(|(_, info)| info.kind == PartKind::Full);
    let newest = fulls().filter(|(_, info)| to.allows(info)).max_by_key(|(_, info)| info.applied.lsn);
    let Some(&full) = newest else {
        return Err(match fulls().min_by_key(|(_, info)| info.applied.lsn) {
            None => RestoreError::NoFull { parts: all.len() },
            Some((_, oldest)) => {
                RestoreError::TooEarly { wanted: to.to_string(), lsn: oldest.applied.lsn, time: oldest.applied.time }
            }
        });
    };
    // Full snapshots past the target show that the node has data up to their positions.
    let later_fulls = |lsn| fulls().map(|(_, info)| info.applied.lsn).filter(move |full| *full > lsn);
    let mut chosen = vec![full];
    let mut covered = full.1;
    while !reached(&covered, to) {
        let increments = || all.iter().filter(|(_, info)| info.kind == PartKind::Increment);
        let ahead = || increments().filter(|(_, info)| info.applied.lsn > covered.applied.lsn);
        let next = ahead().filter(|(_, info)| info.since <= covered.applied.lsn);
        match next.max_by_key(|(_, info)| info.applied.lsn) {
            Some(&next) => {
                chosen.push(next);
                covered = next.1;
            }
            None => match (ahead().map(|(_, info)| info.since).chain(later_fulls(covered.applied.lsn)).min(), to) {
                (Some(next), _) => return Err(RestoreError::Missing { from: covered.applied.lsn, to: next }),
                (None, RestoreTo::Lsn(wanted)) => {
                    return Err(RestoreError::TooLate { wanted, end: covered.applied.lsn });
                }
                (None, RestoreTo::End | RestoreTo::Time(_)) => break,
            },
        }
    }
    Ok(chosen)
}

fn reached(covered: &SnapshotInfo, to: RestoreTo) -> bool {
    match to {
        RestoreTo::End => false,
        RestoreTo::Lsn(lsn) => covered.applied.lsn >= lsn,
        RestoreTo::Time(time) => covered.applied.time > time,
    }
}

#[cfg(test)]
mod tests {
    use thalweg_snapshot::EntryId;
    use thalweg_store::Applied;
    use thalweg_types::NodeId;

    use super::*;

    fn info(kind: PartKind, since: u64, lsn: u64) -> SnapshotInfo {
        let applied = Applied { lsn: Lsn(lsn), time: SpaceTime(lsn * 10), ..Applied::default() };
        SnapshotInfo { kind, node: NodeId(1), since: Lsn(since), applied, before: EntryId::default() }
    }

    fn chosen(infos: &[SnapshotInfo], to: RestoreTo) -> Result<Vec<(u64, u64)>, RestoreError> {
        let part = Part::bytes("part", Bytes::new());
        let all: Vec<_> = infos.iter().map(|info| (&part, *info)).collect();
        Ok(choose(&all, to)?.iter().map(|(_, info)| (info.since.0, info.applied.lsn.0)).collect())
    }

    #[test]
    fn the_newest_full_one_then_what_reaches_furthest() {
        use PartKind::{Full, Increment};
        let all = [
            info(Increment, 400, 600),
            info(Full, 0, 400),
            info(Increment, 100, 250),
            info(Increment, 250, 420),
            info(Increment, 250, 300),
            info(Full, 0, 100),
        ];
        assert_eq!(chosen(&all, RestoreTo::End).unwrap(), [(0, 400), (400, 600)]);
        assert_eq!(chosen(&all, RestoreTo::Lsn(Lsn(600))).unwrap(), [(0, 400), (400, 600)]);
        assert_eq!(chosen(&all, RestoreTo::Lsn(Lsn(400))).unwrap(), [(0, 400)]);
        assert_eq!(chosen(&all, RestoreTo::Lsn(Lsn(399))).unwrap(), [(0, 100), (100, 250), (250, 420)]);
        assert_eq!(chosen(&all, RestoreTo::Lsn(Lsn(100))).unwrap(), [(0, 100)]);
        assert_eq!(chosen(&all, RestoreTo::Time(SpaceTime(2600))).unwrap(), [(0, 100), (100, 250), (250, 420)]);
        assert_eq!(chosen(&all, RestoreTo::Time(SpaceTime(90_000))).unwrap(), [(0, 400), (400, 600)]);
        assert!(matches!(chosen(&all, RestoreTo::Lsn(Lsn(601))), Err(RestoreError::TooLate { end: Lsn(600), .. })));
        assert!(matches!(chosen(&all, RestoreTo::Lsn(Lsn(99))), Err(RestoreError::TooEarly { lsn: Lsn(100), .. })));
        assert!(matches!(chosen(&all, RestoreTo::Time(SpaceTime(999))), Err(RestoreError::TooEarly { .. })));
    }

    #[test]
    fn what_is_missing_is_named() {
        use PartKind::{Full, Increment};
        let all = [info(Full, 0, 100), info(Increment, 100, 200), info(Increment, 250, 300)];
        let missing = chosen(&all, RestoreTo::End);
        assert!(matches!(missing, Err(RestoreError::Missing { from: Lsn(200), to: Lsn(250) })), "{missing:?}");
        assert!(chosen(&all, RestoreTo::Lsn(Lsn(200))).is_ok(), "the target is covered");
        assert!(matches!(chosen(&all[1..], RestoreTo::End), Err(RestoreError::NoFull { parts: 2 })));
        assert!(matches!(chosen(&[], RestoreTo::End), Err(RestoreError::NoFull { parts: 0 })));
        let gap = [info(Full, 0, 100), info(Increment, 100, 200), info(Full, 0, 300)];
        for to in [RestoreTo::Lsn(Lsn(250)), RestoreTo::Time(SpaceTime(2500))] {
            assert!(matches!(chosen(&gap, to), Err(RestoreError::Missing { from: Lsn(200), to: Lsn(300) })), "{to}");
        }
        let stranger = SnapshotInfo { node: NodeId(2), ..all[1] };
        assert!(matches!(chosen(&[all[0], stranger], RestoreTo::End), Err(RestoreError::OtherNode { .. })));
    }
}
