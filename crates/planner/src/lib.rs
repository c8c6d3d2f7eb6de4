//! Capacity plans: the number and the size of the nodes that a load needs, computed from measured runs.
//!
//! Owns: the format of a profile, which is a file of measured runs ([`Profile`]); the line through such runs
//! ([`Line`]); and the plan with its formulas ([`plan`]). Does not own: the measuring of a profile, and the command
//! line.
//!
//! Invariant: no number in a plan is invented. Each comes from a run of the profile, from a setting of the node that
//! the caller passes, or from the requested load. A number that follows from measurements has an interval.
//!
//! ```text
//! plan ── fit
//!   └──── profile, request
//! ```

mod fit;
mod plan;
mod profile;
mod request;

pub use self::{
    fit::{Interval, Line},
    plan::{Figure, Plan, PlanError, plan},
    profile::{Disk, FORMAT, Machine, Profile, ProfileError, Run},
    request::{Objective, Quantile, Request, Settings, parse_rate, parse_size},
};
