//! Profiles of a server's process: the functions that use its processor time, those in which its threads wait, and
//! those that allocate its memory.
//!
//! Owns: recording by `perf` (`perf`, `script`), or by the allocator of a server that was built for it (`alloc`), and
//! the stacks of calls with their weights ([`Stacks`]). Does not own: drawing the stacks
//! ([`report::plots`](crate::report::plots)), the place of a profile in a report ([`profiling`](crate::profiling)), and
//! the load under which a server is profiled, which the suites run.
//!
//! A profile slows the server down, so the suites measure their figures in runs without it.
//!
//! Allocations are not recorded by perf. Its page faults show only the first use of a page, and an allocator gives most
//! memory out many times. Its probes of functions (uprobes) enter the kernel at each allocation, also at those that are
//! no sample, and need root and tracefs, which containers do not have. The server's allocator samples itself instead:
//! it counts bytes that it knows anyway, and needs no right.

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
