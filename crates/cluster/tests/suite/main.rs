//! Nodes of a cluster with real databases, over loopback, in one process.

mod cluster;
mod nodes;
mod repairs;
mod rooms;
mod signs;
mod subjects;
