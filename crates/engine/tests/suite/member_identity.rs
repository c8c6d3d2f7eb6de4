//! The part of a directory in a cluster: founding, joining, opening it alone again, and the opens that are refused.

use std::{path::Path, sync::Arc};

use thalweg_disk::{Disk, RealDisk, SimDisk};
use thalweg_engine::{
    BackendKind, Database, DigestReport, MemberIdentity, OpenError, Options, PutOptions, Repair,
    types::{
        Action, Classified, ClusterId, Durability, Index, SpaceTime,
        limits::{MAX_COMMAND_BYTES, MIN_MEMBER_SEGMENT_BYTES},
    },
};
use thalweg_replica::Leadership;

use crate::{
    cluster::{Group, Node, TERM, keeping},
    common::{batch, clock, pause, small},
};

/// Returns the identity file without its checksum, which must be right.
fn identity_of(disk: &dyn Disk) -> String {
    let file = disk.open("IDENTITY").unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (content, checksum) = text.split_at(text.find("crc ").unwrap());
    assert_eq!(checksum, format!("crc {:08x}\n", thalweg_log::crc32c(content.as_bytes())));
    content.to_owned()
}

fn open(disk: &Arc<dyn Disk>, options: &Options, member: Option<MemberIdentity>) -> Result<Database, OpenError> {
    let options = &Options { segment_bytes: MIN_MEMBER_SEGMENT_BYTES, ..options.clone() };
    match member {
        None => Database::open_on(disk.clone(), clock(), 0xabc, options.clone()),
        Some(identity) => Database::open_member_on(disk.clone(), clock(), 0xabc, options.clone(), identity),
    }
}

fn code(opened: Result<Database, OpenError>) -> &'static str {
    opened.map(drop).expect_err("refused").code()
}

fn digest(db: &Database) -> Arc<DigestReport> {
    db.state_view().digest(&mut |_| {}).unwrap()
}

/// Writes through a member of a group of one, which this thread's helper commits.
fn write_as_member(db: &Database, number: u8) {
    let parts = db.member_parts().unwrap();
    parts.member.set_leadership(Leadership::Leader { term: TERM });
    let last = parts.machine.applied().index;
    let commit = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let keyspace = db.keyspace_by_id(db.find_keyspace("k").unwrap().id()).unwrap();
            let ack = keyspace.put(&[number], &vec![number; 400]).unwrap();
            assert_eq!(ack.durability, Durability::Quorum, "every level is raised");
        });
        let batch = loop {
            match parts.member.take_batch() {
                Some(batch) => break batch,
                None => pause(),
            }
        };
        let payload = [std::io::IoSlice::new(batch.payload())];
        let draft = thalweg_log::Draft {
            space: thalweg_engine::types::SpaceId::ZERO,
            kind: thalweg_log::RecordKind::Entry,
            term: TERM,
            index: last.next(),
            time: parts.member.clock().stamp(),
            payload: &payload,
        };
        let appended = parts.log.append(&[draft], Durability::Disk, thalweg_log::Purpose::Data).unwrap();
        let record = parts.log.records_from(appended.first).unwrap().next().unwrap().unwrap();
        let mut outcomes = Vec::new();
        parts.member.apply(record.index, Some(&record), true, &mut outcomes).unwrap();
        batch.complete(outcomes, None);
        writer.join()
    });
    commit.unwrap();
    assert_eq!(parts.machine.applied().index, last.next());
}

