//! Tests of the native protocol, frame by frame, against a server in this process.

#![allow(unreachable_pub, reason = "a test program has no interface")]

#[path = "../support/mod.rs"]
mod support;

mod bulk;
mod caches;
mod channel;
mod cluster;
mod effects;
mod fetched;
mod groups;
mod long_reads;
mod ports;
mod reads;
mod shares;
mod streams;
mod subjects;
mod threads;
mod time;
mod wire;
