//! Failing fsyncs of a node.
//!
//! Owns: the choice of the fsyncs that fail. Does not own: the effect of a failure (`disk`), or the times at which the
//! failures begin and end (`cluster`).
//!
//! The disk treats a failed fsync as Linux does: it marks the pages as written. So reads show them, later fsyncs
//! succeed without writing them, and a power loss discards them. Fsyncs of directories do not fail, because a file
//! system that cannot write its journal becomes read-only.

use std::fmt;

use thalweg_disk::{
    SimDisk,
    sim::{Errno, Fault, Operation},
};

use crate::runtime::random;

/// First words of the event that the simulation records when a node stops because of a failed fsync.
pub(crate) const SYNC_FAILED: &str = "stops, because an fsync has failed";

/// Number of fsyncs that fail: one, or all until the fault ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Repeat {
    Once,
    UntilMended,
}

/// Description of a fault of a node's disk: the fsyncs that fail with `EIO`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailingSyncs {
    /// Part of the paths of the files whose fsyncs fail; empty for all files.
    path: &'static str,
    /// Number of the first fsync that fails, counted from 1 among the fsyncs of the affected files after the fault
    /// begins.
    nth: u64,
    repeat: Repeat,
    /// True if an fsync that fails has still written some of the sectors to the disk.
    is_partial: bool,
}

impl FailingSyncs {
    /// Draws at random which fsyncs fail: of the log, of the state, or of all files; once, or until the fault ends.
    #[must_use]
    pub fn random() -> Self {
        let path = match random(0..4) {
            0 | 1 => "log/",
            2 => "state/",
            _ => "",
        };
        let (nth, repeat) =
            if random(0..2) == 0 { (random(1..30), Repeat::Once) } else { (random(1..4), Repeat::UntilMended) };
        Self { path, nth, repeat, is_partial: random(0..2) == 0 }
    }

    /// Makes a simulated disk fail the fsyncs that this value describes.
    pub fn plan(&self, disk: &SimDisk) {
        let mut fault = Fault::new(Operation::Sync, self.nth, Errno::Io).on_path(self.path);
        if self.repeat == Repeat::UntilMended {
            fault = fault.for_good();
        }
        if self.is_partial {
            fault = fault.with_partial_effect();
        }
        disk.fail(fault);
    }

    /// Returns the failures that a new process of the node sees, because the fault has not ended; `None` if only one
    /// fsync fails.
    #[must_use]
    pub fn for_next_process(&self) -> Option<Self> {
        (self.repeat == Repeat::UntilMended).then_some(Self { nth: 1, ..*self })
    }
}

impl fmt::Display for FailingSyncs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files = if self.path.is_empty() { "all files" } else { self.path };
        match self.repeat {
            Repeat::Once => write!(f, "fsync {} of {files} fails", self.nth),
            Repeat::UntilMended => write!(f, "the fsyncs of {files} fail from number {} on", self.nth),
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_disk::Disk as _;

    use super::*;

    /// Returns the results of three fsyncs of a file in `log/`; true means success. Before the third one, the node's
    /// process is killed and a new process opens the file.
    fn results(path: &'static str, repeat: Repeat) -> [bool; 3] {
        let failing = FailingSyncs { path, nth: 2, repeat, is_partial: false };
        let disk = SimDisk::new(1);
        disk.create_dir("log").expect("a directory");
        let file = disk.create("log/1").expect("a file");
        failing.plan(&disk);
        let [first, second] = [(), ()].map(|()| file.sync_data().is_ok());
        let next = disk.kill_process();
        if let Some(failing) = failing.for_next_process() {
            failing.plan(&next);
        }
        [first, second, next.open("log/1").and_then(|file| file.sync_data()).is_ok()]
    }

    #[test]
    fn failures_concern_some_files_and_may_outlast_the_process() {
        assert_eq!(results("log/", Repeat::Once), [true, false, true]);
        assert_eq!(results("log/", Repeat::UntilMended), [true, false, false]);
        assert_eq!(results("", Repeat::UntilMended), [true, false, false]);
        assert_eq!(results("state/", Repeat::UntilMended), [true, true, true]);
    }
}
