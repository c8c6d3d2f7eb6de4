//! The changes that a log entry made to keys, derived again from the entry's bytes.
//!
//! Owns: [`EntryCommits`], which iterates over the commits of an entry. Does not own: the log, or how far back it
//! reaches; nor the rows that this iteration needs. These are verdicts (`verdict`), for facts that an entry's bytes do
//! not determine, and marks (`mark`), the positions of revisions in the log.
//!
//! No row is stored per change. An entry whose commits all succeed, with or without conditions, has no row at all: its
//! revisions are counted and its changes decoded when a reader needs them.

use thalweg_types::{
    Revision,
    codec::Malformed,
    command::{Command, Commands, Commit, Write, uses_revision},
};

use crate::changes::{
    key_change::KeyChange,
    verdict::{Exception, Exceptions, RecordedChanges},
};

/// Iterates over those commands of a log entry that used a revision.
#[derive(Clone, Debug)]
pub struct EntryCommits<'a> {
    payload: &'a [u8],
    commands: Commands<'a>,
    number: u32,
    exceptions: Exceptions<'a>,
    revision: Revision,
}

impl<'a> EntryCommits<'a> {
    /// Creates an iterator over a log entry's payload. `verdict` is the row with the facts that this payload does not
    /// determine, if the entry has such a row. `revision` is the last revision used before the entry.
    #[must_use]
    pub fn new(payload: &'a [u8], verdict: Option<&'a [u8]>, revision: Revision) -> Self {
        let exceptions = Exceptions::new(verdict.unwrap_or_default());
        Self { payload, commands: Commands::new(payload), number: 0, exceptions, revision }
    }

    /// Returns the revision of the last command that the iterator has returned; before the first one, the last revision
    /// used before the log entry.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the next command that used a revision; `None` after the last one.
    ///
    /// # Errors
    /// Returns an error if the verdict (row with facts about the entry) does not belong to the entry.
    pub fn next_commit(&mut self) -> Result<Option<EntryCommit<'a>>, Malformed> {
        // Like the applier, the iterator stops at the first framing error.
        while let Some(Ok((_, bytes))) = self.commands.next() {
            let number = self.number;
            self.number += 1;
            let changes = match self.exceptions.of(number)? {
                Some(Exception::NoRevision) => continue,
                Some(Exception::Recorded(recorded)) => Changes::Recorded(recorded, self.payload),
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

/// A command of a log entry that used a revision.
#[derive(Clone, Debug)]
pub struct EntryCommit<'a> {
    /// Revision that the command used.
    pub revision: Revision,
    /// Length of the command's encoding in bytes.
    pub bytes: usize,
    changes: Changes<'a>,
}

#[derive(Clone, Debug)]
enum Changes<'a> {
    Derived(Commit<'a>),
    Recorded(RecordedChanges<'a>, &'a [u8]),
}

impl<'a> EntryCommit<'a> {
    /// Calls `visit` with every change of the command, in the order in which the changes were made. If a key changed
    /// more than once, its last change counts.
    pub fn visit(&self, visit: &mut dyn FnMut(KeyChange<'a>)) -> Result<(), Malformed> {
        match &self.changes {
            Changes::Recorded(recorded, payload) => recorded.visit(payload, visit),
            Changes::Derived(commit) => {
                for write in commit.writes()? {
                    match write? {
                        Write::Put { keyspace, key, value, .. } | Write::PutUntil { keyspace, key, value, .. } => {
                            visit(KeyChange::Put { keyspace, key, value });
                        }
                        Write::Delete { keyspace, key } => visit(KeyChange::Delete { keyspace, key }),
                        Write::Append { .. } | Write::Settle(_) => {}
                        // A commit with one of these is rejected. A transaction records its changes in a verdict.
                        Write::Add { .. } | Write::DeletePrefix { .. } | Write::Get { .. } | Write::Scan { .. } => {}
                        Write::Touch { .. } => {}
                    }
                }
                Ok(())
            }
        }
    }
}
