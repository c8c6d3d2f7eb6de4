//! Profiles of a server's process: the functions that use its processor time, the functions in which its threads wait,
//! and the functions that allocate its memory.
//!
//! Owns: recording by `perf` (`perf`, `script`), or by the allocator of a server that was built for it (`alloc`), and
//! the stacks of calls with their weights ([`Stacks`]). Does not own: drawing the stacks
//! ([`report::plots`](crate::report::plots)), the place of a profile in a report ([`profiling`](crate::profiling)), or
//! the load under which a server is profiled, which the suites run.
//!
//! A profile slows the server down, so the suites measure their figures in runs without one.
//!
//! Allocations are not recorded by perf, for two reasons. Its page faults show only the first use of a page, and an
//! allocator gives most memory out many times. Its probes of functions (uprobes) enter the kernel at each allocation,
//! even at those that are not sampled. They also need root and tracefs, which containers do not have. Instead, the
//! server's allocator takes the samples: it knows the allocated bytes anyway, and needs no special rights.

mod alloc;
mod kind;
mod perf;
mod recording;
mod script;
mod stacks;

pub use self::{
    kind::{Profile, ProfileKind},
    recording::Recording,
    stacks::{Call, Stacks},
};
