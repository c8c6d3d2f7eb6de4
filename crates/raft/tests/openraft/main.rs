//! A directory written by `Solo` is that of a Raft member with one voter: openraft opens it as its own, without a migration.

mod applier;
mod contents;
mod network;
mod node;
mod scenarios;
mod types;
