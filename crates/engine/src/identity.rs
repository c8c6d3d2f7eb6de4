//! Identity of a data directory: the file `IDENTITY` with the node's id, its backend and its cluster.
//!
//! Owns: the format of the file, and the rules by which a directory may found a cluster, join one, or be opened alone.
//! Does not own: the cluster's members, which are in the log.
//!
//! ```text
//! thalweg 1                        thalweg 2
//! node 00f3c2…                     node 00f3c2…            16 hexadecimal digits
//! backend lsm                      backend lsm
//! crc d684…                        cluster 5b1f…           32 hexadecimal digits
//!                                  origin founded          founded, joining or joined
//!                                  crc 154d…               see `text_file`
//! ```
//! Version 1 is the file of a directory that was never in a cluster. Each such directory begins a log of its own when
//! it is first opened. The entries of two such directories differ although they have equal terms and indexes. Only a
//! directory that never had a log of its own may therefore join a cluster.
//!
//! ```text
//! (no file) ── open ──► version 1 ── Found ──► founded
//! (no file) ── Join ──► joining ── its log is not empty ──► joined
//! ```
//! Invariants: the file is the first one of a directory and is replaced atomically, so a directory without it contains
//! no data of Thalweg. The log of a founded or joined directory is not empty. An empty log was lost, with votes and
//! acknowledged entries, so the node must not take part again under its id.

use std::{io, path::Path, sync::Arc};

use thalweg_disk::Disk;
use thalweg_types::{ClusterId, NodeId};

use crate::{error::OpenError, options::BackendKind, text_file::TextFile};

const FILE: TextFile = TextFile { path: "IDENTITY", temporary: "IDENTITY.tmp", max_bytes: 4096 };

/// Way in which a directory is opened as a member of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberIdentity {
    /// The directory becomes the first member of a new cluster with a random id. A directory that was in use alone
    /// keeps its contents. A directory that has founded a cluster before opens as a member of that cluster.
    Found,
    /// The directory is new, and joins a cluster. A directory that has joined this cluster before opens as it is.
    Join {
        /// Id of the cluster that the directory joins.
        cluster: ClusterId,
    },
    /// The directory is already a member of a cluster.
    Existing,
}

/// Role in which the caller opens a directory: alone, or as a member of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenRole {
    /// The directory is opened by a node that runs alone.
    Alone,
    /// The directory is opened as a member of a cluster. The second value is the id of a new cluster, used for
    /// [`MemberIdentity::Found`].
    Member(MemberIdentity, ClusterId),
}

/// Origin of the first entries in the log of a directory that belongs to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The directory wrote the first entries of the cluster.
    Founded,
    /// The directory has joined the cluster and has received nothing yet.
    Joining,
    /// The directory has received records from other members.
    Joined,
}

impl Origin {
    const ALL: [Self; 3] = [Self::Founded, Self::Joining, Self::Joined];

    const fn name(self) -> &'static str {
        match self {
            Self::Founded => "founded",
            Self::Joining => "joining",
            Self::Joined => "joined",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    pub(crate) id: ClusterId,
    pub(crate) origin: Origin,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) node: NodeId,
    pub(crate) backend: BackendKind,
    /// Cluster of the directory; `None` if it was never in a cluster.
    pub(crate) cluster: Option<Cluster>,
}

impl Identity {
    /// Returns the identity of a new directory.
    pub(crate) fn new(node: NodeId, backend: BackendKind, role: OpenRole) -> Self {
        let cluster = match role {
            // A directory that founds a cluster gets the cluster's id once its log is written.
            OpenRole::Alone | OpenRole::Member(MemberIdentity::Found | MemberIdentity::Existing, _) => None,
            OpenRole::Member(MemberIdentity::Join { cluster }, _) => {
                Some(Cluster { id: cluster, origin: Origin::Joining })
            }
        };
        Self { node, backend, cluster }
    }

    /// Checks that a directory with this identity may be opened in `role`: alone, or as a member of a cluster.
    pub(crate) fn check_role(&self, path: &Path, role: OpenRole) -> Result<(), OpenError> {
        let path = || path.to_owned();
        match (self.cluster, role) {
            (_, OpenRole::Alone) | (None, OpenRole::Member(MemberIdentity::Found, _)) => Ok(()),
            (None, OpenRole::Member(MemberIdentity::Existing, _)) => Err(OpenError::NotAMember { path: path() }),
            (None, OpenRole::Member(MemberIdentity::Join { .. }, _)) => Err(OpenError::HasOwnData { path: path() }),
            (Some(cluster), OpenRole::Member(MemberIdentity::Join { cluster: wanted }, _)) if cluster.id != wanted => {
                Err(OpenError::OtherCluster { path: path(), found: cluster.id, wanted })
            }
            (Some(cluster), OpenRole::Member(MemberIdentity::Found, _)) if cluster.origin != Origin::Founded => {
                Err(OpenError::AlreadyMember { path: path(), cluster: cluster.id })
            }
            (Some(_), OpenRole::Member(..)) => Ok(()),
        }
    }

