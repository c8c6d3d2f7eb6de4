//! Types that every layer of Thalweg shares.
//!
//! Owns: ids and positions, durability levels, descriptions of streams and groups, the byte encodings of commands and
//! of stream records, the unsettled records of groups, limits, the order of keys and a map of prefixes, the three
//! classes of errors, the [`Clock`] trait, and facts about the build of the running program. This crate contains no I/O
//! and no policy, and depends on no other crate of the workspace.

pub mod budget;
pub mod build;
pub mod clock;
pub mod codec;
pub mod command;
pub mod counter;
pub mod durability;
pub mod error;
pub mod histogram;
pub mod ids;
pub mod info;
pub mod key_order;
pub mod limits;
pub mod message;
pub mod meter;
pub mod parcel;
pub mod prefix_map;
pub mod printable;
pub mod read_level;
pub mod record;
pub mod reply;
pub mod sparse;
pub mod steps;

pub use clock::{Clock, ManualClock, SpaceTime, SystemClock};
pub use durability::Durability;
pub use error::{Action, Classified};
pub use histogram::Log2Histogram;
pub use ids::*;
pub use read_level::ReadLevel;
