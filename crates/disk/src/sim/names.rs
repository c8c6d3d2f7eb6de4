//! The directory tree of a simulated disk: the tree that programs see (cached), the tree on the medium (durable), and
//! the pending changes between them.
//!
//! Owns: both trees, and the names that survive a power loss. Does not own: the bytes of files (`inode`), or the
//! decision which changes survive (`power`).
//!
//! Invariant: changes of one name become durable in the order in which they were made; changes of different
//! names become durable in any order. A rename is one change of two names, so it survives completely or not
//! at all, and syncing either directory makes it durable.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use super::power::Survival;
use crate::path;

/// Number of an inode (a file without its name); never reused within a simulated disk.
pub(super) type InodeId = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File(InodeId),
    Dir,
}

#[derive(Clone, Debug)]
enum Change {
    Insert { path: String, node: Node },
    Remove { path: String },
    Move { from: String, to: String, inode: InodeId },
}

#[derive(Clone, Debug)]
struct Pending {
    operation: u64,
    change: Change,
}

type Tree = BTreeMap<String, Node>;

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    cached: Tree,
    durable: Tree,
    pending: Vec<Pending>,
}

impl Names {
    /// Returns the number of the file at `path`, or an error if there is none.
    pub(super) fn file(&self, path: &str) -> io::Result<InodeId> {
        match self.cached.get(path) {
            Some(Node::File(inode)) => Ok(*inode),
            Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => {
                self.check_dir(path::parent(path))?;
                Err(io::ErrorKind::NotFound.into())
            }
        }
    }

    /// Checks that `dir` is a directory.
    pub(super) fn check_dir(&self, dir: &str) -> io::Result<()> {
        if dir.is_empty() {
            return Ok(());
        }
        match self.cached.get(dir) {
            Some(Node::Dir) => Ok(()),
            Some(Node::File(_)) => Err(io::ErrorKind::NotADirectory.into()),
            None => self.check_dir(path::parent(dir)).and(Err(io::ErrorKind::NotFound.into())),
        }
    }

    /// Checks that a new file can be created at `path`.
    pub(super) fn check_vacant(&self, path: &str) -> io::Result<()> {
        self.check_dir(path::parent(path))?;
        if self.cached.contains_key(path) { Err(io::ErrorKind::AlreadyExists.into()) } else { Ok(()) }
    }

    /// Checks that a file can be renamed to `path`. Returns the file that the rename would replace; `None` if there is
    /// none.
    pub(super) fn check_target(&self, path: &str) -> io::Result<Option<InodeId>> {
        self.check_dir(path::parent(path))?;
        match self.cached.get(path) {
            Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            Some(Node::File(inode)) => Ok(Some(*inode)),
            None => Ok(None),
        }
    }

