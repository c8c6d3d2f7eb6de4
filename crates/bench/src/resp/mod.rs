//! The RESP suite: measures any server that speaks RESP, and several servers alternately in one run.
//!
//! Owns: the servers of a run, and redis-benchmark as a second load generator, which Thalweg's authors did not write.
//! Does not own: requests and the check of replies (`thalweg_load::resp`), or this program's load generator. Here it
//! has one thread, like redis-benchmark.
//!
//! Rules: the rounds of all servers alternate, so that a drift of the machine affects all equally. The report shows the
//! durability that each server states. Each reply is compared with the expected one, and a wrong reply ends the run.
//!
//! Parts: `fanout` measures subscribers, `external` runs redis-benchmark, `server` starts and describes servers,
//! `scenario` has the lines of the report, `turn` is one server's part in a scenario, `suite` runs all scenarios,
//! `figures` creates the tables, `contender` is a server in a comparison.

mod contender;
mod external;
mod fanout;
mod figures;
mod options;
mod scenario;
mod server;
mod suite;
mod turn;

use thalweg_load::resp::{bare, client, protocol, requests};

pub(crate) use contender::{contender, options_of};
pub use options::RespOptions;
pub(crate) use options::ServerSpec;
pub(crate) use server::asked_durability;
pub use suite::run;
