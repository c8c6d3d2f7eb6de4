//! Moving a directory's state from one backend to another.
//!
//! Owns: [`migrate`]: copy, compare, switch, clean up. Does not own: the log, which is unchanged. The persisted state
//! of the old backend is copied together with its applied position. The next open replays the log entries after this
//! position, as after a crash.
//!
//! ```text
//! IDENTITY: old   copy into state/default/NEW -> flush -> open again, compare with the old
//! IDENTITY: new   remove state/default/OLD
//! ```
//! Invariant: the identity always names a backend whose state is complete. The identity is replaced in one rename,
//! after the new state is on disk and compared. A migration that ends before the rename leaves the old state unchanged,
//! and the next open or migration removes its remains.

use std::{
    ops::{Bound, ControlFlow},
    path::Path,
    sync::Arc,
};

use thalweg_disk::{Disk, RealDisk};
use thalweg_store::{Applied, Backend, BackendError, BarrierFailed, Direction, LogBarrier, View, WriteBatch};
use thalweg_types::{Action, Classified, Index, Lsn};

use crate::{
    backends::{self, BackendLocation},
    error::OpenError,
    identity::Identity,
    open::{lock, read_identity, read_state_dir},
    open_parts::{Mode, io_error},
    options::{BackendKind, Options},
};

/// Maximum number of bytes of keys and values that a migration copies or compares at a time.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum number of key-value pairs that a migration copies or compares at a time.
const BATCH_PAIRS: usize = 10_000;

/// Source and destination of a migration of the state to another backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// Backend that is expected to keep the state now; `None` accepts any.
    pub from: Option<BackendKind>,
    /// Backend that keeps the state after the migration.
    pub to: BackendKind,
}

/// Phase of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationPhase {
    /// The migration copies pairs of keys and values to the new backend.
    Copying,
    /// The migration reads and compares both states.
    Comparing,
    /// The new state is in use, and the migration removes the old one.
    CleaningUp,
}

/// Progress of a migration of the state to another backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationProgress {
    /// Phase that the migration is in.
    pub phase: MigrationPhase,
    /// Number of key-value pairs that the present phase has processed.
    pub pairs: u64,
    /// Approximate number of key-value pairs in the state; 0 if the old backend has no estimate.
    pub estimated_pairs: u64,
}

/// Result of a finished migration of the state to another backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// Backend that kept the state before.
    pub from: BackendKind,
    /// Backend that keeps the state now.
    pub to: BackendKind,
    /// Number of key-value pairs copied and compared, including the state machine's own rows.
    pub pairs: u64,
    /// Bytes of the keys and values of all migrated pairs.
    pub bytes: u64,
}

/// Error returned when the state cannot be migrated to another backend. The old state is unchanged.
#[derive(Clone, Debug, thiserror::Error)]
pub enum MigrateError {
    /// The directory or one of the states could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The requested backend already keeps the state.
    #[error("the {backend} backend already stores the state")]
    Already {
        /// Name of the requested backend.
        backend: &'static str,
    },
    /// The old or the new state could not be read or written.
    #[error("{0}; the old state is unchanged")]
    Backend(#[from] BackendError),
    /// The copied state differs from the original.
    #[error("the copy differs from the state {what}: the old state is unchanged; report this")]
    Differs {
        /// Position of the first difference, for messages.
        what: String,
    },
}

impl Classified for MigrateError {
    fn code(&self) -> &'static str {
        match self {
            Self::Open(error) => error.code(),
            Self::Already { .. } => "same_backend",
            Self::Backend(error) => error.code(),
            Self::Differs { .. } => "copy_differs",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Open(error) => error.action(),
            Self::Already { .. } => Action::Fix,
            Self::Backend(error) => error.action(),
            Self::Differs { .. } => Action::Stop,
        }
    }
}

/// Log barrier of the copied state, which the backend calls before it persists data. It has nothing to sync: the log
/// was synced before the old state was persisted, and the copy contains no later entries.
struct PersistedBefore;

