//! The client against a peer that does what the test says.

mod peer;
mod pool;
mod publisher;
mod requests;
mod stream_publisher;
mod subscriptions;
