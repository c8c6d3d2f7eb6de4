//! Shares of clients in the deletes that wait to be swept, for the commands that delete all keys of a keyspace.
//!
//! Owns: the reservations of a burst with such commands, from the command that joins it to the outcome. Does not own:
//! the shares ([`deleting`](thalweg_serving::deleting)).

use thalweg_redis::Command;

use super::{commands::Commands, database::Database, session::Session};

/// Error reply to a command that deletes all keys, if the address of its client has used its share.
pub(super) const TOO_MANY_DELETES: &str = "BUSY the clients of this address have their share of deletes of many keys \
     that are still being removed: retry later";

/// Returns true for a command that deletes all keys of a database.
pub(super) fn empties(command: &Command) -> bool {
    matches!(command.name, "flushdb" | "flushall")
}

/// Returns the number of commands that delete all keys of a database.
pub(super) fn count_emptying(commands: &Commands) -> usize {
    commands.list().filter(|command| empties(command)).count()
}

impl Session {
    /// Reserves what this number of commands needs that join the burst and delete all keys of the selected database.
    /// Returns false if the address of the client already holds its share.
    pub(super) fn may_empty(&mut self, commands: usize) -> bool {
        let Database::Batched(database) = self.store() else { return true };
        let Some(keyspace) = database.keyspace() else { return true };
        let all_keys = std::iter::repeat_n((keyspace, 0), commands);
        match self.resp.app.may_delete(&self.account, all_keys) {
            Ok(share) => {
                self.burst.deletes.extend(share);
                true
            }
            Err(_) => false,
        }
    }
}
