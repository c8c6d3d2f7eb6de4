//! Reads that are begun in advance for commands that a client has pipelined.
//!
//! Owns: the choice of the commands, and their reads on the threads for cold reads (reads from disk). Does not own: the
//! commands themselves. They later run in their order, as if nothing had been read ahead, but find the rows in memory.
//!
//! A session has one long read at a time. So without reading ahead, a client that pipelines reads of data on disk would
//! wait for one block after another. When a command waits for the disk, the rows of up to [`MAX_AHEAD`] commands after
//! it are read as well. Only commands that read one key, and that have arrived completely, are read ahead. The first
//! other command ends the list, because it could select another database. The replies of these reads are dropped.
//!
//! Bounds: nothing is read ahead while many reads wait for a thread, because this would gain nothing. So the arguments
//! of all such reads take little memory. Each read has at most the bytes of a cold read.
//!
//! Invariant: the reads belong to the next commands that the session will handle, in their order.

use std::sync::Arc;

use thalweg_redis::{Command, Read, Run, admit, run_read, wire::Input};
use thalweg_serving::readers::{PendingRead, ReadKind};
use thalweg_types::budget::{self, Budget, BudgetSpent};

use super::{cursors::cursor_argument, database::Database, long_reads::slices, session::Session};

/// Maximum number of commands after the current one that are read ahead.
const MAX_AHEAD: usize = 16;
/// Number of cold reads (reads from disk) that wait for a thread, of all clients together, at which no further reads
/// are begun in advance.
const MAX_QUEUED: usize = 32;
/// Limit on the work of the short attempt with which the serving thread tests if a command needs the disk.
const GLANCE: Budget = Budget::resident(128);

impl Session {
    /// Begins reads for the commands in `input`, if the current command waits for the disk.
    pub(super) fn read_ahead(&mut self, input: &Input) {
        if !self.lookahead.take_miss() {
            return;
        }
        let known = self.lookahead.known();
        for arguments in input.ahead().take(MAX_AHEAD).skip(known) {
            let Some(command) = read_of_one_key(&arguments) else { return };
            if self.resp.app.readers.figures(ReadKind::Cold).queued >= MAX_QUEUED {
                return;
            }
            let read = self.begin_ahead(command, &arguments);
            self.lookahead.push(read);
        }
    }

    /// Begins to read the rows of a later command from the disk. Returns `None` if the command seems not to need the
    /// disk.
    fn begin_ahead(&self, command: &'static Command, arguments: &[&[u8]]) -> Option<PendingRead<()>> {
        let Database::Batched(_) = self.store() else { return None };
        let glance = self.store().read_briefly(GLANCE, |read: &dyn Read| run_read(read, command, arguments));
        if !matches!(glance, Err(BudgetSpent::Disk)) {
            return None;
        }
        let arguments: Vec<Box<[u8]>> = arguments.iter().map(|argument| Box::from(*argument)).collect();
        let (resp, database) = (Arc::clone(&self.resp), self.database);
        Some(self.resp.app.readers.run_again(BudgetSpent::Disk, &self.account, 0, move || {
            // Without a budget this would be a long read. The command itself begins a long read later if it needs one.
            if budget::is_bounded() {
                let arguments = slices(&arguments);
                // An error is ignored here. The command itself meets it again and replies with it.
                let _ = resp.databases.list[database].database.read(|read| run_read(read, command, &arguments));
            }
        }))
    }
}

/// Returns the command of a request if it only reads, and reads exactly one key; `None` otherwise.
fn read_of_one_key(arguments: &[&[u8]]) -> Option<&'static Command> {
    let command = admit(arguments).ok()?;
    let is_plain = matches!(command.run, Run::Read(_)) && cursor_argument(command.name).is_none();
    let mut keys = command.keys_of(arguments);
    (is_plain && command.name != "xread" && keys.next().is_some() && keys.next().is_none()).then_some(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reads_of_one_key_are_chosen() {
        let is_chosen = |line: &str| {
            let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            read_of_one_key(&arguments).is_some()
        };
        for line in ["GET k", "get k", "HGET h f", "STRLEN k", "TTL k", "EXISTS k"] {
            assert!(is_chosen(line), "{line}");
        }
        for line in [
            "SET k v",
            "MGET a b",
            "EXISTS a b",
            "GET",
            "GET a b",
            "DBSIZE",
            "SCAN 0",
            "HSCAN h 0",
            "XREAD STREAMS s 0",
            "SELECT 1",
            "MULTI",
            "PING",
            "NONE k",
            "GETDEL k",
        ] {
            assert!(!is_chosen(line), "{line}");
        }
    }
}
