//! The state machine through its public API, over a map.

mod backends;
mod behaviour;
mod bounds;
mod compaction;
mod concurrent;
mod garbage;
mod golden;
mod group;
mod group_rows;
mod groups;
mod groups_commit;
mod groups_model;
mod history;
mod model;
mod producers;
mod ranges;
mod replay;
mod support;
mod time;
mod time_model;
mod time_transactions;
mod transactions;
mod versions;
mod workload;
mod workload_kv;
