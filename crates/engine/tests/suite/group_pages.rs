//! Pages of consumer groups: each group appears once, and a page ends early if the groups have many members.

use thalweg_engine::{BackendKind, Database, FetchRequest, GroupStart, MAX_LISTED_MEMBERS};
use thalweg_types::{Durability, GroupId, command::groups::GroupConfig, record::RecordBatch};

const MEMBERS: usize = 1000;

#[test]
fn a_page_ends_with_its_limit_or_where_its_members_are_many() {
    let dir = tempfile::tempdir().unwrap();
    let db =
        Database::open(dir.path(), crate::common::small(BackendKind::Memory)).unwrap().with_durability(Durability::Os);
    let stream = db.stream("jobs").unwrap();
    let other = db.stream("other").unwrap().create_group("alone", GroupStart::Beginning, &GroupConfig::default());
    let mut batch = RecordBatch::new();
    for _ in 0..MEMBERS {
        batch.push_payload(b"x").unwrap();
    }
    stream.append(&batch).unwrap();
    let crowded = MAX_LISTED_MEMBERS / MEMBERS + 2;
    for number in 0..crowded {
        let group = stream.create_group(&format!("g{number:02}"), GroupStart::Beginning, &GroupConfig::default());
        let group = group.unwrap().0;
        for member in 0..MEMBERS {
            let request = FetchRequest { member: format!("m{member}"), max_records: 1, ..FetchRequest::default() };
            assert!(!group.fetch(&request).unwrap().is_empty());
        }
    }
    let id = Some(stream.id());
    let (page, more) = db.groups_after(id, GroupId(0), 1000).unwrap();
    assert_eq!((page.len(), more), (MAX_LISTED_MEMBERS / MEMBERS, true), "members end it");
    let (rest, more) = db.groups_after(id, page.last().unwrap().id, 1000).unwrap();
    assert_eq!((rest.len(), more), (2, false));
    let (first, more) = db.groups_after(id, GroupId(0), 3).unwrap();
    assert_eq!((&first[..], more), (&page[..3], true), "the limit ends it");
    let (all, _) = db.groups_after(None, GroupId(0), 1).unwrap();
    assert_eq!(all[0].id, other.unwrap().0.id(), "groups of all streams, ordered by id");
    db.close().unwrap();
}
