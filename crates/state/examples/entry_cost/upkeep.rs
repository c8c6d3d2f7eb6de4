//! Part of the example `entry_cost`: searches for the most expensive commands about leases and of maintenance. Commands
//! of maintenance have no budget of steps of work; each ends after a bounded number of rows.

use std::{cell::Cell, time::Duration};

use thalweg_state::expiry::StaleCursor;
use thalweg_types::{
    KeyspaceId, LeaseId,
    command::{self, Deadline, KeyspaceConfig, KeyspaceHistory, TransactionBuilder},
    limits::{MAX_EXPIRED_ROWS, RECLAIMED_PER_COMMAND},
};

use crate::{
    Node, Search, Space,
    data::{HISTORY, LEASE, PLAIN, REDIS, VERSIONED, attach, commit, encoded, key, multi, put_all, single, words},
    proposed,
};

const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) fn search(search: &mut Search<'_>) {
    leases(search);
    expiry(search);
    rows(search);
}

fn grant(lease: Option<LeaseId>) -> Vec<u8> {
    encoded(|out| command::encode_grant_lease(out, lease, HOUR).expect("valid"))
}

fn leases(search: &mut Search<'_>) {
    let node = search.node;
    search.kind("entry: leases granted", &|n| proposed(Space::Plain, n, &|_| grant(None)));
    search.kind("entry: leases kept alive", &|n| {
        let id = LeaseId(u64::MAX / 2 + node.machine.applied().lsn.0);
        node.must(grant(Some(id)));
        proposed(Space::Plain, n, &|_| encoded(|out| command::encode_keep_lease(out, id)))
    });
    let next = Cell::new(LEASE);
    search.kind("lease revoked", &|n| {
        next.set(LeaseId(next.get().0 + 1_000_000));
        attach(node, next.get(), n.min(20_000));
        (n <= 20_000).then(|| vec![encoded(|out| command::encode_revoke_lease(out, next.get()))])
    });
}

/// Puts keys whose deadline has passed when the next entry is applied.
fn put_ending(node: &Node, keyspace: KeyspaceId, keys: &[Vec<u8>]) {
    let deadline = Deadline::After(Duration::from_secs(3_000));
    for keys in keys.chunks(250) {
        let puts = commit(keys.len(), |commit, at| {
            commit.put_until(keyspace, &keys[at], &[b'v'; 64], deadline, None).ok().map(drop)
        });
        node.must(puts.expect("few"));
    }
    node.ahead.set(node.ahead.get() + 4_000_000_000);
}

fn expiry(search: &mut Search<'_>) {
    let node = search.node;
    let expire = |n: usize| {
        (n <= RECLAIMED_PER_COMMAND as usize).then(|| vec![encoded(|out| command::encode_expire(out, n as u32))])
    };
    let keys: Vec<_> = (0..MAX_EXPIRED_ROWS as usize).map(key).collect();
    for (name, keyspace) in [("keys expired", PLAIN), ("keys with counts expired", REDIS)] {
        search.kind(name, &|n| {
            put_ending(node, keyspace, &keys[..n.min(keys.len())]);
            expire(n)
        });
    }
    search.kind("keys with 256 versions expired", &|n| {
        put_ending(node, HISTORY, &keys[..n.min(VERSIONED)]);
        expire(n).filter(|_| n <= VERSIONED)
    });
    search.kind("rows of former deadlines forgotten", &|n| {
        put_ending(node, PLAIN, &keys[..n.min(1_000)]);
        put_all(node, PLAIN, &keys[..n.min(1_000)]);
        let stale = node.machine.stale_rows(&mut StaleCursor::default(), 1_000).expect("runs");
        (n <= 1_000)
            .then(|| vec![encoded(|out| command::encode_forget_rows(out, stale.iter().take(n).map(Vec::as_slice)))])
    });
}

fn rows(search: &mut Search<'_>) {
    let node = search.node;
    let clear = |keyspace: KeyspaceId, prefix: &[u8]| {
        let mut clear = TransactionBuilder::new();
        clear.then().delete_prefix(keyspace, prefix).expect("valid");
        node.must(encoded(|out| clear.encode(out).expect("valid")));
    };
    let sweep = |n: usize| {
        (n <= RECLAIMED_PER_COMMAND as usize).then(|| vec![encoded(|out| command::encode_sweep(out, n as u32))])
    };
    let keys: Vec<_> = (0..2_000).map(key).collect();
    search.kind("sweep of keys with versions", &|n| {
        put_all(node, HISTORY, &keys);
        clear(HISTORY, b"key:");
        sweep(n)
    });
    search.kind("sweep of hashes", &|n| {
        let set = multi(1_000, |at| words(&[b"HSET", format!("hash:{at}").as_bytes(), b"f", b"v"]));
        node.must(set.expect("few"));
        clear(REDIS, b"hash:");
        sweep(n)
    });
    search.kind("sweep of fields of a hash", &|n| {
        for part in 0..5 {
            let mut set = words(&[b"HSET", b"former"]);
            (0..1_000).for_each(|number| set.extend([key(part * 1_000 + number), vec![b'v'; 32]]));
            node.must(single(&set).expect("few"));
        }
        node.must(single(&words(&[b"DEL", b"former"])).expect("few"));
        sweep(n)
    });
    search.kind("sweep", &|n| {
        clear(PLAIN, b"key:");
        sweep(n)
    });
    search.kind("versions of a keyspace pruned", &|n| {
        let history = KeyspaceHistory { revisions: Some(256), age: None };
        let configured = |history| {
            let config = KeyspaceConfig { history, ..KeyspaceConfig::default() };
            node.must(encoded(|out| command::encode_configure_keyspace(out, HISTORY, &config).expect("valid")));
        };
        configured(history);
        (0..30).for_each(|_| put_all(node, HISTORY, &keys[..VERSIONED]));
        configured(KeyspaceHistory::default());
        (n <= RECLAIMED_PER_COMMAND as usize)
            .then(|| vec![encoded(|out| command::encode_prune_versions(out, HISTORY, n as u32))])
    });
}
