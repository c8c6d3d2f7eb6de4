//! A directory written by `Solo` is that of a Raft member with one voter: openraft opens it as its own, without a
//! migration.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod applier;
mod contents;
mod network;
mod node;
mod scenarios;
mod types;
