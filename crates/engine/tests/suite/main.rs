//! The database under faults, at its bounds, and against models. `../semantic` tests the behaviour that users see.

#![allow(unreachable_pub, reason = "a test program has no interface")]
#![allow(clippy::print_stdout, reason = "seeds and figures are printed")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../redis/tests/support/mod.rs"]
mod oracle;
#[allow(clippy::duplicate_mod, reason = "the oracle loads it as well")]
#[path = "../../../thalweg/tests/node/skip.rs"]
mod skip;

mod budget;
mod clocks;
mod cluster;
mod consensus;
mod dead_letters;
mod failures;
mod full_disk;
mod group_pages;
mod install_power_loss;
mod large_groups;
mod member_identity;
mod members;
mod migrate;
mod model;
mod mover;
mod power_loss;
mod power_loss_compaction;
mod producers;
mod read_ahead;
mod reclaim_safety;
mod redis_oracle;
mod release;
mod repair;
mod snapshot;
mod space;
mod state_digest;
mod state_files;
mod state_version;
mod stepped;
mod truncations;
mod undercount;
mod watch_bounds;