    /// Checks that a directory with this identity may have an empty log (`is_empty`), or otherwise a log with records.
    /// Returns the identity that the caller must write before it uses the log; `None` if the identity does not change.
    pub(crate) fn check_log(&self, path: &Path, role: OpenRole, is_empty: bool) -> Result<Option<Self>, OpenError> {
        let Some(cluster) = self.cluster else { return Ok(None) };
        match (cluster.origin, is_empty) {
            (Origin::Founded | Origin::Joined, true) => {
                Err(OpenError::LogLost { path: path.to_owned(), cluster: cluster.id })
            }
            (Origin::Joining, true) if role == OpenRole::Alone => {
                Err(OpenError::NothingReceived { path: path.to_owned(), cluster: cluster.id })
            }
            (Origin::Joining, false) => Ok(Some(self.with_cluster(cluster.id, Origin::Joined))),
            _ => Ok(None),
        }
    }

    /// Returns a copy of this identity that belongs to a cluster.
    pub(crate) fn with_cluster(&self, id: ClusterId, origin: Origin) -> Self {
        Self { cluster: Some(Cluster { id, origin }), ..*self }
    }

    fn encode(&self) -> String {
        let Self { node, backend, cluster } = self;
        let backend = backend.name();
        match cluster {
            None => format!("thalweg 1\nnode {:016x}\nbackend {backend}\n", node.0),
            Some(Cluster { id, origin }) => {
                let origin = origin.name();
                format!("thalweg 2\nnode {:016x}\nbackend {backend}\ncluster {id}\norigin {origin}\n", node.0)
            }
        }
    }

    fn decode(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let version = lines.next()?;
        let node = u64::from_str_radix(lines.next()?.strip_prefix("node ")?, 16).ok()?;
        let backend = BackendKind::from_name(lines.next()?.strip_prefix("backend ")?)?;
        let cluster = match version {
            "thalweg 1" => None,
            "thalweg 2" => {
                let id = lines.next()?.strip_prefix("cluster ")?.parse().ok()?;
                let name = lines.next()?.strip_prefix("origin ")?;
                let origin = Origin::ALL.into_iter().find(|origin| origin.name() == name)?;
                Some(Cluster { id, origin })
            }
            _ => return None,
        };
        lines.next().is_none().then_some(Self { node: NodeId(node), backend, cluster })
    }

    /// Reads the identity file. Returns `None` if the file does not exist, and `InvalidData` if it has other contents
    /// or a wrong checksum.
    pub(crate) fn read(disk: &Arc<dyn Disk>) -> io::Result<Option<Self>> {
        FILE.read(&**disk, Self::decode)
    }

    pub(crate) fn write(&self, disk: &Arc<dyn Disk>) -> io::Result<()> {
        FILE.replace(&**disk, &self.encode())
    }

    /// Adds the missing checksum line to an identity file that an early development build has written.
    pub(crate) fn add_checksum(disk: &Arc<dyn Disk>) -> io::Result<()> {
        FILE.add_checksum(&**disk, |text| Self::decode(text).map(|identity| identity.encode()))
    }
}

#[cfg(test)]
mod tests {
    use thalweg_disk::SimDisk;

    use super::*;
    use crate::text_file::tests::{each_flipped_bit_is_found, is_documented, put};

    const ID: ClusterId = ClusterId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

    fn identity(origin: Option<Origin>) -> Identity {
        let cluster = origin.map(|origin| Cluster { id: ID, origin });
        Identity { node: NodeId(0xabc), backend: BackendKind::Lsm, cluster }
    }

