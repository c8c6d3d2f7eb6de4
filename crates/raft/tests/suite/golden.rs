//! The records that openraft's writes become, byte by byte (`docs/formats/membership.md`).

use std::collections::BTreeSet;

use openraft::EntryPayload;
use thalweg_disk::SimDisk;
use thalweg_log::RecordKind;
use thalweg_raft::{Base, RaftEntry, RaftMembership, StoreOptions};
use thalweg_replica::NodeInfo;
use thalweg_types::Lsn;

use crate::common::*;

#[test]
fn writes_become_these_records_and_come_back() {
    run(async {
        let disk = SimDisk::new(1);
        let mut space_log = SpaceLog::open(&disk);
        let nodes = [(1, NodeInfo { name: "ax".to_owned(), ..NodeInfo::at("a:1") }), (2, NodeInfo::at("b"))];
        let membership = RaftMembership::new(
            vec![BTreeSet::from([1])],
            nodes.into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        );
        let membership = EntryPayload::Membership(membership.unwrap());
        let other = |index, payload| RaftEntry { log_id: log_id(1, index), payload };
        let first =
            vec![other(0, membership), other(1, EntryPayload::Blank), entry(1, 2, 3), other(3, EntryPayload::Blank)];
        space_log.append(first.clone()).await.unwrap();
        for op in [Op::Vote(vote(2, 7, false)), Op::Vote(vote(2, 7, true)), Op::Truncate(3), Op::Purge(log_id(1, 1))] {
            space_log.perform(&op).await.unwrap();
        }
        space_log.append(vec![RaftEntry { log_id: log_id(2, 3), payload: EntryPayload::Blank }]).await.unwrap();

        let named =
            b"\0\x01\x01\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\0\0\0\0\x02ax\x03\0a:1\x02\0\0\0\0\0\0\0\0\x01\0b";
        let EntryPayload::Normal(commands) = &first[2].payload else { panic!("an entry with commands") };
        // Kind, term, index, space time, payload. The entry with commands has time 1002.
        let expected: [(RecordKind, u64, u64, u64, &[u8]); 9] = [
            (RecordKind::Membership, 1, 0, 0, named),
            (RecordKind::Blank, 1, 1, 0, b""),
            (RecordKind::Entry, 1, 2, 1002, &commands.bytes),
            (RecordKind::Blank, 1, 3, 1002, b""),
            (RecordKind::Vote, 2, 0, 1002, b"\x02\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\0"),
            (RecordKind::Vote, 2, 0, 1002, b"\x02\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x01"),
            (RecordKind::Truncate, 0, 3, 1002, b""),
            (RecordKind::Purged, 1, 1, 0, b""),
            (RecordKind::Blank, 2, 3, 1002, b""),
        ];
        let records: Vec<_> = space_log.log.records_from(Lsn(0)).unwrap().map(Result::unwrap).collect();
        assert!(records.iter().all(|record| record.space == SPACE));
        let found: Vec<_> = records
            .iter()
            .map(|record| (record.kind, record.term.0, record.index.0, record.time.0, &record.payload[..]))
            .collect();
        assert_eq!(found, expected);

        let mut space_log =
            SpaceLog::try_open(&disk.kill_process(), &Base::default(), StoreOptions::default()).unwrap();
        let content = Content::of(&mut space_log).await;
        let last = RaftEntry { log_id: log_id(2, 3), payload: EntryPayload::Blank };
        assert_eq!(content.entries, [first[2].clone(), last]);
        assert_eq!((content.purged, content.vote), (Some(log_id(1, 1)), Some(vote(2, 7, true))));
    });
}

#[test]
fn the_newest_membership_is_found_at_open_unless_it_is_void() {
    run(async {
        let disk = SimDisk::new(2);
        let mut space_log = SpaceLog::open(&disk);
        let of = |node: u64| {
            let nodes = std::collections::BTreeMap::from([(node, NodeInfo::default())]);
            EntryPayload::Membership(RaftMembership::new(vec![BTreeSet::from([node])], nodes).unwrap())
        };
        let entries =
            [(0, 1), (1, 2), (2, 3)].map(|(index, node)| RaftEntry { log_id: log_id(1, index), payload: of(node) });
        space_log.append(entries.to_vec()).await.unwrap();
        space_log.perform(&Op::Truncate(2)).await.unwrap();
        for _ in 0..2 {
            let (id, membership) = space_log.store.reader().membership().unwrap();
            assert_eq!((id.index.0, membership.sole_voter().unwrap().0), (1, 2));
            space_log = SpaceLog::open(&disk.kill_process());
        }
    });
}
