//! RESP as a target of the load generator.
//!
//! Parts: [`client`] is for setup, [`requests`] makes requests and checks replies, [`protocol`] passes both to the load
//! generator, [`bare`] is a server without a database, the upper bound of what the machine can carry. Does not own the
//! decoding of replies (`thalweg_redis::wire::reply_parser`).

pub mod bare;
pub mod client;
pub mod protocol;
pub mod requests;
