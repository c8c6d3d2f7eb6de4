//! Faults in the data directory of a stopped member. Tests of other crates include this file by its path.

use std::{io::IoSlice, path::Path};

use thalweg_engine::Database;
use thalweg_log::{Draft, Purpose, RecordKind};
use thalweg_types::{
    Durability, SpaceId,
    command::{Framed, encode_put},
};

/// Changes a member as a fault of its memory might: it applies the next entry with another effect than the other nodes.
/// The member has the keyspace `k`.
pub fn apply_differently(db: &Database) {
    let (parts, keyspace) = (db.member_parts().unwrap(), db.find_keyspace("k").unwrap().id());
    let mut command = Framed::new();
    command.encode(|out| encode_put(out, keyspace, b"only here", b"value")).unwrap();
    let applied = parts.machine.applied();
    let payload = [IoSlice::new(command.bytes())];
    let (kind, index) = (RecordKind::Entry, applied.index.next());
    let (term, time) = (applied.term, applied.time);
    let draft = Draft { space: SpaceId::ZERO, kind, term, index, time, payload: &payload };
    let lsn = parts.log.append(&[draft], Durability::Disk, Purpose::Data).unwrap().first;
    let record = parts.log.records_from(lsn).unwrap().next().unwrap().unwrap();
    parts.member.apply(index, Some(&record), true, &mut Vec::new()).unwrap();
}

/// Changes bytes in all tables of a stopped node, as a failing disk might. The tables' indexes stay.
pub fn damage_tables(data: &Path) {
    let mut damaged = 0;
    for table in std::fs::read_dir(data.join("state/default/lsm/tables")).unwrap() {
        let path = table.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        // The first blocks have the rows that an open needs.
        if bytes.len() > 100_000 {
            let middle = bytes.len() / 2;
            bytes[middle..middle + 8].iter_mut().for_each(|byte| *byte ^= 0xff);
            std::fs::write(path, bytes).unwrap();
            damaged += 1;
        }
    }
    assert!(damaged > 0, "no table is large");
}
