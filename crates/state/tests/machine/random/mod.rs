//! Random lists of commands, and what must not depend on how they are applied.
//!
//! Owns: making lists from a byte string (`generator` and its families), cutting them into entries (`list`), nodes that
//! apply them (`node`), the comparison of two nodes (`replicated`), the properties themselves (`groupings`) and the
//! report about a list that breaks one (`shrink`, `describe`). The fuzz targets use the same files.
//!
//! Does not own which backends there are: a property is given a function that opens one.

pub mod describe;
pub mod differential;
pub mod generator;
pub mod groupings;
pub mod input;
mod keys;
pub mod list;
pub mod node;
pub mod probes;
mod redis;
pub mod replicated;
pub mod shrink;
mod streams;
pub mod upkeep;

pub use generator::{Generator, Puts};
pub use input::Input;
pub use list::{List, Step};
