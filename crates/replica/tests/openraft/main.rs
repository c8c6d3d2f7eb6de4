//! A directory that `Solo` wrote is a one-voter Raft group's: openraft opens it as its own.
//!
//! Nothing outside the tests knows openraft. [`types`], [`store`] and [`applier`] are what a Raft group
//! over our log and state needs; the scenarios show that no migration is.

mod applier;
mod contents;
mod network;
mod node;
mod scenarios;
mod store;
mod suite;
mod types;
