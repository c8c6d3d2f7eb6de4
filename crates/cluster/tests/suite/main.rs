//! Nodes of a cluster with real databases, over loopback, in one process.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod cluster;
#[path = "../../../thalweg/tests/node/damage.rs"]
mod damage;
mod founding;
mod nodes;
mod repairs;
mod rooms;
mod signs;
mod subjects;
