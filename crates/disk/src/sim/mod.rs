//! A disk in memory that fails as real ones do, from a seed.
//!
//! Owns: what is in the cache, what is on the medium, and everything that can happen in between: power
//! loss with any subset of the unsynced changes, failing calls, a full disk, flipped bits. Does not own
//! time or chance: a seed and the sequence of calls decide everything.
//!
//! What it promises, and no more:
//! * A file's bytes and length survive a power loss once `sync_data` or `sync_all` has succeeded after
//!   them; until then each 512-byte sector holds the synced or any later version, independently
//!   (see [`PowerLoss`]). The media assumption: a sector is written whole or not at all, and rewriting a
//!   sector with the same prefix keeps the prefix.
//! * A name, or its absence, survives once `sync_dir` of its directory has succeeded. Syncing a file does
//!   not sync its name. A rename is atomic. Changes of one name keep their order.
//! * After a failed sync the pages are clean: reads see them, later syncs don't write them, a power loss
//!   (or an eviction, see [`SimDisk::drop_caches`]) brings the old bytes back. Likewise for entries of a
//!   directory whose sync failed.
//!
//! A [`SimDisk`] stands for one run of a machine. [`power_loss`](SimDisk::power_loss) returns what the
//! next run finds and leaves this one as it is, so that many outcomes can be drawn from one crash.
//! To visit every crash point of a workload, cut the power after each number of operations in turn:
//!
//! ```
//! use thalweg_disk::{Disk, SimDisk};
//!
//! fn workload(disk: &SimDisk) -> std::io::Result<()> {
//!     let file = disk.create("greeting")?;
//!     file.write_all_at(b"hello", 0)?;
//!     file.sync_all()?;
//!     disk.sync_dir("")
//! }
//!
//! let rehearsal = SimDisk::new(1);
//! workload(&rehearsal)?;
//! for crash_at in 0..=rehearsal.operations() {
//!     let disk = SimDisk::new(1);
//!     disk.power_off_after(crash_at);
//!     let acknowledged = workload(&disk).is_ok();
//!     for seed in 0..20 {
//!         let found = disk.power_loss(seed).cached_bytes("greeting");
//!         assert!(!acknowledged || found? == b"hello", "crash at {crash_at}, seed {seed}");
//!     }
//! }
//! # Ok::<(), std::io::Error>(())
//! ```

mod content;
mod counts;
mod faults;
mod handles;
mod inode;
mod names;
mod power;
mod rng;
mod state;

use std::{
    fmt, io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

pub use self::{
    counts::{Counts, Event, Operation},
    faults::{Errno, Fault, PowerIsOff},
    power::PowerLoss,
};
use self::{
    handles::{SimFile, SimLock},
    rng::Rng,
    state::State,
};
use crate::{Disk, File, LockGuard, path};

/// A simulated disk; see the [module](self). Clones share it.
#[derive(Clone)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

/// A bit that was flipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    /// The file.
    pub path: String,
    /// The byte.
    pub offset: u64,
    /// The bit in it, 0 to 7.
    pub bit: u8,
}

