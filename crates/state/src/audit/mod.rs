//! The audit of the state: recomputes redundant rows from the rows that determine them, and compares both.
//!
//! Owns: [`audit`] and its findings. Does not own: repair, or the bytes of values in the log.
//!
//! Invariant: an audit reads one view and changes nothing. Every disagreement is reported as a [`Finding`].
//!
//! * `audit_all`: the entry point, and the list of redundant data.
//! * `report`: findings. `pages`: reading rows in pages. `visible_names`: tables that the checks of all areas need.
//! * `names`, `values`, `ends`, `streams`, `history`, `collections`, `groups`, `segments`: the checks of one area each.

pub(crate) mod audit_all;
pub(crate) mod collections;
pub(crate) mod ends;
pub(crate) mod groups;
pub(crate) mod history;
pub(crate) mod names;
pub(crate) mod pages;
pub(crate) mod report;
pub(crate) mod segments;
pub(crate) mod streams;
pub(crate) mod values;
pub(crate) mod visible_names;

pub use audit_all::audit;
pub use report::{Finding, FindingKind, Values};
