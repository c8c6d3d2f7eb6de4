//! State of a simulated disk: the directory tree, the files, and the planned faults.
//!
//! Owns: the disk's operations and their numbers, the power, the capacity, and the files with their handles and locks.
//! Does not own: the lock (`shared`), the tree (`names`), the content of a file (`inode`), the outcome of a fault
//! (`faults`), or the decision which changes survive a power loss (`power`).
//!
//! Invariants: `operations <= power_off_at`. Writes never make the blocks of files in use exceed `capacity`; a file is
//! in use if it is open or linked in the cached tree.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use super::{
    content::BLOCK_BYTES,
    counts::{Counts, Event, OpLog, Operation},
    faults::{Faults, PartialEffect, PowerIsOff},
    inode::Inode,
    names::{InodeId, Names, Node},
    power::{PowerLoss, Survival},
    rng::Rng,
};

/// A file with a bit that was flipped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlippedFile {
    /// Path of the file in which a bit was flipped.
    pub path: String,
    /// True if all flipped bytes have since been overwritten or cut off, on the medium too.
    pub is_overwritten: bool,
}

/// Default capacity in bytes, more than any test writes.
const DEFAULT_CAPACITY_BYTES: u64 = 1 << 40;

#[derive(Debug)]
pub(super) struct State {
    pub(super) names: Names,
    inodes: BTreeMap<InodeId, Inode>,
    next_inode: InodeId,
    locks: BTreeSet<InodeId>,
    pub(super) faults: Faults,
    pub(super) counts: Counts,
    pub(super) op_log: OpLog,
    pub(super) capacity_bytes: u64,
    /// Number of operations after which the simulated power goes off.
    power_off_at: u64,
    /// Number of operations that killed processes did earlier in this run of the machine; `counts` does not include
    /// them.
    operations_before: u64,
    rng: Rng,
}