impl SimDisk {
    /// An empty disk. The seed decides what faults that leave a part behind leave.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::from_state(State::new(seed))
    }

    fn from_state(state: State) -> Self {
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// A panic in one test thread (a write past a mapping) leaves the state whole: go on with it.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // Crashes.

    /// What the next run of the machine finds if the power fails now, in a way drawn from the seed
    /// ([`PowerLoss::drawn`]). The new disk has no open handles, locks or planned faults, and counts from
    /// zero; this one stays as it is.
    #[must_use]
    pub fn power_loss(&self, seed: u64) -> Self {
        self.power_loss_as(PowerLoss::drawn(seed, self.unsynced_changes()))
    }

    /// As [`power_loss`](Self::power_loss), in the given way.
    #[must_use]
    pub fn power_loss_as(&self, loss: PowerLoss) -> Self {
        Self::from_state(self.state().after_power_loss(loss))
    }

    /// What another process finds if this one is killed now: the cache with all that was written, and no
    /// handles or locks. Nothing more has become durable.
    #[must_use]
    pub fn kill_process(&self) -> Self {
        Self::from_state(self.state().after_kill())
    }

    /// Evicts every clean page: what a failed sync left unwritten reads as the old bytes from now on.
    pub fn drop_caches(&self) {
        self.state().drop_clean();
    }

    /// Lets that many more operations happen ([`Counts::operations`]: everything but reads); then every
    /// call fails with [`PowerIsOff`], and writes through mappings do nothing.
    pub fn power_off_after(&self, operations: u64) {
        self.state().power_off_after(operations);
    }

    /// Number of operations whose changes a power loss could take.
    #[must_use]
    pub fn unsynced_changes(&self) -> usize {
        self.state().unsynced().len()
    }

    // Faults.

    /// Plans a fault, besides those planned before.
    pub fn fail(&self, fault: Fault) {
        self.state().faults.add(fault);
    }

    /// Forgets all planned faults.
    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// Sets how many bytes can be allocated, in blocks of 4096. Less than is in use: nothing more can.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity_bytes = bytes;
    }

    /// Flips a bit on the medium, and in the cache, whether or not the byte is synced. `InvalidInput`
    /// if the file has no such byte or the byte no such bit.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u8) -> io::Result<()> {
        let mut state = self.state();
        let id = state.names.file(path)?;
        let inode = state.inode_mut(id)?;
        if offset >= inode.cached.len() || bit > 7 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such bit in the file"));
        }
        inode.flip(offset, bit);
        Ok(())
    }

    /// Flips a bit drawn from the seed, anywhere in the files' durable bytes; `None` if there are none.
    pub fn flip_random_bit(&self, seed: u64) -> Option<Flip> {
        let (mut rng, mut state) = (Rng::new(seed), self.state());
        let mut files = Vec::new();
        for (path, id) in state.names.files() {
            let inode = state.inode(id).ok()?;
            files.push((path.to_owned(), id, inode.durable.len().min(inode.cached.len())));
        }
        let mut place = rng.below(files.iter().map(|(_, _, len)| len).sum());
        let bit = rng.below(8) as u8;
        for (path, id, len) in files {
            if place < len {
                state.inode_mut(id).ok()?.flip(place, bit);
                return Some(Flip { path, offset: place, bit });
            }
            place -= len;
        }
        None
    }

    // What was done.

    /// Number of operations so far: writes, syncs, and changes of lengths and directories.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.counts().operations()
    }

    /// What was done so far, by kind.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state().counts
    }

    /// Keeps the last operations for [`events`](Self::events), up to that many; 0 (the default) keeps none.
    pub fn keep_events(&self, capacity: usize) {
        self.state().op_log.keep_last(capacity);
    }

    /// The last operations, oldest first.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.state().op_log.to_vec()
    }

    // Looking in from outside: works with the power off, and is not counted.

    /// A whole file as a reader would see it now.
    pub fn cached_bytes(&self, path: &str) -> io::Result<Vec<u8>> {
        let state = self.state();
        Ok(state.inode(state.names.file(path)?)?.cached.to_vec())
    }

    /// A whole file as it would be found if the power failed and nothing unsynced had been kept.
    #[must_use]
    pub fn durable_bytes(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.state();
        let inode = state.inode(state.names.durable_file(path)?).ok()?;
        Some(inode.durable.to_vec())
    }

    /// Paths of all files, in order.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        self.state().names.files().map(|(path, _)| path.to_owned()).collect()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimDisk").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        path::check_file(path)?;
        let inode = self.state().open(path)?;
        Ok(Arc::new(SimFile::new(self, inode)))
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        path::check_file(path)?;
        let inode = self.state().create(path)?;
        Ok(Arc::new(SimFile::new(self, inode)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        path::check_file(from)?;
        path::check_file(to)?;
        self.state().rename(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        path::check_file(path)?;
        self.state().remove(path)
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        path::check_dir(path)?;
        self.state().create_dir(path)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        path::check_dir(dir)?;
        let state = self.state();
        state.check_power()?;
        state.names.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        path::check_dir(dir)?;
        self.state().sync_dir(dir)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.state();
        state.check_power()?;
        Ok(state.free_bytes())
    }

    fn lock(&self, path: &str) -> io::Result<Box<dyn LockGuard>> {
        path::check_file(path)?;
        let inode = self.state().lock(path)?;
        Ok(Box::new(SimLock::new(self, inode)))
    }

    fn os_path(&self) -> Option<&Path> {
        None
    }
}
