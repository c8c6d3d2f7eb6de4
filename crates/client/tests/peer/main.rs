//! The client against a scripted peer.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod cached;
mod cluster;
mod cluster_events;
mod peer;
mod pool;
mod publisher;
mod requests;
mod spread_cache;
mod stream_publisher;
mod subscriptions;