impl LogBarrier for PersistedBefore {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

/// Migrates the state of the data directory at `path` to another backend. The directory must not be open.
pub fn migrate(
    path: impl AsRef<Path>,
    migration: Migration,
    options: &Options,
    progress: &mut dyn FnMut(MigrationProgress),
) -> Result<Migrated, MigrateError> {
    let path = path.as_ref();
    if !path.join("IDENTITY").exists() {
        return Err(OpenError::Missing { path: path.to_owned() }.into());
    }
    let disk = RealDisk::open(path).map_err(|error| io_error(path, "opening the directory", &error))?;
    migrate_on(&(Arc::new(disk) as _), migration, options, progress)
}

/// Migrates the state like [`migrate`], but of a data directory on any disk.
pub fn migrate_on(
    disk: &Arc<dyn Disk>,
    migration: Migration,
    options: &Options,
    progress: &mut dyn FnMut(MigrationProgress),
) -> Result<Migrated, MigrateError> {
    let path = backends::shown_path(disk);
    let _lock = lock(disk, &path, Mode::Threaded)?;
    let identity = read_identity(disk, &path)?.ok_or_else(|| OpenError::Missing { path: path.clone() })?;
    let (from, to) = (identity.backend, migration.to);
    if let Some(wanted) = migration.from.filter(|wanted| *wanted != from) {
        return Err(OpenError::OtherBackend { path: path.clone(), found: from.name(), wanted: wanted.name() }.into());
    }
    if from == to {
        return Err(MigrateError::Already { backend: to.name() });
    }
    let io = |doing| {
        let path = path.clone();
        move |error: std::io::Error| io_error(&path, doing, &error)
    };
    let place = BackendLocation::on(disk);
    let dir = read_state_dir(place, from, &path)?;
    backends::remove_all_but(place, &identity, dir).map_err(io("removing an unfinished migration"))?;
    let old = backends::open(disk, from, dir, Arc::new(PersistedBefore), options)?;
    let estimated_pairs = old.stats().estimated_keys;
    let mut tell = |phase, pairs| progress(MigrationProgress { phase, pairs, estimated_pairs });
    let view = old.view();
    let applied = old.applied();
    tell(MigrationPhase::Copying, 0);
    {
        let new = backends::open(disk, to, dir, Arc::new(PersistedBefore), options)?;
        copy(&*view, &*new, applied, &mut |pairs| tell(MigrationPhase::Copying, pairs))?;
    }
    tell(MigrationPhase::Comparing, 0);
    let new = backends::open(disk, to, dir, Arc::new(PersistedBefore), options)?;
    if new.persisted() != applied {
        return Err(MigrateError::Differs { what: "in its applied position".to_owned() });
    }
    let (pairs, bytes) = compare(&*view, &*new.view(), &mut |pairs| tell(MigrationPhase::Comparing, pairs))?;
    drop((view, old, new));
    let switched = Identity { backend: to, ..identity };
    switched.write(disk).map_err(io("writing the identity"))?;
    tell(MigrationPhase::CleaningUp, pairs);
    backends::remove_all_but(place, &switched, dir).map_err(io("removing the old state"))?;
    Ok(Migrated { from, to, pairs, bytes })
}

/// Copies all pairs of the old state to the new backend, and persists them together with the position `applied`.
fn copy(
    view: &dyn View,
    new: &dyn Backend,
    applied: Option<Applied>,
    tell: &mut dyn FnMut(u64),
) -> Result<(), MigrateError> {
    // A state without a persisted position is empty, so nothing is copied.
    let Some(applied) = applied else { return Ok(()) };
    let mut batch = WriteBatch::new();
    let (mut pairs, mut batches) = (0, 0);
    let mut after: Option<Vec<u8>> = None;
    loop {
        batch.clear();
        let last = page(view, after.as_deref(), &mut |key, value| batch.put(&[key], &[value]))?;
        let Some(last) = last else { break };
        batches += 1;
        pairs += batch.len() as u64;
        // Backends tell states apart by this position. Until all pairs are copied, it claims no position of the log.
        let unfinished = Applied { index: Index(batches), ..Applied::default() };
        new.apply(&batch, unfinished)?;
        tell(pairs);
        after = Some(last);
    }
    new.apply(&WriteBatch::new(), applied)?;
    new.flush()?;
    Ok(())
}

/// Compares all pairs of the old and the new state. Returns the number of pairs and their bytes.
fn compare(old: &dyn View, new: &dyn View, tell: &mut dyn FnMut(u64)) -> Result<(u64, u64), MigrateError> {
    let (mut pairs, mut bytes) = (0, 0);
    let mut after: Option<Vec<u8>> = None;
    loop {
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        let last = page(old, after.as_deref(), &mut |key, value| expected.push((key.to_vec(), value.to_vec())))?;
        let same = page(new, after.as_deref(), &mut |key, value| found.push((key.to_vec(), value.to_vec())))?;
        if expected != found || last != same {
            let differing = expected.iter().zip(&found).find(|(expected, found)| expected != found);
            let key = differing.map(|((key, _), _)| key).or(after.as_ref()).cloned().unwrap_or_default();
            return Err(MigrateError::Differs {
                what: format!("at or after the key {:02x?}", &key[..key.len().min(32)]),
            });
        }
        let Some(last) = last else { return Ok((pairs, bytes)) };
        pairs += expected.len() as u64;
        bytes += expected.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>();
        tell(pairs);
        after = Some(last);
    }
}

/// Visits a batch of key-value pairs after the key `after`. Returns the last key visited; `None` if no pairs follow.
fn page(
    view: &dyn View,
    after: Option<&[u8]>,
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<Option<Vec<u8>>, BackendError> {
    let lower = after.map_or(Bound::Unbounded, Bound::Excluded);
    let (mut last, mut pairs, mut bytes) = (Vec::new(), 0, 0);
    view.scan(lower, Bound::Unbounded, Direction::Forward, &mut |key, value| {
        visit(key, value);
        pairs += 1;
        bytes += key.len() + value.len();
        last.clear();
        last.extend_from_slice(key);
        if pairs == BATCH_PAIRS || bytes >= BATCH_BYTES { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok((pairs > 0).then_some(last))
}
