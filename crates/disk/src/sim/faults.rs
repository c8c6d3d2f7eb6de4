//! Faults to come: which call fails, how, and what it leaves behind.

use std::io;

use thalweg_types::{Action, Classified};

use super::counts::Operation;

/// The error that a fault reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Errno {
    /// `EIO`: the medium failed.
    Io,
    /// `ENOSPC`: no space left.
    NoSpace,
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        let code = match errno {
            Errno::Io => rustix::io::Errno::IO,
            Errno::NoSpace => rustix::io::Errno::NOSPC,
        };
        code.into()
    }
}

/// How often a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strikes {
    Once,
    FromThenOn,
}

/// What a failing call does before it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spill {
    Nothing,
    Part,
}

/// A call that shall fail.
///
/// By default once, on any path, and without any effect: a failed write has written nothing, and a
/// failed sync has put nothing on the medium, but has marked the pages clean, as Linux does: reads still
/// see them, later syncs succeed without writing them, a power loss takes them.
#[derive(Clone, Debug)]
pub struct Fault {
    operation: Operation,
    nth: u64,
    errno: Errno,
    strikes: Strikes,
    spill: Spill,
    path_part: String,
}

impl Fault {
    /// The `nth` call of that kind from now on fails; the next one is the first.
    ///
    /// # Panics
    /// If `nth` is 0, or if the operation is [`Operation::MappedWrite`], which can't report an error.
    #[must_use]
    pub fn new(operation: Operation, nth: u64, errno: Errno) -> Self {
        assert!(nth > 0, "calls are counted from 1");
        assert!(operation != Operation::MappedWrite, "a write through a mapping can't report an error");
        Self { operation, nth, errno, strikes: Strikes::Once, spill: Spill::Nothing, path_part: String::new() }
    }

    /// Counts and fails only calls on paths that contain `part`. A file goes by its latest name.
    #[must_use]
    pub fn on_path(mut self, part: &str) -> Self {
        part.clone_into(&mut self.path_part);
        self
    }

    /// Later calls fail too: the device is gone.
    #[must_use]
    pub fn for_good(mut self) -> Self {
        self.strikes = Strikes::FromThenOn;
        self
    }

    /// A failing write leaves a beginning of its data in the file; a failing sync of a file puts some of
    /// the sectors on the medium. How much is drawn from the disk's seed. Other calls are not affected.
    #[must_use]
    pub fn leaving_a_part(mut self) -> Self {
        self.spill = Spill::Part;
        self
    }
}

/// The plan of faults of one disk.
#[derive(Debug, Default)]
pub(super) struct Faults {
    planned: Vec<Planned>,
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

    /// Counts a call; the fault that strikes it. The one planned first wins.
    pub(super) fn strike(&mut self, operation: Operation, path: &str) -> Option<(Errno, Spill)> {
        let mut struck = None;
        for planned in &mut self.planned {
            let fault = &planned.fault;
            if fault.operation != operation || !path.contains(&fault.path_part) {
                continue;
            }
            planned.seen += 1;
            let strikes = match fault.strikes {
                Strikes::Once => planned.seen == fault.nth,
                Strikes::FromThenOn => planned.seen >= fault.nth,
            };
            if strikes && struck.is_none() {
                struck = Some((fault.errno, fault.spill));
            }
        }
        struck
    }
}

/// The simulated machine is off: nothing on this disk works any more. Take the disk that
/// [`SimDisk::power_loss`](super::SimDisk::power_loss) returns and open that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("power is off; continue on the disk that a simulated power loss returns")]
pub struct PowerIsOff;

impl PowerIsOff {
    /// Whether this is why a call failed.
    #[must_use]
    pub fn caused(error: &io::Error) -> bool {
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