    /// Returns the directories that `create_dir(path)` must create, from the top.
    pub(super) fn missing_dirs(&self, path: &str) -> io::Result<Vec<String>> {
        let mut missing = Vec::new();
        let mut dir = path;
        while !dir.is_empty() {
            match self.cached.get(dir) {
                Some(Node::Dir) => break,
                Some(Node::File(_)) if dir == path => return Err(io::ErrorKind::AlreadyExists.into()),
                Some(Node::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
                None => missing.push(dir.to_owned()),
            }
            dir = path::parent(dir);
        }
        missing.reverse();
        Ok(missing)
    }

    pub(super) fn insert(&mut self, operation: u64, path: &str, node: Node) {
        self.change(operation, Change::Insert { path: path.to_owned(), node });
    }

    pub(super) fn remove(&mut self, operation: u64, path: &str) {
        self.change(operation, Change::Remove { path: path.to_owned() });
    }

    pub(super) fn rename(&mut self, operation: u64, from: &str, to: &str, inode: InodeId) {
        self.change(operation, Change::Move { from: from.to_owned(), to: to.to_owned(), inode });
    }

    fn change(&mut self, operation: u64, change: Change) {
        change.apply(&mut self.cached);
        self.pending.push(Pending { operation, change });
    }

    /// Names of the files directly in `dir`, in order.
    pub(super) fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.check_dir(dir)?;
        let inside =
            self.cached.iter().filter(|(path, node)| matches!(node, Node::File(_)) && path::parent(path) == dir);
        let mut names: Vec<_> = inside.map(|(path, _)| path.rsplit('/').next().unwrap_or(path).to_owned()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Makes the sync of a directory succeed: its pending changes become durable.
    pub(super) fn sync_dir(&mut self, dir: &str) {
        for pending in self.take_pending(dir) {
            pending.change.apply(&mut self.durable);
        }
    }

    /// Makes the sync of a directory fail: its pending changes are lost. They stay in the cached tree, but no later
    /// sync makes them durable.
    pub(super) fn fail_sync_dir(&mut self, dir: &str) {
        drop(self.take_pending(dir));
    }

    /// Takes the pending changes in `dir`, in order. Also takes earlier changes in other directories if they share a
    /// name with a taken change: for example a rename between directories, and the changes of its names before it.
    fn take_pending(&mut self, dir: &str) -> Vec<Pending> {
        let mut needed = BTreeSet::new();
        let mut taken = Vec::new();
        let mut left = Vec::new();
        for pending in std::mem::take(&mut self.pending).into_iter().rev() {
            let concerned = pending.change.names().any(|name| path::parent(name) == dir || needed.contains(name));
            if concerned {
                needed.extend(pending.change.names().map(str::to_owned));
                taken.push(pending);
            } else {
                left.push(pending);
            }
        }
        left.reverse();
        taken.reverse();
        self.pending = left;
        taken
    }

    /// Returns the directory tree after a power loss; `survival` decides which pending changes survive. If a directory
    /// is lost, its files are lost too.
    pub(super) fn survivors(&self, survival: &mut Survival) -> Self {
        let mut tree = self.durable.clone();
        let mut lost = BTreeSet::new();
        survival.next_file();
        for pending in &self.pending {
            let blocked = pending.change.names().any(|name| lost.contains(name));
            if !blocked && survival.keeps(pending.operation) {
                pending.change.apply(&mut tree);
            } else {
                lost.extend(pending.change.names());
            }
        }
        let reachable: Tree = tree
            .iter()
            .filter(|(path, _)| ancestors(path).all(|dir| tree.get(dir) == Some(&Node::Dir)))
            .map(|(path, node)| (path.clone(), *node))
            .collect();
        Self { cached: reachable.clone(), durable: reachable, pending: Vec::new() }
    }

    pub(super) fn pending_operations(&self) -> impl Iterator<Item = u64> {
        self.pending.iter().map(|pending| pending.operation)
    }

    /// Files that programs see, each with its path and number, in order of the paths.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, InodeId)> {
        files(&self.cached)
    }

    /// Returns the file that has the name `path` on the medium, as if all unsynced changes were lost; `None` if there
    /// is none.
    pub(super) fn durable_file(&self, path: &str) -> Option<InodeId> {
        let reachable = ancestors(path).all(|dir| self.durable.get(dir) == Some(&Node::Dir));
        match self.durable.get(path) {
            Some(Node::File(inode)) if reachable => Some(*inode),
            _ => None,
        }
    }

    /// Returns true if the file could have a name after a power loss: a name on the medium or a pending change refers
    /// to it.
    pub(super) fn may_be_restored(&self, inode: InodeId) -> bool {
        files(&self.durable).any(|(_, held)| held == inode)
            || self.pending.iter().any(|pending| pending.change.inode() == Some(inode))
    }
}

impl Change {
    fn names(&self) -> impl Iterator<Item = &str> {
        let (first, second) = match self {
            Self::Insert { path, .. } | Self::Remove { path } => (path, None),
            Self::Move { from, to, .. } => (from, Some(to)),
        };
        std::iter::once(first).chain(second).map(String::as_str)
    }

    fn inode(&self) -> Option<InodeId> {
        match self {
            Self::Insert { node: Node::File(inode), .. } | Self::Move { inode, .. } => Some(*inode),
            Self::Insert { node: Node::Dir, .. } | Self::Remove { .. } => None,
        }
    }

    fn apply(&self, tree: &mut Tree) {
        match self {
            Self::Insert { path, node } => {
                tree.insert(path.clone(), *node);
            }
            Self::Remove { path } => {
                tree.remove(path);
            }
            Self::Move { from, to, inode } => {
                tree.remove(from);
                tree.insert(to.clone(), Node::File(*inode));
            }
        }
    }
}

fn files(tree: &Tree) -> impl Iterator<Item = (&str, InodeId)> {
    tree.iter().filter_map(|(path, node)| match node {
        Node::File(inode) => Some((path.as_str(), *inode)),
        Node::Dir => None,
    })
}

/// Ancestor directories of `path`, nearest first, without the root.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path::parent(path)), |dir| Some(path::parent(dir))).take_while(|dir| !dir.is_empty())
}
