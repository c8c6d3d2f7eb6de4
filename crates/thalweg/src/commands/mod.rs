//! One module for each group of commands, with their arguments and their execution. Each command opens a node, makes
//! its requests, and prints the answers.

pub(crate) mod backup;
#[cfg(feature = "bench")]
pub(crate) mod bench;
pub(crate) mod cache;
pub(crate) mod cluster;
pub(crate) mod commit;
pub(crate) mod consume;
pub(crate) mod coordinate;
mod diagnosis;
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod groups;
pub(crate) mod history;
pub(crate) mod import;
mod input;
mod interrupt;
pub(crate) mod keyspaces;
pub(crate) mod kv;
pub(crate) mod log;
pub(crate) mod migrate;
mod opening;
pub(crate) mod plan;
mod record;
mod reload;
mod repair;
pub(crate) mod serve;
pub(crate) mod space;
pub(crate) mod state;
pub(crate) mod status;
mod stop;
pub(crate) mod stream;
pub(crate) mod streams;
pub(crate) mod subjects;
pub(crate) mod time;
pub(crate) mod top;
pub(crate) mod watch;
