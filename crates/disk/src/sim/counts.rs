//! Operations of a simulated disk: the number of each kind, and a log of the last operations.

use std::{collections::VecDeque, fmt, ops::Sub};

/// Kind of a call to the simulated disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reading from a file. Reads can fail and are counted. They are not crash points, because they change nothing.
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

/// Numbers of calls of each kind. Failed attempts are counted too, except after the power is off. To measure one piece
/// of work, subtract the numbers before it from those after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of reads.
    pub reads: u64,
    /// Number of writes, without those through mappings.
    pub writes: u64,
    /// Number of writes through mappings.
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
    /// Writes and `set_len`s that extended a file.
    pub extensions: u64,
    /// Writes that allocated blocks. Writes into a file that was filled before allocate none.
    pub allocations: u64,
    /// Total bytes read.
    pub bytes_read: u64,
    /// Bytes written, including those through mappings.
    pub bytes_written: u64,
}

impl Counts {
    /// Returns the number of operations that can change the medium. Each of them is a crash point.
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

/// One operation in the operation log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Number of the operation; the disk's first operation is 1.
    pub number: u64,
    /// Kind of the operation.
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

/// A log of the last operations, up to a configured number, which is 0 by default.
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
