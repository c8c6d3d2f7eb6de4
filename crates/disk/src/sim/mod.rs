//! A simulated disk in memory that fails like real disks, driven by a seed.
//!
//! Owns: the cached state, the durable state, and all events between them: power loss with any subset of the unsynced
//! changes, failing calls, a full disk, flipped bits. Does not own: time or chance. The seed and the sequence of calls
//! determine everything.
//!
//! Guarantees, and nothing beyond them:
//! * A file's bytes and length survive a power loss if `sync_data` or `sync_all` has succeeded after they were written.
//!   Until then each 512-byte sector holds the synced or any later version, independently of other sectors (see
//!   [`PowerLoss`]). The assumption about the medium: a sector is written completely or not at all. So rewriting a
//!   sector with the same prefix keeps the prefix.
//! * A name, or its absence, survives if `sync_dir` of its directory has succeeded. Syncing a file does not
//!   sync its name. A rename is atomic. Changes of one name keep their order.
//! * After a failed sync the pages are clean: reads see them, later syncs don't write them, and a power loss
//!   (or an eviction, see [`SimDisk::drop_caches`]) restores the old bytes. The same applies to entries of a
//!   directory whose sync failed.
//!
//! A [`SimDisk`] represents one run of a machine. [`power_loss`](SimDisk::power_loss) returns the disk of the
//! next run and leaves this one unchanged, so a test can draw many outcomes from one crash. To visit every
//! crash point of a workload, cut the power after each number of operations in turn:
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
mod shared;
mod state;

use std::{fmt, io, path::Path, sync::Arc, time::Duration};

pub use self::{
    counts::{Counts, Event, Operation},
    faults::{Errno, Fault, PowerIsOff},
    power::PowerLoss,
    state::FlippedFile,
};
use self::{
    handles::{SimFile, SimLock},
    rng::Rng,
    shared::SharedState,
    state::State,
};
use crate::{Disk, File, LockGuard, path};

/// A simulated disk; see the [module](self). Clones share it.
#[derive(Clone)]
pub struct SimDisk {
    state: SharedState,
}

/// Position of a bit that was flipped to simulate damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flip {
    /// Path of the file with the flipped bit.
    pub path: String,
    /// Offset in the file of the byte with the flipped bit.
    pub offset: u64,
    /// Number of the flipped bit in its byte, 0 to 7.
    pub bit: u8,
}

