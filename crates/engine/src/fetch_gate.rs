//! Decides if the rows that a command will read are looked up before the command is proposed (the gate is open).
//!
//! Owns: the gate. Does not own: the lookups (`row_fetch`).
//!
//! Looking rows up early keeps reads of files off the applying thread. The gate is open while such reads are likely:
//! after the open of a state with files, and after the applying thread or a lookup has read a file. It closes after
//! [`OPEN_COMMANDS`] commands whose rows were all in memory. So a closed gate costs two atomic loads a command. The
//! first command that needs a file again reads it when it is applied.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use thalweg_state::machine::Machine;

/// Number of successive commands with all rows in memory after which rows are no longer looked up in advance.
pub(crate) const OPEN_COMMANDS: u32 = 4096;

/// Decides if the rows that commands will read are looked up before the commands are proposed (gate open).
#[derive(Debug)]
pub(crate) struct FetchGate {
    /// Number of reads of files by the applying thread when the gate was last checked.
    pub(crate) seen: AtomicU64,
    /// Number of commands until the gate closes; 0 while it is closed.
    pub(crate) left: AtomicU32,
}

impl FetchGate {
    /// Creates the gate. It is open if the state has files, because commands may then have to read them.
    pub(crate) fn new(has_files: bool) -> Self {
        Self { seen: AtomicU64::new(0), left: AtomicU32::new(if has_files { OPEN_COMMANDS } else { 0 }) }
    }

    /// Returns true if the rows of the state that a command reads should be looked up before the command is proposed.
    pub(crate) fn is_open(&self, machine: &Machine) -> bool {
        let reads = machine.file_reads();
        if self.seen.load(Relaxed) != reads {
            self.seen.store(reads, Relaxed);
            self.left.store(OPEN_COMMANDS, Relaxed);
        }
        self.left.load(Relaxed) > 0
    }

    /// Records that the rows of a command were looked up. `has_read_files` is true if a row was not in memory.
    pub(crate) fn note(&self, has_read_files: bool) {
        if has_read_files {
            self.left.store(OPEN_COMMANDS, Relaxed);
        } else {
            // An error means that the gate is already closed.
            let _ = self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        }
    }
}
