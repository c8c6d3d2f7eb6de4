//! Limit on commands that delete all keys of a keyspace. Each client address has a share of the deletes whose keys are
//! still being removed.
//!
//! Owns: the reservations of such commands when they join a burst. The burst holds them until its outcome is known.
//! Does not own: the shares ([`deleting`](thalweg_serving::deleting)).

use thalweg_transport::Outbox;

use super::{
    database::Database,
    session::{CommandProgress, Session},
};

/// Error reply to a command that deletes all keys, if the client's address has used up its share.
const TOO_MANY_DELETES: &str = "BUSY the clients of this address have their share of deletes of many keys that are still \
     being removed: retry later";

impl Session {
    /// Reserves shares for `commands` commands that join the burst and delete all keys of the selected database. If the
    /// client's address has used up its share, replies with an error, and returns the progress to report. Otherwise
    /// returns `None`.
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
