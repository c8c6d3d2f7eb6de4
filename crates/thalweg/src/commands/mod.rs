//! One module per group of commands: their arguments, and what they do. Each command opens a node, makes its requests,
//! and prints the answers.

pub mod backup;
#[cfg(feature = "bench")]
pub mod bench;
pub mod cache;
pub mod cluster;
pub mod commit;
pub mod consume;
pub mod coordinate;
mod diagnosis;
pub mod doctor;
pub mod export;
pub mod groups;
pub mod history;
pub mod import;
mod input;
mod interrupt;
pub mod keyspaces;
pub mod kv;
pub mod log;
pub mod migrate;
mod opening;
pub mod plan;
mod record;
mod reload;
mod repair;
pub mod serve;
pub mod space;
pub mod state;
pub mod status;
mod stop;
pub mod stream;
pub mod streams;
pub mod subjects;
pub mod time;
pub mod top;
pub mod watch;
