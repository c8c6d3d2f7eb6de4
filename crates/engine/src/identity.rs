//! Identity file of a data directory: format, node id and backend.
//!
//! ```text
//! thalweg 1
//! node 00f3c2…           16 hexadecimal digits
//! backend lsm
//! ```
//! The identity file is the first file written, and it is written atomically: a directory without it contains no data
//! of Thalweg.

use std::{io, sync::Arc};

use thalweg_disk::Disk;
use thalweg_types::NodeId;

use crate::options::BackendKind;

const PATH: &str = "IDENTITY";
const TEMPORARY: &str = "IDENTITY.tmp";
const MAX_BYTES: u64 = 4096;

/// Contents of the identity file: the node's id and the state's backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) node: NodeId,
    pub(crate) backend: BackendKind,
}

impl Identity {
    fn encode(&self) -> String {
        format!("thalweg 1\nnode {:016x}\nbackend {}\n", self.node.0, self.backend.name())
    }

    fn decode(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next()? != "thalweg 1" {
            return None;
        }
        let node = u64::from_str_radix(lines.next()?.strip_prefix("node ")?, 16).ok()?;
        let backend = BackendKind::from_name(lines.next()?.strip_prefix("backend ")?)?;
        lines.next().is_none().then_some(Self { node: NodeId(node), backend })
    }

    /// Reads the identity file. Returns `None` if the file does not exist, and `InvalidData` if it has other contents.
    pub(crate) fn read(disk: &Arc<dyn Disk>) -> io::Result<Option<Self>> {
        let file = match disk.open(PATH) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let len = file.len()?.min(MAX_BYTES);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or_default()];
        file.read_exact_at(&mut bytes, 0)?;
        let text = String::from_utf8_lossy(&bytes);
        let invalid =
            || io::Error::new(io::ErrorKind::InvalidData, format!("unexpected content {:?}", truncate_text(&text)));
        Self::decode(&text).ok_or_else(invalid).map(Some)
    }

    /// Writes the identity file atomically.
    pub(crate) fn write(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        match disk.remove(TEMPORARY) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = disk.create(TEMPORARY)?;
        file.write_all_at(self.encode().as_bytes(), 0)?;
        file.sync_all()?;
        disk.rename(TEMPORARY, PATH)?;
        disk.sync_dir("")
    }
}

fn truncate_text(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_and_refuses_anything_else() {
        let identity = Identity { node: NodeId(0xabc), backend: BackendKind::Lsm };
        assert_eq!(identity.encode(), "thalweg 1\nnode 0000000000000abc\nbackend lsm\n");
        assert_eq!(Identity::decode(&identity.encode()), Some(identity));
        for bad in [
            "",
            "thalweg 2\nnode 1\nbackend lsm\n",
            "thalweg 1\nnode x\nbackend lsm\n",
            "thalweg 1\nnode 1\nbackend b\n",
        ] {
            assert_eq!(Identity::decode(bad), None, "{bad:?}");
        }
    }
}
