//! The repair of a member's state by itself, as a file in its directory notes it.
//!
//! Owns: the file `REPAIR`. Does not own: the decision to repair, and the repair (crate `cluster`).
//!
//! ```text
//! thalweg repair 1
//! due 2048                                  entry after which the state was found to be wrong
//! member 00f3c2a41b5d6e70 10.0.0.2:7072     one line for each member of a majority that agrees
//!
//! thalweg repair 1
//! done 3120                                 last entry of the snapshot that has replaced the state
//! ```
//! The file outlives the process: a node that is killed during a repair does not take part in its cluster before it has
//! another state, and a node whose state is wrong again after a repair does not repair it again and again.
//!
//! Invariant: the file is replaced as a whole, and is on disk when a call returns.

use std::io;

use thalweg_types::{Index, NodeId};

use crate::database::Database;

/// Name of the file.
const FILE: &str = "REPAIR";
const TEMPORARY: &str = "REPAIR.tmp";
const MAX_BYTES: u64 = 64 * 1024;
const FIRST_LINE: &str = "thalweg repair 1";

/// Repair of a member's state by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RepairNote {
    /// The state must be replaced before the node takes part in its cluster again.
    Due {
        /// Entry after which the state was found to be damaged, or to differ from that of a majority of the members.
        after: Index,
        /// Members whose states agree with each other, with their addresses for other nodes.
        members: Vec<(NodeId, String)>,
    },
    /// The state was replaced by that of another member.
    Done {
        /// Last entry of the snapshot.
        index: Index,
    },
}

impl RepairNote {
    fn encode(&self) -> String {
        match self {
            Self::Due { after, members } => {
                // An address with white space would be another line or word, and no node can be reached there.
                let usable = members.iter().filter(|(_, at)| !at.is_empty() && !at.contains(char::is_whitespace));
                let members: String = usable.map(|(node, at)| format!("member {:016x} {at}\n", node.0)).collect();
                format!("{FIRST_LINE}\ndue {}\n{members}", after.0)
            }
            Self::Done { index } => format!("{FIRST_LINE}\ndone {}\n", index.0),
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let (state, members) = text.strip_prefix(FIRST_LINE)?.strip_prefix('\n')?.split_once('\n')?;
        let index = |number: &str| number.parse().ok().map(Index);
        let note = match state.split_once(' ')? {
            ("due", after) => {
                let members = members.lines().map(|line| {
                    let (node, address) = line.strip_prefix("member ")?.split_once(' ')?;
                    Some((NodeId(u64::from_str_radix(node, 16).ok()?), address.to_owned()))
                });
                Self::Due { after: index(after)?, members: members.collect::<Option<_>>()? }
            }
            ("done", last) => Self::Done { index: index(last)? },
            _ => return None,
        };
        (note.encode() == text).then_some(note)
    }
}

impl Database {
    /// Returns the note about a repair of this member by itself; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged (`InvalidData`).
    pub fn repair_note(&self) -> io::Result<Option<RepairNote>> {
        let file = match self.inner.open.disk.open(FILE) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut bytes = vec![0; usize::try_from(file.len()?.min(MAX_BYTES)).unwrap_or_default()];
        file.read_exact_at(&mut bytes, 0)?;
        let text = String::from_utf8_lossy(&bytes);
        let shown: String = text.chars().take(80).collect();
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("unexpected content of {FILE}: {shown:?}"));
        RepairNote::decode(&text).map(Some).ok_or_else(invalid)
    }

    /// Replaces the note about a repair of this member by itself; `None` removes it.
    ///
    /// # Errors
    /// The file cannot be written. The former note or the new one is in force.
    pub fn note_repair(&self, note: Option<&RepairNote>) -> io::Result<()> {
        let disk = &self.inner.open.disk;
        let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let removed = |path| disk.remove(path).or_else(|error| if is_missing(&error) { Ok(()) } else { Err(error) });
        removed(TEMPORARY)?;
        match note {
            Some(note) => {
                let file = disk.create(TEMPORARY)?;
                file.write_all_at(note.encode().as_bytes(), 0)?;
                file.sync_all()?;
                disk.rename(TEMPORARY, FILE)?;
            }
            None => removed(FILE)?,
        }
        disk.sync_dir("")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use thalweg_disk::SimDisk;
    use thalweg_types::ManualClock;

    use super::*;
    use crate::options::{BackendKind, Options};

    fn due() -> RepairNote {
        let members = [(NodeId(0xabc), "10.0.0.2:7072"), (NodeId(7), "[::1]:1")];
        RepairNote::Due { after: Index(2048), members: members.map(|(node, at)| (node, at.to_owned())).into() }
    }

    #[test]
    fn comes_back_and_refuses_anything_else() {
        let text =
            "thalweg repair 1\ndue 2048\nmember 0000000000000abc 10.0.0.2:7072\nmember 0000000000000007 [::1]:1\n";
        assert_eq!(due().encode(), text);
        for note in [due(), RepairNote::Done { index: Index(5) }] {
            assert_eq!(RepairNote::decode(&note.encode()), Some(note));
        }
        for bad in
            ["", "thalweg repair 2\ndone 5\n", "thalweg repair 1\ndone 5", "thalweg repair 1\ndone 05\n", &text[1..]]
        {
            assert_eq!(RepairNote::decode(bad), None, "{bad:?}");
        }
        for more in ["done 5\nmember 0000000000000007 a:1\n", "due 5\nmember 7 a:1\n", "due 5\nnode 7\n", "gone 5\n"] {
            assert_eq!(RepairNote::decode(&format!("thalweg repair 1\n{more}")), None, "{more:?}");
        }
        let RepairNote::Due { members, .. } = due() else { panic!("it is due") };
        let odd = vec![(NodeId(1), String::new()), (NodeId(2), "a\ndone 1".to_owned())];
        let note = RepairNote::Due { after: Index(2048), members: [odd, members].concat() };
        assert_eq!(RepairNote::decode(&note.encode()), Some(due()), "addresses that lead nowhere are left out");
    }

    #[test]
    fn a_note_survives_a_power_loss_and_can_be_removed() {
        let disk = SimDisk::new(1);
        let open = |disk: &SimDisk| {
            let options = Options { backend: Some(BackendKind::Memory), reserve_bytes: 0, ..Options::default() };
            Database::open_on(Arc::new(disk.clone()), Arc::new(ManualClock::default()), 5, options).unwrap()
        };
        let db = open(&disk);
        assert_eq!(db.repair_note().unwrap(), None);
        let mut lost = disk.clone();
        for note in [Some(due()), Some(RepairNote::Done { index: Index(9) }), None] {
            db.note_repair(note.as_ref()).unwrap();
            lost = disk.power_loss(3);
            assert_eq!(open(&lost).repair_note().unwrap(), note);
        }
        drop(lost);
    }
}
