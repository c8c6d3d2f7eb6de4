//! Planned faults of a simulated disk: the call that fails, its error, and the partial effect that it still has.

use std::io;

use thalweg_types::{Action, Classified};

use super::counts::{Counts, Operation};

/// Error code that a call returns when a planned fault makes it fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Errno {
    /// `EIO`: the medium failed.
    Io,
    /// `ENOSPC`: no space left.
    NoSpace,
    /// `EDQUOT`: the quota of the user or the project is used up.
    Quota,
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        let code = match errno {
            Errno::Io => rustix::io::Errno::IO,
            Errno::NoSpace => rustix::io::Errno::NOSPC,
            Errno::Quota => rustix::io::Errno::DQUOT,
        };
        code.into()
    }
}

/// Number of calls that a planned fault makes fail: one, or all from the first one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultRepeat {
    Once,
    FromThenOn,
}

/// Effect on the disk that a call still has although a planned fault makes it fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartialEffect {
    Nothing,
    Part,
}

/// A planned failure of a call to a simulated disk.
///
/// By default the fault strikes once, on any path, and the failed call has no effect. A failed write has
/// written nothing. A failed sync has written nothing to the medium, but has marked the pages clean, as Linux
/// does: reads still see them, later syncs succeed without writing them, and a power loss discards them.
#[derive(Clone, Debug)]
pub struct Fault {
    operation: Operation,
    nth: u64,
    errno: Errno,
    repeat: FaultRepeat,
    partial_effect: PartialEffect,
    path_part: String,
}

impl Fault {
    /// Creates a fault that makes the `nth` call of this kind fail with `errno`. The next such call has the number 1.
    ///
    /// # Panics
    /// Panics if `nth` is 0, or if the operation is [`Operation::MappedWrite`], which can't report an error.
    #[must_use]
    pub fn new(operation: Operation, nth: u64, errno: Errno) -> Self {
        assert!(nth > 0, "calls are counted from 1");
        assert!(operation != Operation::MappedWrite, "a write through a mapping can't report an error");
        Self {
            operation,
            nth,
            errno,
            repeat: FaultRepeat::Once,
            partial_effect: PartialEffect::Nothing,
            path_part: String::new(),
        }
    }

    /// Restricts the fault to calls on paths that contain `part`. Only these calls count for the number `nth` of the
    /// call that fails. The path of a renamed file is its latest name.
    #[must_use]
    pub fn on_path(mut self, part: &str) -> Self {
        part.clone_into(&mut self.path_part);
        self
    }

    /// Makes all calls after the first failing one fail as well, like a lost device.
    #[must_use]
    pub fn for_good(mut self) -> Self {
        self.repeat = FaultRepeat::FromThenOn;
        self
    }

    /// Lets the failing call take partial effect. A failing write writes a prefix of its data. A failing sync of a file
    /// writes some sectors to the medium. The disk's seed determines how much. Calls of other kinds have no effect when
    /// they fail.
    #[must_use]
    pub fn with_partial_effect(mut self) -> Self {
        self.partial_effect = PartialEffect::Part;
        self
    }
}

/// Planned faults of one disk.
#[derive(Debug, Default)]
pub(super) struct Faults {
    planned: Vec<Planned>,
    /// Number of calls that faults have made fail, by kind.
    failed: Counts,
}

#[derive(Debug)]
struct Planned {
    fault: Fault,
    seen: u64,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.planned.push(Planned { fault, seen: 0 });
    }

    pub(super) fn clear(&mut self) {
        self.planned.clear();
    }

    pub(super) fn clear_of(&mut self, operation: Operation) {
        self.planned.retain(|planned| planned.fault.operation != operation);
    }

    pub(super) fn failed(&self) -> Counts {
        self.failed
    }

    /// Counts a call and returns the fault that makes it fail, if there is one. If several faults apply, the first
    /// planned one wins.
    pub(super) fn fault_for_call(&mut self, operation: Operation, path: &str) -> Option<(Errno, PartialEffect)> {
        let mut struck = None;
        for planned in &mut self.planned {
            let fault = &planned.fault;
            if fault.operation != operation || !path.contains(&fault.path_part) {
                continue;
            }
            planned.seen += 1;
            let repeat = match fault.repeat {
                FaultRepeat::Once => planned.seen == fault.nth,
                FaultRepeat::FromThenOn => planned.seen >= fault.nth,
            };
            if repeat && struck.is_none() {
                struck = Some((fault.errno, fault.partial_effect));
            }
        }
        if struck.is_some() {
            *self.failed.of(operation) += 1;
        }
        struck
    }
}

/// Error that every call returns after the simulated power loss. To continue, use the disk that
/// [`SimDisk::power_loss`](super::SimDisk::power_loss) returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the power is off: continue on the disk that a simulated power loss returns")]
pub struct PowerIsOff;

impl PowerIsOff {
    /// Returns true if `error` was caused by the simulated power loss.
    #[must_use]
    pub fn is_cause_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

impl From<PowerIsOff> for io::Error {
    fn from(off: PowerIsOff) -> Self {
        Self::other(off)
    }
}

impl Classified for PowerIsOff {
    fn code(&self) -> &'static str {
        "power_is_off"
    }

    fn action(&self) -> Action {
        Action::Stop
    }
}
