//! A member's note about the repair of its own state: a file in its directory.
//!
//! Owns: the file `REPAIR`. Does not own: the calls that read and replace it (`member`), the decision to repair, and
//! the repair (crate `cluster`).
//!
//! ```text
//! thalweg repair 1
//! done 1024                                 last entry of the snapshot that has replaced the state before
//! due 2048                                  entry after which the state was found to be wrong
//! member 00f3c2a41b5d6e70 10.0.0.2:7072     one line for each member that can give its state
//! crc 010d869c                              see `text_file`
//! ```
//! The file outlives the process. So a node with a wrong state does not serve before it has another state, also after a
//! restart. If its state is wrong again after a repair, the node does not repair it a second time without an operator.
//!
//! Invariant: the file is replaced as a whole, and is on disk when a call returns.

use std::{fmt::Write as _, io, sync::Arc};

use thalweg_disk::Disk;
use thalweg_types::{Index, NodeId};

use crate::text_file::TextFile;

const FILE: TextFile = TextFile { path: "REPAIR", temporary: "REPAIR.tmp", max_bytes: 64 * 1024 };
const FIRST_LINE: &str = "thalweg repair 1\n";

/// A member's record of the repairs of its own state: the last repair that it made, and the repair that it needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RepairNote {
    /// Last log entry of the snapshot with which the member has replaced its own state, without an operator. `None` if
    /// the member never did this, or if an operator has repaired the member later.
    pub done: Option<Index>,
    /// Repair that the member needs; it serves no requests before this repair. `None` if it needs none.
    pub due: Option<RepairDue>,
}

/// Repair that a member's state needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairDue {
    /// Entry after which the state was found to be damaged, or to differ from that of a majority of the members.
    pub after: Index,
    /// Members that can give their states, with their addresses for other nodes. Empty until the member knows a
    /// majority whose states are equal.
    pub sources: Vec<(NodeId, String)>,
}

impl RepairNote {
    fn encode(&self) -> String {
        let mut text = FIRST_LINE.to_owned();
        // Writing to a string cannot fail.
        if let Some(done) = self.done {
            let _ = writeln!(text, "done {}", done.0);
        }
        if let Some(due) = &self.due {
            let _ = writeln!(text, "due {}", due.after.0);
            // An address with white space would break the format of the line. No node can be reached at such an
            // address.
            let usable = due.sources.iter().filter(|(_, at)| !at.is_empty() && !at.contains(char::is_whitespace));
            usable.for_each(|(node, at)| _ = writeln!(text, "member {:016x} {at}", node.0));
        }
        text
    }

    fn decode(text: &str) -> Option<Self> {
        let mut note = Self::default();
        for line in text.strip_prefix(FIRST_LINE)?.lines() {
            match line.split_once(' ')? {
                ("done", index) => note.done = Some(Index(index.parse().ok()?)),
                ("due", after) => note.due = Some(RepairDue { after: Index(after.parse().ok()?), sources: Vec::new() }),
                ("member", member) => {
                    let (node, address) = member.split_once(' ')?;
                    let node = NodeId(u64::from_str_radix(node, 16).ok()?);
                    note.due.as_mut()?.sources.push((node, address.to_owned()));
                }
                _ => return None,
            }
        }
        (note.encode() == text).then_some(note)
    }

    /// Reads the note about repairs. Returns the default if there is no file, and `InvalidData` if the file is damaged.
    pub(crate) fn read(disk: &Arc<dyn Disk>) -> io::Result<Self> {
        Ok(FILE.read(&**disk, Self::decode)?.unwrap_or_default())
    }

    /// Replaces the file by this note about repairs; removes the file if the note is the default.
    pub(crate) fn write(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        if *self == Self::default() { FILE.remove(&**disk) } else { FILE.replace(&**disk, &self.encode()) }
    }

    /// Adds the missing checksum line to a file `REPAIR` that an early development build has written.
    pub(crate) fn add_checksum(disk: &Arc<dyn Disk>) -> io::Result<()> {
        FILE.add_checksum(&**disk, |text| Self::decode(text).map(|note| note.encode()))
    }
}

