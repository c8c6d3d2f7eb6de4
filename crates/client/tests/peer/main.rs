//! The client against a scripted peer.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod cluster;
mod cluster_events;
mod peer;
mod pool;
mod publisher;
mod requests;
mod stream_publisher;
mod subscriptions;
