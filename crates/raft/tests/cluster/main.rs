//! Three members in one process: consensus over real logs and states, on simulated disks and a network that tests cut.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod behind;
mod commands;
mod failover;
mod membership;
mod network;
mod node;
mod older_copy;
mod reads;
mod snapshots;
mod time;
mod writes;
