//! openraft's own test suite for logs, on our log: reading, truncating, purging, votes, start.
//!
//! Two kinds of its tests are left out. Some apply entries that no log contains, but our state points into
//! the log. Others move snapshots, which do not carry the state yet.

use std::{future::Future, io};

use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};
use thalweg_disk::SimDisk;

use crate::{
    applier::Applier,
    node::Parts,
    store::Store,
    types::{Types, run},
};

struct Builder;

impl StoreBuilder<Types, Store, Applier> for Builder {
    async fn build(&self) -> Result<((), Store, Applier), StorageError<Types>> {
        let (store, applier) = fresh();
        Ok(((), store, applier))
    }
}

fn fresh() -> (Store, Applier) {
    let parts = Parts::open(&SimDisk::new(1));
    let store = Store::open(parts.log.clone(), &parts.machine).unwrap();
    (store.clone(), Applier::new(parts.machine, store))
}

type Tests = Suite<Types, Store, Applier, Builder, ()>;

async fn passes<T: Future<Output = io::Result<()>>>(name: &str, test: impl FnOnce(Store, Applier) -> T) {
    let (store, applier) = fresh();
    test(store, applier).await.unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Runs the tests in parallel, because some of openraft's tests sleep for a second.
macro_rules! all_pass {
    ($($name:ident),+ $(,)?) => {
        std::thread::scope(|scope| {
            $(scope.spawn(|| run(passes(stringify!($name), Tests::$name)));)+
        })
    };
}

#[test]
fn entries_are_read_truncated_and_purged() {
    all_pass!(
        initial_logs,
        get_log_entries,
        limited_get_log_entries,
        leader_bounded_stream,
        entries_stream,
        try_get_log_entry,
        log_reader_reads_new_entries,
        get_log_state,
        get_log_id,
        append_to_log,
        purge_logs_upto_0,
        purge_logs_upto_5,
        purge_logs_upto_20,
        delete_logs_after_11,
        delete_logs_after_5,
        delete_logs_after_0,
        delete_logs_after_none,
    );
}

#[test]
fn votes_and_memberships_are_found_at_start() {
    all_pass!(
        save_vote,
        last_membership_in_log_initial,
        last_membership_in_log_multi_step,
        get_membership_initial,
        get_membership_from_log_and_empty_sm,
        get_initial_state_without_init,
        get_initial_state_log_ids,
    );
}
