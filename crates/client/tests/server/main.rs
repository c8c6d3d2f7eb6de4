//! The client against a real server in this process.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod carriers;
mod examples;
mod handles;
mod node;
mod reconnect;
mod subjects;
