//! Operations of a simulated disk: the number of each kind, and a log of the last operations.

use std::{collections::VecDeque, fmt, ops::Sub};

/// Kind of a call to the simulated disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reading from a file. Reads are counted and can fail. A simulated power loss never happens at a read, because a
    /// read changes nothing.
    Read,
    /// Writing to a file, vectored or not.
    Write,
    /// Writing through a mapping.
    MappedWrite,
    /// Changing the length of a file.
    SetLen,
    /// A call of `sync_data` or `sync_all`.
    Sync,
    /// Syncing a directory.
    SyncDir,
    /// Creating a file, by `create` or `lock`.
    Create,
    /// Creating a directory; one operation for each missing level.
    CreateDir,
    /// Renaming a file.
    Rename,
    /// Removing a file.
    Remove,
}

/// Numbers of calls to a simulated disk, by kind. Failed calls are counted too, except those after the power is off. To
/// measure one operation, subtract the numbers before it from those after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of reads from files.
    pub reads: u64,
    /// Number of writes to files, without those through mappings.
    pub writes: u64,
    /// Number of writes to files through mappings.
    pub mapped_writes: u64,
    /// Number of changes of a file's length by `set_len`.
    pub set_lens: u64,
    /// Number of syncs of files.
    pub syncs: u64,
    /// Number of syncs of directories.
    pub dir_syncs: u64,
    /// Number of created files.
    pub creates: u64,
    /// Number of created directories.
    pub dir_creates: u64,
    /// Number of renamed files.
    pub renames: u64,
    /// Number of removed files.
    pub removes: u64,
    /// Number of calls (writes or `set_len`) that made a file longer.
    pub extensions: u64,
    /// Number of writes that allocated blocks. Writes to parts of a file that were written before allocate none.
    pub allocations: u64,
    /// Total number of bytes read from files.
    pub bytes_read: u64,
    /// Total number of bytes written to files, including those through mappings.
    pub bytes_written: u64,
}

impl Counts {
    /// Returns the number of operations that can change the disk's contents. A simulated power loss can happen at each
    /// of them.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.writes
            + self.mapped_writes
            + self.set_lens
            + self.syncs
            + self.dir_syncs
            + self.creates
            + self.dir_creates
            + self.renames
            + self.removes
    }

    pub(super) fn of(&mut self, operation: Operation) -> &mut u64 {
        match operation {
            Operation::Read => &mut self.reads,
            Operation::Write => &mut self.writes,
            Operation::MappedWrite => &mut self.mapped_writes,
            Operation::SetLen => &mut self.set_lens,
            Operation::Sync => &mut self.syncs,
            Operation::SyncDir => &mut self.dir_syncs,
            Operation::Create => &mut self.creates,
            Operation::CreateDir => &mut self.dir_creates,
            Operation::Rename => &mut self.renames,
            Operation::Remove => &mut self.removes,
        }
    }
}

impl Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            mapped_writes: self.mapped_writes - earlier.mapped_writes,
            set_lens: self.set_lens - earlier.set_lens,
            syncs: self.syncs - earlier.syncs,
            dir_syncs: self.dir_syncs - earlier.dir_syncs,
            creates: self.creates - earlier.creates,
            dir_creates: self.dir_creates - earlier.dir_creates,
            renames: self.renames - earlier.renames,
            removes: self.removes - earlier.removes,
            extensions: self.extensions - earlier.extensions,
            allocations: self.allocations - earlier.allocations,
            bytes_read: self.bytes_read - earlier.bytes_read,
            bytes_written: self.bytes_written - earlier.bytes_written,
        }
    }
}

/// One operation of a simulated disk, as its log of operations records it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Number of the operation; the disk's first operation is 1.
    pub number: u64,
    /// Kind of the logged operation.
    pub operation: Operation,
    /// Path of the file or directory; the old path for a rename.
    pub path: String,
    /// Offset and length of a write in bytes; 0 and the new length for a `set_len`.
    pub range: Option<(u64, u64)>,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {:?}", self.number, self.operation, self.path)?;
        match self.range {
            Some((offset, len)) => write!(f, " {offset}+{len}"),
            None => Ok(()),
        }
    }
}

/// Log of a simulated disk's last operations. The test configures how many operations it keeps; the default is 0.
#[derive(Debug, Default)]
pub(super) struct OpLog {
    capacity: usize,
    events: VecDeque<Event>,
}

impl OpLog {
    pub(super) fn keep_last(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.events.drain(..self.events.len().saturating_sub(capacity));
    }

    pub(super) fn record(&mut self, event: impl FnOnce() -> Event) {
        if self.capacity == 0 {
            return;
        }
        if self.events.len() == self.capacity {
            self.events.pop_front();
        }
        self.events.push_back(event());
    }

    pub(super) fn to_vec(&self) -> Vec<Event> {
        self.events.iter().cloned().collect()
    }
}
