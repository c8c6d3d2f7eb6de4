//! An audit of the state: recomputes from the rows whatever the state keeps twice, and compares.

pub(crate) mod audit_all;
pub(crate) mod collections;
pub(crate) mod ends;
pub(crate) mod groups;
pub(crate) mod history;
pub(crate) mod names;
pub(crate) mod names_of;
pub(crate) mod pages;
pub(crate) mod report;
pub(crate) mod segments;
pub(crate) mod streams;
pub(crate) mod values;

pub use audit_all::audit;
pub use report::{Finding, FindingKind, Values};
