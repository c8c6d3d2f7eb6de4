//! History: what the log's entries changed, told again from their own bytes.
//!
//! Owns: what a change of a key is ([`KeyChange`]), going through an entry commit by commit
//! ([`EntryCommits`]), and two kinds of rows that make it possible: verdicts (`verdict`), which say of an
//! entry what cannot be derived from its bytes, and marks (`mark`), which say where in the log a revision
//! is. Does not own: the log, nor how far back it goes.
//!
//! Nothing is kept per change. An entry of commits that all succeed, whatever their conditions, has no row
//! at all: its revisions are counted and its changes decoded when somebody asks.

use thalweg_types::{
    KeyspaceId, Revision,
    command::{Command, Commands, Commit, Write, uses_revision},
    record::Malformed,
};

use crate::changes::verdict::{Exception, Exceptions, Told};

/// What happened to a key, or to all keys with a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange<'a> {
    /// It was set.
    Put {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// It was deleted, or would have been had it been there: a blind delete does not look.
    Delete {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The key.
        key: &'a [u8],
    },
    /// Its time was up.
    Expire {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The key.
        key: &'a [u8],
    },
    /// All keys with the prefix were deleted.
    DeletePrefix {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The prefix; empty for the whole keyspace.
        prefix: &'a [u8],
    },
}

impl<'a> KeyChange<'a> {
    /// The keyspace, and the key or prefix.
    #[must_use]
    pub fn target(&self) -> (KeyspaceId, &'a [u8]) {
        match *self {
            Self::Put { keyspace, key, .. } | Self::Delete { keyspace, key } | Self::Expire { keyspace, key } => {
                (keyspace, key)
            }
            Self::DeletePrefix { keyspace, prefix } => (keyspace, prefix),
        }
    }
}

/// Goes through the commands of an entry that used a revision.
#[derive(Clone, Debug)]
pub struct EntryCommits<'a> {
    payload: &'a [u8],
    commands: Commands<'a>,
    number: u32,
    exceptions: Exceptions<'a>,
    revision: Revision,
}

impl<'a> EntryCommits<'a> {
    /// Over an entry's payload. `verdict` is its row, if it has one; `revision` the last one used before it.
    #[must_use]
    pub fn new(payload: &'a [u8], verdict: Option<&'a [u8]>, revision: Revision) -> Self {
        let exceptions = Exceptions::new(verdict.unwrap_or_default());
        Self { payload, commands: Commands::new(payload), number: 0, exceptions, revision }
    }

    /// The last revision used so far.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The next command that used a revision.
    ///
    /// # Errors
    /// The verdict is not one that belongs to the entry.
    pub fn next_commit(&mut self) -> Result<Option<EntryCommit<'a>>, Malformed> {
        // As when it was applied, nothing happens from where the framing breaks off.
        while let Some(Ok((_, bytes))) = self.commands.next() {
            let number = self.number;
            self.number += 1;
            let changes = match self.exceptions.of(number)? {
                Some(Exception::NoRevision) => continue,
                Some(Exception::Told(told)) => Changes::Told(told, self.payload),
                None if !uses_revision(bytes) => continue,
                None => match Command::decode(bytes)? {
                    Command::Commit(commit) => Changes::Derived(commit),
                    _ => continue,
                },
            };
            self.revision = self.revision.next();
            return Ok(Some(EntryCommit { revision: self.revision, bytes: bytes.len(), changes }));
        }
        Ok(None)
    }
}

/// A command that used a revision.
#[derive(Clone, Debug)]
pub struct EntryCommit<'a> {
    /// Its revision.
    pub revision: Revision,
    /// Length of its encoding.
    pub bytes: usize,
    changes: Changes<'a>,
}

#[derive(Clone, Debug)]
enum Changes<'a> {
    Derived(Commit<'a>),
    Told(Told<'a>, &'a [u8]),
}

impl<'a> EntryCommit<'a> {
    /// Calls `visit` with every change, in the order in which they were made: of several of one key the
    /// last one counts.
    pub fn visit(&self, visit: &mut dyn FnMut(KeyChange<'a>)) -> Result<(), Malformed> {
        match &self.changes {
            Changes::Told(told, payload) => told.visit(payload, visit),
            Changes::Derived(commit) => {
                for write in commit.writes()? {
                    match write? {
                        Write::Put { keyspace, key, value, .. } | Write::PutUntil { keyspace, key, value, .. } => {
                            visit(KeyChange::Put { keyspace, key, value });
                        }
                        Write::Delete { keyspace, key } => visit(KeyChange::Delete { keyspace, key }),
                        Write::Append { .. } | Write::Settle(_) => {}
                        // Refused in a commit: transactions tell what they change.
                        Write::Add { .. } | Write::DeletePrefix { .. } | Write::Get { .. } | Write::Scan { .. } => {}
                        Write::Touch { .. } => {}
                    }
                }
                Ok(())
            }
        }
    }
}
