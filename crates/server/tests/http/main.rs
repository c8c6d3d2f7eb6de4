//! Tests of the API over HTTP, against a server in this process.

#![allow(unreachable_pub, reason = "a test program has no interface")]

#[path = "../../../thalweg/tests/node/chromium.rs"]
mod installed;
#[path = "../../../thalweg/tests/node/skip.rs"]
mod skip;
#[path = "../support/mod.rs"]
mod support;

mod bodies;
mod bounds;
mod browsers;
mod bulk;
mod caches;
mod chromium;
mod cluster;
mod documents;
mod fetched;
mod generated_clients;
mod groups;
mod kv;
mod lagging;
mod leases;
mod long_reads;
mod past;
mod push;
mod replies;
mod shares;
mod simple;
mod snapshots;
mod state;
mod streams;
mod subjects;
mod transactions;
mod watch;
