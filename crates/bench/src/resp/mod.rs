//! The RESP suite: measures any server that speaks RESP, and several servers in turns in one run.
//!
//! Owns: requests and the check of replies, the servers of a run, and redis-benchmark as a second load generator, which
//! Thalweg's authors did not write. Does not own the decoding of replies (`thalweg_redis::wire::reply_parser`), and the
//! load generator (`crate::load`), which has one thread here, as redis-benchmark has.
//!
//! Rules: rounds of all servers alternate, so that a drift of the machine is the same for all; each server reports its
//! durability, which is printed; each reply is compared with the right one, and a wrong reply ends the run.
//!
//! Parts: `client` is for setup, `requests` makes requests and checks replies, `protocol` passes both to the load
//! generator, `fanout` measures subscribers, `external` runs redis-benchmark, `server` starts and describes servers,
//! `bare` is the upper bound, `scenario` has the lines of the report, `turn` is one server's part in a scenario,
//! `suite` runs all scenarios, `figures` creates the tables.

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
