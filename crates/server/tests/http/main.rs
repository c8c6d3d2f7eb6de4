//! Tests of the API over HTTP, against a server in this process.

#[path = "../support/mod.rs"]
mod support;

mod bounds;
mod caches;
mod documents;
mod groups;
mod kv;
mod leases;
mod past;
mod push;
mod shares;
mod simple;
mod snapshots;
mod state;
mod streams;
mod subjects;
mod transactions;
mod watch;
