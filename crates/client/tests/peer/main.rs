//! The client against a scripted peer.

mod peer;
mod pool;
mod publisher;
mod requests;
mod stream_publisher;
mod subscriptions;
