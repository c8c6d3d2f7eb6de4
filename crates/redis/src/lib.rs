//! Redis's commands, without sockets and without a place to store: who has both serves Redis clients.
//!
//! Owns: RESP2 and RESP3 as bytes, the table of commands, and what each command does, written once over the traits
//! [`Read`] and [`Store`]. Does not own where keys are (the state machine, a read view, a cache, or in tests a map), nor
//! connections, transactions and subscriptions: those are the server's.
//!
//! Invariants:
//! * A command is a function of its arguments and the store: no clock, no randomness, no iteration order of its own. So
//!   an entry of the log that holds commands means the same on every node.
//! * What a client did wrong is a [`Reply::Error`] and changes nothing; only a failing store is an `Err`.
//! * Bytes of a client never panic, and announce no memory that they have not sent.

pub mod channels;
pub mod command;
pub mod connection;
pub mod errors;
mod execute;
mod expiry;
mod flags;
pub mod glob;
mod hashes;
mod keys;
pub mod long_double;
pub mod model;
pub mod number;
mod page;
mod random;
pub mod store;
pub mod streams;
mod strings;
mod value;
pub mod wire;

pub use command::{Answer, Command, Run, Stop, find};
pub use execute::{admit, execute, run, run_read};
pub use flags::Flags;
pub use store::{
    Collection, CollectionId, Found, Kind, Look, MAX_DEADLINE_MILLIS, NewValue, Read, Store, StoreError, Value,
};
pub use thalweg_types::reply::Reply;
