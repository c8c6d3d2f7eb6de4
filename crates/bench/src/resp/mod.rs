//! The RESP suite: any server that speaks RESP, several of them in turns in one run.
//!
//! Owns: what is asked and which answers are right, the servers of a run, and redis-benchmark as a generator that we did not
//! write. Does not own how replies are read ([`thalweg_redis::wire::reply_parser`]), and the load generator ([`crate::load`]),
//! which has one thread here, as redis-benchmark has.
//!
//! Rules: rounds of all servers alternate, so that what drifts on the machine drifts for all; each server's durability is
//! asked of it and printed; each reply is compared with what it must be, and a wrong one ends the run.
//!
//! Parts: [`client`] is for setup, [`requests`] makes requests and judges replies, [`protocol`] gives both to the load
//! generator, [`fanout`] measures subscribers, [`external`] runs redis-benchmark, [`server`] starts and describes servers,
//! [`bare`] is a server that does nothing but what all must, [`scenario`] and `goals` say what is measured, `turn` is one
//! server's part in a scenario, `suite` goes through all, `figures` shows them.

pub mod bare;
pub mod client;
pub mod external;
pub mod fanout;
mod figures;
mod goals;
pub mod options;
pub mod protocol;
pub mod requests;
pub mod scenario;
pub mod server;
mod suite;
mod turn;

pub use options::RespOptions;
pub use suite::run;
