//! Reads for commands that a client has pipelined, begun before their turn.
//!
//! Owns: the choice of the commands, and their reads on the threads for cold reads. Does not own: the commands
//! themselves, which run in their order as if nothing had been read ahead; they find in memory what was read.
//!
//! A session has one long read at a time, so without this, a client that pipelines reads of data on disk would wait for
//! each block alone. When a command waits for the disk, the rows of up to [`MAX_AHEAD`] commands behind it are read,
//! too. Only commands count that read one key, have arrived completely, and follow each other without another command
//! between them, because that could select another database. Their replies are dropped.
//!
//! Bounds: nothing is read ahead while many reads wait for a thread, because nothing would be gained; so the reads of
//! all clients together have few arguments in memory. Each has the bytes of a cold read at most.
//!
//! Invariant: the reads are those for the next commands that the session will handle, in their order.

use std::sync::Arc;

use thalweg_redis::{Command, Read, Run, admit, run_read, wire::Input};
use thalweg_serving::readers::{PendingRead, ReadKind};
use thalweg_types::budget::{self, Budget, BudgetSpent};

use super::{cursors::cursor_argument, database::Database, long_reads::slices, session::Session};

/// Maximum number of commands behind the current one for which rows are read.
const MAX_AHEAD: usize = 16;
/// Number of cold reads waiting for a thread from which nothing is read ahead.
const MAX_QUEUED: usize = 32;
/// Budget with which the serving thread finds out whether a command needs the disk.
const GLANCE: Budget = Budget::resident(128);

impl Session {
    /// Begins reads for the commands in `input` if the command before them waits for the disk.
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

    /// Begins the read of a command that needs the disk. Returns `None` if it seems not to need it.
    fn begin_ahead(&self, command: &'static Command, arguments: &[&[u8]]) -> Option<PendingRead<()>> {
        let Database::Batched(_) = self.store() else { return None };
        let glance = self.store().read_briefly(GLANCE, |read: &dyn Read| run_read(read, command, arguments));
        if !matches!(glance, Err(BudgetSpent::Disk)) {
            return None;
        }
        let arguments: Vec<Box<[u8]>> = arguments.iter().map(|argument| Box::from(*argument)).collect();
        let (resp, database) = (Arc::clone(&self.resp), self.database);
        Some(self.resp.app.readers.run_again(BudgetSpent::Disk, &self.account, 0, move || {
            // Without a budget, the read would be a long one, which the command itself begins if it must.
            if budget::is_bounded() {
                let arguments = slices(&arguments);
                // The command itself replies with an error.
                let _ = resp.databases.list[database].database.read(|read| run_read(read, command, &arguments));
            }
        }))
    }
}

/// Returns the command of a request that reads one key, and nothing else.
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