    #[test]
    fn comes_back_and_refuses_anything_else() {
        assert_eq!(identity(None).encode(), "thalweg 1\nnode 0000000000000abc\nbackend lsm\n");
        let of_cluster = "thalweg 2\nnode 0000000000000abc\nbackend lsm\ncluster 0123456789abcdef0123456789abcdef\n";
        for (origin, name) in [(Origin::Founded, "founded"), (Origin::Joining, "joining"), (Origin::Joined, "joined")] {
            assert_eq!(identity(Some(origin)).encode(), format!("{of_cluster}origin {name}\n"));
        }
        for origin in [None, Some(Origin::Founded), Some(Origin::Joining), Some(Origin::Joined)] {
            assert_eq!(Identity::decode(&identity(origin).encode()), Some(identity(origin)));
        }
        let cluster = "cluster 0123456789abcdef0123456789abcdef";
        for bad in [
            String::new(),
            "thalweg 3\nnode 1\nbackend lsm\n".to_owned(),
            "thalweg 2\nnode 1\nbackend lsm\n".to_owned(),
            "thalweg 1\nnode x\nbackend lsm\n".to_owned(),
            "thalweg 1\nnode 1\nbackend b\n".to_owned(),
            format!("thalweg 1\nnode 1\nbackend lsm\n{cluster}\norigin founded\n"),
            format!("thalweg 2\nnode 1\nbackend lsm\n{cluster}\norigin lost\n"),
            format!("thalweg 2\nnode 1\nbackend lsm\n{cluster}0\norigin founded\n"),
            format!("thalweg 2\nnode 1\nbackend lsm\n{cluster}\norigin founded\nmore\n"),
        ] {
            assert_eq!(Identity::decode(&bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_document_shows_the_bytes() {
        let alone = Identity { node: NodeId(0x00f3_c2a4_1b5d_6e70), ..identity(None) };
        let cluster = ClusterId(0x5b1f_0c2d_9e8a_7463_f1e2_d3c4_b5a6_9788);
        assert!(is_documented(&alone.encode()));
        assert!(is_documented(&alone.with_cluster(cluster, Origin::Founded).encode()));
    }

    /// Checks that damage to the identity file is found: a flipped digit of the node's id would name another node.
    #[test]
    fn each_flipped_bit_of_the_file_is_found_and_the_file_of_an_early_build_is_read() {
        for origin in [None, Some(Origin::Joined)] {
            let sim = SimDisk::new(1);
            let disk: Arc<dyn Disk> = Arc::new(sim.clone());
            put(&sim, "IDENTITY", &identity(origin).encode());
            assert_eq!(Identity::read(&disk).unwrap(), Some(identity(origin)));
            Identity::add_checksum(&disk).unwrap();
            assert_eq!(Identity::read(&disk).unwrap(), Some(identity(origin)));
            each_flipped_bit_is_found(&sim, "IDENTITY", &|flipped| {
                let read = Identity::read(&(Arc::new(flipped.clone()) as _));
                read.is_err_and(|error| error.kind() == io::ErrorKind::InvalidData)
            });
        }
    }

    /// Decision table of the roles in which a directory may be opened; `None` means that the role is permitted.
    #[test]
    fn only_a_directory_without_data_of_its_own_joins() {
        let (other, drawn) = (ClusterId(7), ClusterId(9));
        let member = |identity| OpenRole::Member(identity, drawn);
        let (found, existing) = (member(MemberIdentity::Found), member(MemberIdentity::Existing));
        let join = member(MemberIdentity::Join { cluster: ID });
        let join_other = member(MemberIdentity::Join { cluster: other });
        let [alone, founded, joining, joined] =
            [None, Some(Origin::Founded), Some(Origin::Joining), Some(Origin::Joined)].map(identity);
        let code = |identity: Identity, role| {
            identity.check_role(Path::new("data"), role).err().map(|error| thalweg_types::Classified::code(&error))
        };
        for identity in [alone, founded, joining, joined] {
            assert_eq!(code(identity, OpenRole::Alone), None);
        }
        assert_eq!(
            [found, existing, join].map(|role| code(alone, role)),
            [None, Some("not_a_member"), Some("has_own_data")]
        );
        assert_eq!([found, existing, join].map(|role| code(founded, role)), [None; 3]);
        for identity in [joining, joined] {
            assert_eq!([found, existing, join].map(|role| code(identity, role)), [Some("already_member"), None, None]);
        }
        for identity in [founded, joining, joined] {
            assert_eq!(code(identity, join_other), Some("other_cluster"));
        }
    }

    #[test]
    fn an_empty_log_of_a_member_is_a_lost_one() {
        let check = |identity: Identity, role, is_empty| {
            let checked = identity.check_log(Path::new("data"), role, is_empty);
            checked.map_err(|error| thalweg_types::Classified::code(&error))
        };
        let existing = OpenRole::Member(MemberIdentity::Existing, ClusterId(9));
        for role in [OpenRole::Alone, existing] {
            assert_eq!(check(identity(None), role, true), Ok(None));
            for origin in [Origin::Founded, Origin::Joined] {
                assert_eq!(check(identity(Some(origin)), role, true), Err("log_lost"));
                assert_eq!(check(identity(Some(origin)), role, false), Ok(None));
            }
            let now_joined = Some(identity(Some(Origin::Joined)));
            assert_eq!(check(identity(Some(Origin::Joining)), role, false), Ok(now_joined));
        }
        assert_eq!(check(identity(Some(Origin::Joining)), existing, true), Ok(None));
        assert_eq!(check(identity(Some(Origin::Joining)), OpenRole::Alone, true), Err("nothing_received"));
    }
}