impl State {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            names: Names::default(),
            inodes: BTreeMap::new(),
            next_inode: 1,
            locks: BTreeSet::new(),
            faults: Faults::default(),
            counts: Counts::default(),
            op_log: OpLog::default(),
            capacity_bytes: DEFAULT_CAPACITY_BYTES,
            power_off_at: u64::MAX,
            operations_before: 0,
            rng: Rng::new(seed),
        }
    }

    // Power.

    pub(super) fn power_off_after(&mut self, operations: u64) {
        self.power_off_at = self.counts.operations().saturating_add(operations);
    }

    pub(super) fn check_power(&self) -> io::Result<()> {
        if self.counts.operations() < self.power_off_at { Ok(()) } else { Err(PowerIsOff.into()) }
    }

    /// Begins an operation: counts it, logs it, and returns its number. Returns an error if a planned fault makes it
    /// fail, or if the power is off.
    fn begin(&mut self, operation: Operation, path: &str, range: Option<(u64, u64)>) -> io::Result<u64> {
        let number = self.count(operation, path, range)?;
        match self.faults.fault_for_call(operation, path) {
            Some((errno, _)) => Err(errno.into()),
            None => Ok(number),
        }
    }

    fn count(&mut self, operation: Operation, path: &str, range: Option<(u64, u64)>) -> io::Result<u64> {
        self.check_power()?;
        *self.counts.of(operation) += 1;
        let number = self.counts.operations();
        self.op_log.record(|| Event { number, operation, path: path.to_owned(), range });
        Ok(self.operations_before + number)
    }

    /// Returns the state of the machine's next run if the power fails now.
    pub(super) fn after_power_loss(&self, loss: PowerLoss) -> Self {
        let mut survival = Survival::new(loss, &self.unsynced());
        let names = self.names.survivors(&mut survival);
        let mut inodes = BTreeMap::new();
        for (path, id) in names.files() {
            if let Some(inode) = self.inodes.get(&id) {
                inodes.entry(id).or_insert_with(|| inode.restored(path, &mut survival));
            }
        }
        Self { inodes, ..self.restarted(names) }
    }

    /// Returns the state of the disk as another process sees it after this process is killed now. The cache survives.
    pub(super) fn after_kill(&self) -> Self {
        let mut next = self.restarted(self.names.clone());
        next.operations_before = self.operations_before + self.counts.operations();
        next.inodes.clone_from(&self.inodes);
        for inode in next.inodes.values_mut() {
            inode.handles = 0;
        }
        for id in self.inodes.keys() {
            next.release(*id);
        }
        next
    }

    /// Returns a copy of the state with the directory tree `names`. The copy has no handles, locks or faults, and all
    /// its counts are zero.
    fn restarted(&self, names: Names) -> Self {
        Self {
            names,
            next_inode: self.next_inode,
            capacity_bytes: self.capacity_bytes,
            rng: self.rng.clone(),
            ..Self::new(0)
        }
    }

    /// Numbers of the operations with unsynced changes, in ascending order.
    pub(super) fn unsynced(&self) -> Vec<u64> {
        let inodes = self.inodes.values().flat_map(Inode::pending_operations);
        let operations: BTreeSet<u64> = inodes.chain(self.names.pending_operations()).collect();
        operations.into_iter().collect()
    }

    pub(super) fn drop_clean(&mut self) {
        self.inodes.values_mut().for_each(Inode::drop_clean);
    }

    // The tree.

    /// Creates a file and opens it.
    pub(super) fn create(&mut self, path: &str) -> io::Result<InodeId> {
        self.check_power()?;
        self.names.check_vacant(path)?;
        let number = self.begin(Operation::Create, path, None)?;
        let id = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(id, Inode::new(path));
        self.names.insert(number, path, Node::File(id));
        self.acquire_handle(id)?;
        Ok(id)
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.check_power()?;
        let id = self.names.file(from)?;
        let replaced = self.names.check_target(to)?;
        let number = self.begin(Operation::Rename, from, None)?;
        self.names.rename(number, from, to, id);
        if let Some(inode) = self.inodes.get_mut(&id) {
            to.clone_into(&mut inode.name);
        }
        if let Some(replaced) = replaced {
            self.relink(replaced);
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &str) -> io::Result<()> {
        self.check_power()?;
        let id = self.names.file(path)?;
        let number = self.begin(Operation::Remove, path, None)?;
        self.names.remove(number, path);
        self.relink(id);
        Ok(())
    }

    pub(super) fn create_dir(&mut self, path: &str) -> io::Result<()> {
        self.check_power()?;
        for dir in self.names.missing_dirs(path)? {
            let number = self.begin(Operation::CreateDir, &dir, None)?;
            self.names.insert(number, &dir, Node::Dir);
        }
        Ok(())
    }

    pub(super) fn sync_dir(&mut self, dir: &str) -> io::Result<()> {
        self.check_power()?;
        self.names.check_dir(dir)?;
        let result = match self.begin(Operation::SyncDir, dir, None) {
            Ok(_) => {
                self.names.sync_dir(dir);
                Ok(())
            }
            Err(error) if PowerIsOff::is_cause_of(&error) => return Err(error),
            Err(error) => {
                self.names.fail_sync_dir(dir);
                Err(error)
            }
        };
        let known: Vec<InodeId> = self.inodes.keys().copied().collect();
        known.into_iter().for_each(|id| self.release(id));
        result
    }

    /// Updates a file's field `linked` (true while the file has a name) after one of its names was removed.
    fn relink(&mut self, id: InodeId) {
        let linked = self.names.files().any(|(_, named)| named == id);
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.linked = linked;
        }
        self.release(id);
    }

    /// Removes a file from memory if no handle and no name refers to it, and no power loss can restore a name.
    fn release(&mut self, id: InodeId) {
        let in_use = self.inodes.get(&id).is_some_and(|inode| inode.linked || inode.handles > 0);
        if !in_use && !self.names.may_be_restored(id) {
            self.inodes.remove(&id);
        }
    }

    // Handles and locks.

    /// Opens a file. The caller must release the handle.
    pub(super) fn open(&mut self, path: &str) -> io::Result<InodeId> {
        self.check_power()?;
        let id = self.names.file(path)?;
        self.acquire_handle(id)?;
        Ok(id)
    }

    pub(super) fn acquire_handle(&mut self, id: InodeId) -> io::Result<()> {
        self.inode_mut(id)?.handles += 1;
        Ok(())
    }

    pub(super) fn release_handle(&mut self, id: InodeId) {
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.handles -= 1;
        }
        self.release(id);
    }

    /// Opens a file, creating it if missing, and locks it.
    pub(super) fn lock(&mut self, path: &str) -> io::Result<InodeId> {
        let id = match self.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(path)?,
            other => other?,
        };
        if self.locks.insert(id) {
            return Ok(id);
        }
        self.release_handle(id);
        Err(io::ErrorKind::WouldBlock.into())
    }

    pub(super) fn is_locked(&self, path: &str) -> bool {
        self.names.file(path).is_ok_and(|id| self.locks.contains(&id))
    }

    pub(super) fn unlock(&mut self, id: InodeId) {
        self.locks.remove(&id);
    }

    // Content.

    /// Returns the file behind a handle; the handle ensures that the file exists.
    pub(super) fn inode(&self, id: InodeId) -> io::Result<&Inode> {
        self.inodes.get(&id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn inode_mut(&mut self, id: InodeId) -> io::Result<&mut Inode> {
        self.inodes.get_mut(&id).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    pub(super) fn read(&mut self, id: InodeId, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check_power()?;
        if buf.is_empty() {
            return Ok(());
        }
        self.counts.reads += 1;
        let content = &self.inode(id)?.cached;
        if end_of(offset, buf.len())? > content.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        content.read(buf, offset);
        self.counts.bytes_read += buf.len() as u64;
        let path = &self.inodes[&id].name;
        self.faults.fault_for_call(Operation::Read, path).map_or(Ok(()), |(errno, _)| Err(errno.into()))
    }

    pub(super) fn write(&mut self, id: InodeId, data: &[u8], offset: u64) -> io::Result<()> {
        self.check_power()?;
        end_of(offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        let path = self.inode(id)?.name.clone();
        let number = self.count(Operation::Write, &path, Some((offset, data.len() as u64)))?;
        let (fits, failure) = match self.faults.fault_for_call(Operation::Write, &path) {
            Some((errno, PartialEffect::Nothing)) => (0, Some(errno.into())),
            Some((errno, PartialEffect::Part)) => (self.rng.below(data.len() as u64) as usize, Some(errno.into())),
            None => self.bytes_that_fit(id, data.len(), offset),
        };
        self.apply_write(number, id, &data[..fits], offset)?;
        failure.map_or(Ok(()), Err)
    }

    /// Writes through a mapping. This cannot return an error, so the write is dropped while the power is off.
    ///
    /// # Panics
    /// Panics if the file has become shorter than the mapping (the kernel would end the process).
    pub(super) fn write_mapped(&mut self, id: InodeId, data: &[u8], offset: u64) {
        let Ok(inode) = self.inode(id) else { return };
        if self.check_power().is_err() || data.is_empty() {
            return;
        }
        let len = inode.cached.len();
        assert!(offset + data.len() as u64 <= len, "the mapped file has shrunk to {len} bytes: SIGBUS");
        let path = inode.name.clone();
        if let Ok(number) = self.count(Operation::MappedWrite, &path, Some((offset, data.len() as u64))) {
            // Both calls fail only for a missing file.
            let _ = self.apply_write(number, id, data, offset);
        }
    }

    fn apply_write(&mut self, number: u64, id: InodeId, data: &[u8], offset: u64) -> io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let inode = self.inodes.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        let (len, allocated) = (inode.cached.len(), inode.cached.allocated_bytes());
        inode.write(number, data, offset);
        self.counts.extensions += u64::from(inode.cached.len() > len);
        self.counts.allocations += u64::from(inode.cached.allocated_bytes() > allocated);
        self.counts.bytes_written += data.len() as u64;
        Ok(())
    }

    /// Returns the number of bytes of a write for which the disk has space. If this is not the whole write, also
    /// returns the error. Like a kernel, the disk writes a prefix before it reports that it is full.
    fn bytes_that_fit(&self, id: InodeId, len: usize, offset: u64) -> (usize, Option<io::Error>) {
        let block_bytes = BLOCK_BYTES as u64;
        let Some(inode) = self.inodes.get(&id) else { return (0, None) };
        let mut free_blocks = self.free_bytes() / block_bytes;
        for block in offset / block_bytes..(offset + len as u64).div_ceil(block_bytes) {
            if inode.cached.is_allocated(block) {
                continue;
            }
            if free_blocks == 0 {
                let fits = (block * block_bytes).saturating_sub(offset);
                return (fits as usize, Some(io::ErrorKind::StorageFull.into()));
            }
            free_blocks -= 1;
        }
        (len, None)
    }

    pub(super) fn free_bytes(&self) -> u64 {
        let in_use = self.inodes.values().filter(|inode| inode.linked || inode.handles > 0);
        let allocated: u64 = in_use.map(|inode| inode.cached.allocated_bytes()).sum();
        self.capacity_bytes.saturating_sub(allocated)
    }

    /// Files with a bit that was flipped.
    pub(super) fn flipped_files(&self) -> Vec<FlippedFile> {
        let flipped = self.inodes.values().filter(|inode| inode.was_flipped());
        flipped.map(|inode| FlippedFile { path: inode.name.clone(), is_overwritten: !inode.is_flipped() }).collect()
    }

    pub(super) fn set_len(&mut self, id: InodeId, len: u64) -> io::Result<()> {
        self.check_power()?;
        end_of(len, 0)?;
        let path = self.inode(id)?.name.clone();
        let number = self.begin(Operation::SetLen, &path, Some((0, len)))?;
        let before = self.inode(id)?.cached.len();
        self.counts.extensions += u64::from(len > before);
        if len != before {
            self.inode_mut(id)?.set_len(number, len);
        }
        Ok(())
    }

    pub(super) fn sync(&mut self, id: InodeId) -> io::Result<()> {
        self.check_power()?;
        let path = self.inode(id)?.name.clone();
        self.count(Operation::Sync, &path, None)?;
        let struck = self.faults.fault_for_call(Operation::Sync, &path);
        let Self { inodes, rng, .. } = self;
        let inode = inodes.get_mut(&id).ok_or(io::ErrorKind::NotFound)?;
        match struck {
            None => {
                inode.sync();
                Ok(())
            }
            Some((errno, spill)) => {
                inode.fail_sync((spill == PartialEffect::Part).then_some(rng));
                Err(errno.into())
            }
        }
    }
}

/// Returns the offset after the last byte of a range, or an error if it exceeds the maximum length of a file.
fn end_of(offset: u64, len: usize) -> io::Result<u64> {
    let end = offset.checked_add(len as u64).filter(|end| i64::try_from(*end).is_ok());
    end.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the offset exceeds the maximum length of a file"))
}
