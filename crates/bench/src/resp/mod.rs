//! The RESP suite: any server that speaks RESP, several of them in turns in one run.
//!
//! Owns: requests and the judgement of replies, the servers of a run, and redis-benchmark as a generator that we did
//! not write. Does not own how replies are read (`thalweg_redis::wire::reply_parser`), and the load generator
//! (`crate::load`), which has one thread here, as redis-benchmark has.
//!
//! Rules: rounds of all servers alternate, so that a drift of the machine is the same for all; each server reports its
//! durability, which is printed; each reply is compared with the right one, and a wrong reply ends the run.
//!
//! Parts: `client` is for setup, `requests` makes requests and judges replies, `protocol` gives both to the load
//! generator, `fanout` measures subscribers, `external` runs redis-benchmark, `server` starts and describes
//! servers, `bare` is the upper bound, `scenario` has the lines of the report, `turn` is one server's part in a
//! scenario, `suite` goes through all, `figures` shows them.

mod bare;
mod client;
mod external;
mod fanout;
mod figures;
mod options;
mod protocol;
mod requests;
mod scenario;
mod server;
mod suite;
mod turn;

pub use options::RespOptions;
pub use suite::run;
