//! The suites as tests: small runs against servers in this process, to see that they run, check and report, and runs
//! against servers with a fault, which are never good.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod common;
mod node;
#[path = "../../../thalweg/tests/node/skip.rs"]
mod skip;

mod encrypted;
mod faulty;
mod faulty_feeds;
mod in_process;
#[cfg(feature = "nats")]
mod nats;
mod resp;
mod templates;
