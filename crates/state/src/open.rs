//! Opening a machine over the rows of a backend, which loads the tables that the machine keeps in memory.

use std::sync::{
    Arc, Mutex, RwLock,
    atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering},
};

use thalweg_store::Backend;

use crate::{
    blobs::NoBlobs,
    clears::table::ClearTable,
    error::MachineError,
    expiry::{reads::count_leases, time_of_reads::TimeOfReads},
    groups::table::GroupTable,
    history,
    keys::META,
    keyspaces::{
        self,
        catalog::{KeyspaceTable, Meta},
    },
    machine::{
        applier::Applier,
        state_machine::{Machine, MachineOptions, Published},
        upgrade::{self, KNOWN_VERSION},
        verdicts,
    },
    redis,
    segments::{inline_floor::InlineFloor, liveness::LivenessTable},
    streams::heads::StreamTable,
    sync::read,
};

impl Machine {
    /// Opens a machine, and loads the catalog, the stream heads and the segments' liveness. The memory for these
    /// tables is bounded by the limits on keyspaces and streams and by the number of segments; it does not grow with
    /// their content.
    pub fn open(backend: Arc<dyn Backend>, options: MachineOptions) -> Result<Self, MachineError> {
        Self::open_with_version(backend, options, KNOWN_VERSION)
    }

    /// Opens a machine that acts like a binary which supports versions of the state machine up to `known`. For tests
    /// with nodes of different versions.
    #[doc(hidden)]
    pub fn open_with_version(
        backend: Arc<dyn Backend>,
        options: MachineOptions,
        known: u16,
    ) -> Result<Self, MachineError> {
        let view = backend.view();
        let stored = Meta::load(&*view)?;
        let meta = stored.unwrap_or_default();
        let applied = backend.applied().unwrap_or_default();
        upgrade::check_state(meta.version, known, applied.index)?;
        let streams = StreamTable::load(&*view, &meta)?;
        let clears = Arc::new(ClearTable::load(&*view)?);
        let counts = keyspaces::counts::load(&*view)?;
        let groups = GroupTable::load(&*view)?;
        let published = Published {
            keyspaces: RwLock::new(KeyspaceTable::load(&*view, &meta)?),
            liveness: RwLock::new(LivenessTable::load(&*view)?),
            applied: RwLock::new(applied),
            visible: AtomicU64::new(applied.lsn.0),
            judged: AtomicU64::new(applied.index.0),
            streams: RwLock::new(streams),
            has_clears: AtomicBool::new(!clears.is_empty()),
            clears: RwLock::new(clears.clone()),
            counts: RwLock::new(counts.clone()),
            has_trash: AtomicBool::new(redis::parts::has_trash(&*view)?),
            has_histories: AtomicBool::default(),
            version: AtomicU16::default(),
            leases: AtomicUsize::new(count_leases(&*view)?),
        };
        if stored.is_none() && (backend.applied().is_some() || read(&published.streams).len() > 0) {
            return Err(MachineError::corrupt("meta row", &META, "missing"));
        }
        let (stream_count, keyspaces) = (read(&published.streams).counted(), read(&published.keyspaces));
        let lease_count = published.leases.load(Ordering::Relaxed);
        let mut applier = Applier::new(stored, applied, stream_count, &keyspaces, lease_count);
        drop(keyspaces);
        (applier.clears, applier.counts) = (clears, counts);
        applier.history_floor = verdicts::load_floor(&*view)?;
        applier.histories = history::keep_versions::load(&*view)?;
        published.has_histories.store(!applier.histories.is_empty(), Ordering::Relaxed);
        applier.inline_floor = InlineFloor::load(&*view, options.inline_value_bytes, stored.is_none())?;
        let inline_floor = applier.inline_floor.bytes();
        let machine = Self {
            backend,
            blobs: Arc::new(NoBlobs),
            options,
            applier: Mutex::new(applier),
            published,
            time_of_reads: TimeOfReads::load(&*view)?,
            forgotten: Mutex::default(),
            has_forgotten: AtomicBool::new(false),
            groups: Mutex::new(groups),
            groups_woken: AtomicBool::new(false),
            settlement_waiters: AtomicUsize::new(0),
            growth: Arc::default(),
            known_version: known,
            inline_floor,
            digest_view: Mutex::default(),
            replacements: AtomicU64::new(0),
            file_reads: AtomicU64::new(0),
        };
        machine.show_version(meta.version);
        machine.find_trimmed_groups()?;
        Ok(machine)
    }
}