fn there_and_back(disk: &Arc<dyn Disk>, options: &Options) {
    let db = open(disk, options, None).unwrap();
    let (keyspace, stream) = (db.keyspace("k").unwrap(), db.stream("s").unwrap());
    for number in 0..8_u8 {
        keyspace.put(&[number], &vec![number; if number % 3 == 0 { 400 } else { 20 }]).unwrap();
        stream.append(&batch(&[vec![number; 50]])).unwrap();
    }
    let (alone, node) = (digest(&db), db.report().node);
    assert_eq!(db.report().cluster, None);
    assert!(db.member_parts().is_none() && db.hash_marks().is_empty());
    db.close().unwrap();
    drop((keyspace, stream, db));
    let backend = options.backend.unwrap().name();
    let old = format!("thalweg 1\nnode 0000000000000abc\nbackend {backend}\n");
    assert_eq!(identity_of(&**disk), old, "a directory that was never in a cluster keeps the old version");

    let db = open(disk, options, Some(MemberIdentity::Found)).unwrap();
    let cluster = db.report().cluster.expect("drawn");
    assert_eq!(db.report().node, node);
    assert_eq!(digest(&db).state, alone.state, "founding changes nothing");
    let found = format!("thalweg 2\nnode 0000000000000abc\nbackend {backend}\ncluster {cluster}\norigin founded\n");
    assert_eq!(identity_of(&**disk), found);
    write_as_member(&db, 3);
    write_as_member(&db, 100);
    let member = digest(&db);
    db.close().unwrap();
    drop(db);

    let db = open(disk, options, Some(MemberIdentity::Existing)).unwrap();
    let parts = db.member_parts().unwrap();
    for record in parts.log.records_from(parts.machine.applied().lsn).unwrap().map(Result::unwrap) {
        if record.kind.has_index() {
            parts.member.apply(record.index, Some(&record), true, &mut Vec::new()).unwrap();
        }
    }
    assert_eq!((db.report().cluster, digest(&db).state.digest), (Some(cluster), member.state.digest));
    db.close().unwrap();
    drop((parts, db));

    let db = open(disk, options, None).unwrap();
    assert_eq!(identity_of(&**disk), found, "the directory remembers its cluster");
    let back = digest(&db);
    assert_eq!((back.state.digest, back.state.applied.index), (member.state.digest, member.state.applied.index));
    assert_eq!(back.state.applied.running_hash, member.state.applied.running_hash);
    let keyspace = db.find_keyspace("k").unwrap();
    assert_eq!(keyspace.get(&[100]).unwrap().unwrap().value, vec![100; 400]);
    assert_eq!(keyspace.put(b"alone", b"again").unwrap().durability, Durability::Disk);
    let again = open(disk, options, Some(MemberIdentity::Found));
    assert_eq!(code(again), "locked");
    drop((keyspace, db));
    let db = open(disk, options, Some(MemberIdentity::Found)).unwrap();
    assert_eq!(db.report().cluster, Some(cluster), "a founder opens as a member of the cluster that it founded");
}

#[test]
fn a_directory_founds_a_cluster_and_goes_back_on_the_simulated_disk() {
    for backend in [BackendKind::Memory, BackendKind::Redb] {
        there_and_back(&(Arc::new(SimDisk::new(1)) as _), &small(backend));
    }
}

#[test]
fn a_directory_founds_a_cluster_and_goes_back_on_the_real_disk() {
    for backend in [BackendKind::Lsm, BackendKind::Sqlite] {
        let dir = tempfile::tempdir().unwrap();
        there_and_back(&(Arc::new(RealDisk::open(dir.path()).unwrap()) as _), &small(backend));
    }
}

