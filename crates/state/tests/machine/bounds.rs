//! Tables of the space that are full: a typed outcome, nothing happens, and there is room again after something goes.

use std::time::Duration;

use thalweg_state::machine::MachineOptions;
use thalweg_types::{
    GroupId, KeyspaceId, LeaseId, StreamId,
    command::{
        self, CommitBuilder, Deadline, KeyspaceConfig, Outcome, StreamConfig,
        groups::{GroupConfig, GroupOutcome, encode_create_group, encode_delete_group},
    },
    limits::{MAX_GROUPS, MAX_LEASES},
};

use crate::support::{Bench, command};

const KS: KeyspaceId = KeyspaceId(1);

fn bench() -> Bench {
    let mut bench = Bench::new(MachineOptions::default());
    let keyspace = command(|out| command::encode_create_keyspace(out, "k", &KeyspaceConfig::default()).unwrap());
    let stream = command(|out| command::encode_create_stream(out, "s", &StreamConfig::default()).unwrap());
    bench.run(1, &[keyspace, stream]);
    bench
}

#[test]
fn leases_have_a_limit_that_counts_ended_ones_with_keys() {
    let mut bench = bench();
    let grant =
        |id: u64| command(|out| command::encode_grant_lease(out, Some(LeaseId(id)), Duration::from_secs(10)).unwrap());
    let all: Vec<_> = (1..=MAX_LEASES as u64).map(grant).collect();
    for some in all.chunks(4096) {
        assert!(bench.run(2, some).iter().all(|outcome| matches!(outcome, Outcome::Lease { .. })));
    }
    let next = MAX_LEASES as u64 + 1;
    let full = Outcome::TooMany { what: "leases", limit: MAX_LEASES };
    assert_eq!(bench.run(3, &[grant(next)]), vec![full.clone()]);
    bench.reopen();
    let mut attached = CommitBuilder::new();
    attached.put_until(KS, b"key", b"", Deadline::Default, Some(LeaseId(1))).unwrap();
    assert_eq!(bench.run(4, &[command(|out| attached.encode(out)), grant(next)])[1], full, "also after a restart");
    let revoke = |id| command(|out| command::encode_revoke_lease(out, LeaseId(id)));
    let outcomes = bench.run(5, &[revoke(2), grant(next), grant(next + 1)]);
    assert!(matches!(outcomes[1], Outcome::Lease { .. }), "{outcomes:?}");
    assert_eq!(outcomes[2], full);
}

#[test]
fn consumer_groups_have_a_limit() {
    let mut bench = bench();
    let create = |number: usize| {
        let name = format!("g{number}");
        command(|out| encode_create_group(out, StreamId(1), &name, None, &GroupConfig::default()).unwrap())
    };
    let all: Vec<_> = (0..MAX_GROUPS).map(create).collect();
    for some in all.chunks(1000) {
        let created =
            |outcome: &Outcome| matches!(outcome, Outcome::Group(GroupOutcome::Created { created: true, .. }));
        assert!(bench.run(2, some).iter().all(created));
    }
    let full = Outcome::TooMany { what: "consumer groups", limit: MAX_GROUPS };
    assert_eq!(bench.run(3, &[create(MAX_GROUPS)]), vec![full.clone()]);
    bench.reopen();
    assert_eq!(bench.run(4, &[create(MAX_GROUPS)]), vec![full.clone()]);
    let delete = command(|out| encode_delete_group(out, GroupId(7)));
    let outcomes = bench.run(5, &[delete, create(MAX_GROUPS), create(MAX_GROUPS + 1)]);
    assert_eq!(outcomes[2], full, "{outcomes:?}");
    assert_ne!(outcomes[1], full);
}
