//! Three members in one process: consensus over real logs and states, on simulated disks and a network that tests cut.

mod commands;
mod failover;
mod membership;
mod network;
mod node;
mod reads;
mod snapshots;
mod writes;
