//! Profiles of a server's process by `perf`: the functions that use its processor time, and those in which its threads wait.
//!
//! Owns: running `perf record` and `perf script` ([`Recording`]), reading their text (`script`), and the stacks of calls
//! with their weights ([`Stacks`]). Does not own: drawing the stacks ([`report::plots`](crate::report::plots)), and the
//! load under which a server is profiled, which the suites run.
//!
//! A profile slows the server down, so the suites measure their figures in runs without it.

mod perf;
mod script;
mod stacks;

pub use self::{
    perf::{Profile, Recording},
    stacks::{Call, Stacks},
};

/// Kind of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum ProfileKind {
    /// Processor time: samples of the running threads.
    Cpu,
    /// Waiting time: the time between the moment at which a thread stops running and the one at which it continues.
    Offcpu,
    /// Waiting time for locks that another thread holds: the part of `offcpu` below the lock functions of Rust's standard
    /// library, parking_lot and the C library.
    Lock,
}

impl ProfileKind {
    /// Returns the name of the kind as it is typed on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Offcpu => "offcpu",
            Self::Lock => "lock",
        }
    }

    /// Describes the weight of the stacks in words.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Cpu => "processor time",
            Self::Offcpu => "waiting time",
            Self::Lock => "waiting time for locks",
        }
    }
}
