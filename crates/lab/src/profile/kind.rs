//! The kinds of profiles of a server's process, and the type of a finished profile.

use super::stacks::Stacks;

/// Kind of a profile of a server's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ProfileKind {
    /// Processor time: samples of the running threads.
    Cpu,
    /// Allocated memory: samples of the allocations. A sample counts for all bytes that its thread has allocated since
    /// the thread's previous sample. The server must be built with the feature alloc-profile.
    Alloc,
    /// Waiting time: the time from the moment at which a thread stops running until it continues.
    Offcpu,
    /// Waiting time for locks that another thread holds: the part of `offcpu` below the lock functions of Rust's
    /// standard library, parking_lot and the C library.
    Lock,
}

impl ProfileKind {
    /// Returns the name of the kind as it is typed on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Alloc => "alloc",
            Self::Offcpu => "offcpu",
            Self::Lock => "lock",
        }
    }

    /// Describes in words what the weight of a stack means.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Cpu => "processor time",
            Self::Alloc => "allocated memory",
            Self::Offcpu => "waiting time",
            Self::Lock => "waiting time for locks",
        }
    }
}

/// A finished profile of a server's process.
#[derive(Debug)]
pub struct Profile {
    /// Kind of the profile: processor time, allocations, or waiting time.
    pub kind: ProfileKind,
    /// Stacks of calls. The first call of each stack is the thread's name.
    pub stacks: Stacks,
    /// Number of samples in the profile.
    pub samples: u64,
    /// Share of the samples, from 0 to 1, in which no function of the program itself has a name. Names are missing if
    /// the program has no symbols.
    pub nameless: f64,
}