#[cfg(test)]
mod tests {
    use thalweg_disk::SimDisk;
    use thalweg_types::ManualClock;

    use super::*;
    use crate::{
        database::Database,
        options::{BackendKind, Options},
        text_file::tests::{each_flipped_bit_is_found, is_documented, put},
    };

    fn due() -> RepairNote {
        let sources = [(NodeId(0xabc), "10.0.0.2:7072"), (NodeId(7), "[::1]:1")];
        let sources = sources.map(|(node, at)| (node, at.to_owned())).into();
        RepairNote { done: Some(Index(5)), due: Some(RepairDue { after: Index(2048), sources }) }
    }

    #[test]
    fn comes_back_and_refuses_anything_else() {
        let text = "thalweg repair 1\ndone 5\ndue 2048\nmember 0000000000000abc 10.0.0.2:7072\n\
                    member 0000000000000007 [::1]:1\n";
        assert_eq!(due().encode(), text);
        for note in [due(), RepairNote { done: None, ..due() }, RepairNote { due: None, ..due() }] {
            assert_eq!(RepairNote::decode(&note.encode()), Some(note));
        }
        for bad in ["", "thalweg repair 2\ndone 5\n", "thalweg repair 1\ndone 5", &text[1..]] {
            assert_eq!(RepairNote::decode(bad), None, "{bad:?}");
        }
        let member = "member 0000000000000007 a:1\n";
        for more in ["done 05\n", "due 5\ndone 5\n", "due 5\nmember 7 a:1\n", "gone 5\n", "done 5\n\n", member] {
            assert_eq!(RepairNote::decode(&format!("{FIRST_LINE}{more}")), None, "{more:?}");
        }
        let mut odd = due();
        odd.due.as_mut().unwrap().sources.extend([(NodeId(1), String::new()), (NodeId(2), "a\ndone 1".to_owned())]);
        assert_eq!(RepairNote::decode(&odd.encode()), Some(due()), "addresses that lead nowhere are left out");
    }

    fn open(disk: &SimDisk) -> Database {
        let options = Options { backend: Some(BackendKind::Memory), reserve_bytes: 0, ..Options::default() };
        Database::open_on(Arc::new(disk.clone()), Arc::new(ManualClock::default()), 5, options).unwrap()
    }

    #[test]
    fn the_note_of_an_early_build_gets_a_checksum_at_an_open_and_each_flipped_bit_is_found() {
        let nodes = [(0x00f3_c2a4_1b5d_6e70, "10.0.0.2:7072"), (0x5b1f_0c2d_9e8a_7463, "10.0.0.3:7072")];
        let sources = nodes.map(|(node, at)| (NodeId(node), at.to_owned())).into();
        let documented = RepairDue { after: Index(3072), sources };
        assert!(is_documented(&RepairNote { done: Some(Index(1024)), due: Some(documented) }.encode()));
        let disk = SimDisk::new(1);
        put(&disk, "REPAIR", &due().encode());
        let db = open(&disk);
        assert_eq!(db.repair_note().unwrap(), due());
        drop(db);
        each_flipped_bit_is_found(&disk, "REPAIR", &|flipped| {
            let read = FILE.read(flipped, RepairNote::decode);
            read.is_err_and(|error| error.kind() == io::ErrorKind::InvalidData)
        });
        // The open does not check the note; consensus reports a damaged one.
        put(&disk, "REPAIR", "thalweg repair 2\n");
        assert_eq!(open(&disk).repair_note().unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(disk.cached_bytes("REPAIR").unwrap(), b"thalweg repair 2\n");
    }

    #[test]
    fn a_note_survives_a_power_loss_and_can_be_removed() {
        let disk = SimDisk::new(1);
        let db = open(&disk);
        assert_eq!(db.repair_note().unwrap(), RepairNote::default());
        for note in [due(), RepairNote { due: None, ..due() }, RepairNote::default()] {
            db.note_repair(&note).unwrap();
            assert_eq!(open(&disk.power_loss(3)).repair_note().unwrap(), note);
        }
    }
}
