//! The client against a scripted peer.

mod cluster;
mod peer;
mod pool;
mod publisher;
mod requests;
mod stream_publisher;
mod subscriptions;