#[test]
fn only_a_directory_without_data_joins_and_only_one_cluster() {
    let (cluster, other) = (ClusterId(7), ClusterId(8));
    let options = small(BackendKind::Memory);
    let founder: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    open(&founder, &options, None).unwrap();
    assert_eq!(code(open(&founder, &options, Some(MemberIdentity::Join { cluster }))), "has_own_data");
    assert_eq!(code(open(&founder, &options, Some(MemberIdentity::Existing))), "not_a_member");
    let joiner: Arc<dyn Disk> = Arc::new(SimDisk::new(2));
    assert_eq!(code(open(&joiner, &options, Some(MemberIdentity::Existing))), "missing_directory");
    let db = open(&joiner, &options, Some(MemberIdentity::Join { cluster })).unwrap();
    assert_eq!(db.report().cluster, Some(cluster));
    drop(db);
    let text = format!("thalweg 2\nnode 0000000000000abc\nbackend memory\ncluster {cluster}\norigin joining\n");
    assert_eq!(identity_of(&*joiner), text);
    assert_eq!(code(open(&joiner, &options, Some(MemberIdentity::Join { cluster: other }))), "other_cluster");
    assert_eq!(code(open(&joiner, &options, Some(MemberIdentity::Found))), "already_member");
    assert_eq!(code(open(&joiner, &options, None)), "nothing_received");
    open(&joiner, &options, Some(MemberIdentity::Join { cluster })).unwrap();
    open(&joiner, &options, Some(MemberIdentity::Existing)).unwrap();
}

#[test]
fn a_joined_directory_whose_log_is_gone_does_not_come_back() {
    let group = Group::founded(2, &keeping());
    group.leader().db.member_parts().unwrap();
    let Group { mut nodes, clock, cluster } = group;
    let Node { db, parts, disk } = nodes.pop().unwrap();
    assert!(identity_of(&disk).ends_with("origin joining\n"));
    parts.log.sync().unwrap();
    drop(parts);
    db.maintain().unwrap();
    assert!(identity_of(&disk).ends_with("origin joined\n"), "maintenance has noted it");
    drop(db);
    let reopened = Node::open(&disk, &clock, 9, &keeping(), MemberIdentity::Join { cluster });
    assert_eq!(reopened.db.report().node.0, 2, "the id of the node stays");
    drop(reopened);
    for file in disk.list("log").unwrap() {
        Disk::remove(&disk, &format!("log/{file}")).unwrap();
    }
    let disk: Arc<dyn Disk> = Arc::new(disk);
    for part in [None, Some(MemberIdentity::Existing), Some(MemberIdentity::Join { cluster })] {
        assert_eq!(code(open(&disk, &keeping(), part)), "log_lost");
    }
}

#[test]
fn the_log_of_a_member_is_not_cut() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let options = Options { repair: Repair::CutAtCorruption, ..small(BackendKind::Memory) };
    assert_eq!(code(open(&disk, &options, Some(MemberIdentity::Found))), "cannot_repair_member");
}

#[test]
fn a_member_whose_segments_are_too_small_for_the_largest_entry_is_not_opened() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let with = |segment_bytes| Options { segment_bytes, ..small(BackendKind::Memory) };
    let small = with(MIN_MEMBER_SEGMENT_BYTES - 4096);
    for identity in [MemberIdentity::Found, MemberIdentity::Join { cluster: ClusterId(7) }, MemberIdentity::Existing] {
        let refused = Database::open_member_on(disk.clone(), clock(), 1, small.clone(), identity).unwrap_err();
        assert_eq!((refused.code(), refused.action()), ("small_segments", Action::Fix));
        assert!(refused.to_string().contains("set segment_bytes (`serve --segment-bytes`)"), "{refused}");
        assert!(disk.list("").unwrap().is_empty(), "nothing was created");
    }
    let enough = with(MIN_MEMBER_SEGMENT_BYTES);
    let db = Database::open_member_on(disk.clone(), clock(), 1, enough, MemberIdentity::Found).unwrap();
    let parts = db.member_parts().unwrap();
    // The length of a command, and the command.
    let largest = vec![7; 4 + MAX_COMMAND_BYTES];
    let draft = thalweg_log::Draft {
        space: thalweg_engine::types::SpaceId::ZERO,
        kind: thalweg_log::RecordKind::Entry,
        term: TERM,
        index: Index(100),
        time: SpaceTime(1_700_000_000_000_000),
        payload: &[std::io::IoSlice::new(&largest)],
    };
    parts.log.append(&[draft], Durability::Os, thalweg_log::Purpose::Data).unwrap();
    Database::open_on(Arc::new(SimDisk::new(2)), clock(), 1, small).expect("a node alone rejects what does not fit");
}

