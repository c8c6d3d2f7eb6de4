//! A directory written by `Solo` is that of a one-voter Raft group: openraft opens it as its own.
//!
//! Only the tests depend on openraft. [`types`], [`store`] and [`applier`] are the parts that a Raft group
//! over our log and state needs; the scenarios show that no migration is needed.

mod applier;
mod contents;
mod network;
mod node;
mod scenarios;
mod store;
mod suite;
mod types;
