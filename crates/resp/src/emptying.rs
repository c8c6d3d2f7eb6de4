//! Limit on commands that delete all keys of a keyspace. Each client address may have a limited part of all deletes
//! whose rows wait to be removed.
//!
//! Owns: the reservations of such commands when they join a burst (the client's commands that are committed together).
//! The burst holds them until its outcome is known. Does not own: the limit of each address
//! ([`deleting`](thalweg_serving::deleting)).

use thalweg_transport::Outbox;

use super::{
    database::Database,
    session::{CommandProgress, Session},
};

/// Error reply to a command that deletes all keys, if too many deletes of the client's address wait for their rows to
/// be removed.
const TOO_MANY_DELETES: &str = "BUSY the clients of this address have their share of deletes of many keys that are still \
     being removed: retry later";

impl Session {
    /// Reserves the deletes of `commands` commands that join the burst and delete all keys of the selected database. If
    /// the client's address may hold no more deletes, replies with an error, and returns the progress to report.
    /// Otherwise returns `None`.
    pub(super) fn refuse_emptying(&mut self, commands: usize, out: &mut Outbox) -> Option<CommandProgress> {
        let Database::Batched(database) = self.store() else { return None };
        let all_keys = std::iter::repeat_n((database.keyspace()?, 0), commands);
        match self.resp.app.may_delete(&self.account, all_keys) {
            Ok(share) => {
                self.burst.deletes.extend(share);
                None
            }
            Err(_) => Some(self.fail(TOO_MANY_DELETES, out)),
        }
    }
}