/// A member of several cannot be opened alone, however much of the log it has applied.
#[test]
fn a_member_beside_others_does_not_open_alone() {
    use thalweg_replica::{Membership, NodeInfo};
    let disk = SimDisk::new(1);
    let node = Node::open(&disk, &clock(), 0xabc, &keeping(), MemberIdentity::Found);
    let voters = [0xabc, 2].map(thalweg_engine::types::NodeId);
    let members = voters.map(|node| (node, NodeInfo::default()));
    let membership = Membership::new(vec![voters.into()], members.into()).unwrap();
    let time = SpaceTime(1_700_000_000_000_000);
    node.append(thalweg_log::RecordKind::Membership, (TERM, Index(1)), time, &membership.encode());
    drop(node);
    let disk: Arc<dyn Disk> = Arc::new(disk);
    assert_eq!(code(open(&disk, &keeping(), None)), "not_alone");
    open(&disk, &keeping(), Some(MemberIdentity::Existing)).unwrap();
}

/// A key that a reader of the node alone saw ended does not appear again on the member, whose reads use the time of its
/// last entry.
#[test]
fn what_a_node_alone_has_hidden_stays_hidden_on_the_member() {
    for there_first in [false, true] {
        let (disk, clock) = (SimDisk::new(1), clock());
        let options = keeping();
        let open_alone = || Database::open_on(Arc::new(disk.clone()), clock.clone(), 1, options.clone()).unwrap();
        if there_first {
            drop(Node::open(&disk, &clock, 1, &options, MemberIdentity::Found));
        }
        let db = open_alone();
        let keyspace = db.keyspace("k").unwrap();
        keyspace.put_with(b"a", b"1", &PutOptions::lasting(std::time::Duration::from_secs(10))).unwrap();
        clock.advance(std::time::Duration::from_secs(11));
        assert_eq!(keyspace.get(b"a").unwrap(), None);
        let killed = disk.kill_process();
        let how = if there_first { MemberIdentity::Existing } else { MemberIdentity::Found };
        let member = Node::open(&killed, &clock, 1, &options, how);
        member.apply_all();
        assert_eq!(member.db.find_keyspace("k").unwrap().get(b"a").unwrap(), None);
        let before = member.parts.machine.applied().time;
        assert!(member.db.space_time() >= before.max(SpaceTime(1_700_000_011_000_000)));
    }
}

#[test]
fn earlier_versions_of_the_file_open() {
    let dir = tempfile::tempdir().unwrap();
    let path: &Path = dir.path();
    let options = small(BackendKind::Memory);
    Database::open(path, options.clone()).unwrap().close().unwrap();
    let text = "thalweg 1\nnode 00f3c2a41b5d6e70\nbackend memory\n";
    std::fs::write(path.join("IDENTITY"), text).unwrap();
    // The membership in the log names the node that founded it.
    let error = Database::open(path, options).map(drop).expect_err("of another node");
    assert_eq!(error.code(), "not_alone");
    assert_eq!(identity_of(&RealDisk::open(path).unwrap()), text, "the file has got a checksum");
}

#[test]
fn a_wrong_digit_of_the_node_does_not_make_it_another_node() {
    let dir = tempfile::tempdir().unwrap();
    let options = small(BackendKind::Memory);
    Database::open(dir.path(), options.clone()).unwrap().close().unwrap();
    let path = dir.path().join("IDENTITY");
    let mut bytes = std::fs::read(&path).unwrap();
    let digit = "thalweg 1\nnode ".len();
    bytes[digit] = if bytes[digit] == b'0' { b'1' } else { b'0' };
    std::fs::write(&path, &bytes).unwrap();
    let error = Database::open(dir.path(), options).map(drop).expect_err("damaged");
    assert_eq!((error.code(), error.action()), ("bad_identity", Action::Stop));
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing was written");
}
