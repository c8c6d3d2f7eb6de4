//! Load over RESP, the protocol of Redis.
//!
//! Parts: [`client`] sends single requests during setup, [`requests`] makes requests and checks replies, [`protocol`]
//! passes both to the load generator. [`bare`] is a server without a database, whose rate is the most that a server on
//! this machine can reach. Does not own the decoding of replies (`thalweg_redis::wire::reply_parser`).

pub mod bare;
pub mod client;
pub mod protocol;
pub mod requests;
