//! Random lists of commands, and properties that must not depend on the way in which they are applied.
//!
//! Owns: generating lists from a byte string (`generator` and its families), grouping them into entries (`list`),
//! nodes that apply them (`node`), the comparison of two nodes (`replicated`), the properties themselves
//! (`groupings`, `differential`), and the report about a list that violates one (`shrink`, `describe`). The fuzz
//! targets use the same files.
//!
//! Does not own: the choice of backends; a property receives a function that opens one.

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