impl SimDisk {
    /// Creates an empty simulated disk. The seed determines the partial effects of faults.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::from_state(State::new(seed))
    }

    fn from_state(state: State) -> Self {
        Self { state: SharedState::new(state) }
    }

    // Crashes.

    /// Returns the disk of the machine's next run if the power fails now. The seed selects the outcome
    /// ([`PowerLoss::random`]). The new disk has no open handles, locks or planned faults, and its counters begin at
    /// zero. This disk stays unchanged.
    #[must_use]
    pub fn power_loss(&self, seed: u64) -> Self {
        self.after_power_loss_with(PowerLoss::random(seed, self.unsynced_changes()))
    }

    /// Returns the disk after a power loss with the given outcome; see [`power_loss`](Self::power_loss).
    #[must_use]
    pub fn after_power_loss_with(&self, loss: PowerLoss) -> Self {
        Self::from_state(self.state.lock().after_power_loss(loss))
    }

    /// Returns the disk that another process sees if this process is killed now: the cache with all written data,
    /// without handles or locks. Unsynced data stays unsynced.
    #[must_use]
    pub fn kill_process(&self) -> Self {
        Self::from_state(self.state.lock().after_kill())
    }

    /// Evicts every clean page. Pages that a failed sync has lost then read as the bytes that the last successful sync
    /// wrote.
    pub fn drop_caches(&self) {
        self.state.lock().drop_clean();
    }

    /// Permits `operations` further operations (as counted by [`Counts::operations`], so all calls except reads).
    /// Afterwards every call fails with [`PowerIsOff`], and writes through mappings have no effect.
    pub fn power_off_after(&self, operations: u64) {
        self.state.lock().power_off_after(operations);
    }

    /// Number of operations whose changes a power loss could discard.
    #[must_use]
    pub fn unsynced_changes(&self) -> usize {
        self.state.lock().unsynced().len()
    }

    // Faults.

    /// Plans a fault. Faults that were planned before stay.
    pub fn fail(&self, fault: Fault) {
        self.state.lock().faults.add(fault);
    }

    /// Removes all faults that were planned for this disk.
    pub fn clear_faults(&self) {
        self.state.lock().faults.clear();
    }

    /// Removes the planned faults of one kind of operation.
    pub fn clear_faults_of(&self, operation: Operation) {
        self.state.lock().faults.clear_of(operation);
    }

    /// Number of calls of each kind that planned faults have made fail so far.
    #[must_use]
    pub fn failed_calls(&self) -> Counts {
        self.state.lock().faults.failed()
    }

    /// Sets the capacity of the simulated disk in bytes, rounded down to blocks of 4096 bytes. If more is in use
    /// already, every allocation fails.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity_bytes = bytes;
    }

    /// Flips a bit on the medium and in the cache, even if the byte is not synced. Returns `InvalidInput` if the file
    /// has no such byte, or if `bit` is above 7.
    pub fn flip_bit(&self, path: &str, offset: u64, bit: u8) -> io::Result<()> {
        let mut state = self.state.lock();
        let id = state.names.file(path)?;
        let inode = state.inode_mut(id)?;
        if offset >= inode.cached.len() || bit > 7 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file has no such bit"));
        }
        inode.flip(offset, bit);
        Ok(())
    }

    /// Flips a random bit, chosen by the seed, in the files' durable bytes. Returns `None` if there are no
    /// durable bytes.
    pub fn flip_random_bit(&self, seed: u64) -> Option<Flip> {
        let (mut rng, mut state) = (Rng::new(seed), self.state.lock());
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

    /// Existing files in which a bit was flipped.
    #[must_use]
    pub fn flipped_files(&self) -> Vec<FlippedFile> {
        self.state.lock().flipped_files()
    }

    // Observed operations.

    /// Number of operations so far: writes, syncs, and changes of lengths and directories.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.counts().operations()
    }

    /// Number of calls to this disk so far, by kind.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state.lock().counts
    }

    /// Keeps the last `capacity` operations for [`events`](Self::events); 0 (the default) keeps none.
    pub fn keep_events(&self, capacity: usize) {
        self.state.lock().op_log.keep_last(capacity);
    }

    /// Last operations of this disk, oldest first; [`keep_events`](Self::keep_events) sets their number.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.state.lock().op_log.to_vec()
    }

    // Inspection by tests: works with the power off, and is not counted.

    /// Complete content of a file as a reader sees it now.
    pub fn cached_bytes(&self, path: &str) -> io::Result<Vec<u8>> {
        let state = self.state.lock();
        Ok(state.inode(state.names.file(path)?)?.cached.to_vec())
    }

    /// Complete content of a file after a power loss that discards all unsynced changes; `None` if the file would be
    /// missing.
    #[must_use]
    pub fn durable_bytes(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let inode = state.inode(state.names.durable_file(path)?).ok()?;
        Some(inode.durable.to_vec())
    }

    /// Paths of all files of this disk, in alphabetical order.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        self.state.lock().names.files().map(|(path, _)| path.to_owned()).collect()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        path::check_file(path)?;
        let inode = self.state.lock().open(path)?;
        Ok(Arc::new(SimFile::new(&self.state, inode)))
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        path::check_file(path)?;
        let inode = self.state.lock().create(path)?;
        Ok(Arc::new(SimFile::new(&self.state, inode)))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        path::check_file(from)?;
        path::check_file(to)?;
        self.state.lock().rename(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        path::check_file(path)?;
        self.state.lock().remove(path)
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        path::check_dir(path)?;
        self.state.lock().create_dir(path)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        path::check_dir(dir)?;
        let state = self.state.lock();
        state.check_power()?;
        state.names.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        path::check_dir(dir)?;
        self.state.lock().sync_dir(dir)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let state = self.state.lock();
        state.check_power()?;
        Ok(state.free_bytes())
    }

    fn lock(&self, path: &str) -> io::Result<Box<dyn LockGuard>> {
        self.lock_within(path, Duration::ZERO)
    }

    fn lock_within(&self, path: &str, patience: Duration) -> io::Result<Box<dyn LockGuard>> {
        path::check_file(path)?;
        let inode = self.state.lock_when_released(path, patience).lock(path)?;
        Ok(Box::new(SimLock::new(&self.state, inode)))
    }

    fn os_path(&self) -> Option<&Path> {
        None
    }
}
