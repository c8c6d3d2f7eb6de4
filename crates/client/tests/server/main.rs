//! The client against a real server in this process.

mod carriers;
mod examples;
mod handles;
mod node;
mod reconnect;
mod subjects;
