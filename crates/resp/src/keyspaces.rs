//! A keyspace as a database: reads of one view of the state, writes as commands of the log.

use thalweg_engine::{AsyncDatabase, CommandResult, Keyspace, Purpose, Wake, WriteError};
use thalweg_redis::{Flags, Read, Reply, StoreError};
use thalweg_types::{
    Durability, KeyspaceId,
    command::{Command, KeyspaceConfig, Outcome, RedisBuilder},
};

use super::{
    commands::Commands,
    database::{Batched, PendingOutcome, Watched},
    failure::Failure,
    gathering,
};

/// A keyspace that serves Redis clients as a database; see the module's documentation.
#[derive(Debug)]
pub(crate) struct KeyspaceDatabase {
    db: AsyncDatabase,
    keyspace: KeyspaceId,
    level: Durability,
}

impl KeyspaceDatabase {
    /// Creates a database over a keyspace. Writes are acknowledged at the durability `level`, but at least at `os`,
    /// because below `os` the outcome of a command is unknown.
    pub(crate) fn new(db: &AsyncDatabase, keyspace: &Keyspace, level: Durability) -> Self {
        Self { db: db.clone(), keyspace: keyspace.id(), level: level.max(Durability::Os) }
    }

    /// Returns the configuration of a new keyspace, which may contain hashes and streams.
    #[must_use]
    pub(crate) fn config() -> KeyspaceConfig {
        KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() }
    }

    fn build(&self, commands: &Commands, watched: &[Watched]) -> Result<(Vec<u8>, Purpose), WriteError> {
        let mut builder = RedisBuilder::with_capacity(self.keyspace, commands.bytes());
        for (key, version) in watched {
            builder.watch(key, *version)?;
        }
        let (mut pushed, mut brings_data) = (Ok(()), false);
        commands.each(|command, arguments| {
            if pushed.is_ok() {
                brings_data |= command.flags_of(arguments).contains(Flags::DENY_OOM);
                pushed = builder.push(arguments).map(|_| ());
            }
        });
        pushed?;
        // Commands that only remove data are accepted even if the disk is full.
        Ok((builder.finish(), if brings_data { Purpose::Data } else { Purpose::Reclaim }))
    }
}

/// Returns the replies in the result of a proposed batch.
fn redis_outcome(result: Result<CommandResult, WriteError>) -> Result<Option<Vec<Reply>>, Failure> {
    match result {
        Ok((_, Some(Outcome::Redis(outcome)))) => Ok(outcome),
        Ok(other) => Err(Failure(format!("MISCONF the log returned an unexpected outcome: {other:?}").into())),
        Err(error) => Err(Failure::of(&error)),
    }
}

/// Returns the batch of the commands of `batch` after the first `ran` ones.
fn rest(batch: &[u8], ran: usize) -> Vec<u8> {
    match Command::decode(batch) {
        Ok(Command::Redis(batch)) => batch.rest(ran),
        _ => Vec::new(),
    }
}

impl Batched for KeyspaceDatabase {
    fn read(&self, act: &mut dyn FnMut(&dyn Read) -> Result<(), StoreError>) -> Result<(), Failure> {
        self.db.blocking().redis_read(self.keyspace, |read| act(read)).map_err(|error| Failure::of(&error))
    }

    fn propose(&self, commands: &Commands, watched: &[Watched]) -> PendingOutcome {
        let (command, purpose) = match self.build(commands, watched) {
            Ok(built) => built,
            Err(error) => return Box::pin(std::future::ready(Err(Failure::of(&error)))),
        };
        let under_way = self.db.propose_command(&command, purpose, self.level, Wake::Later);
        gathering::commit_soon(&self.db);
        let (expected, db, level) = (commands.replies(), self.db.clone(), self.level);
        Box::pin(async move {
            let mut replies = match redis_outcome(under_way.await)? {
                Some(replies) if replies.len() < expected => replies,
                outcome => return Ok(outcome),
            };
            // Commands without a reply have changed nothing, because the commands before them took all steps of a
            // batch. They follow as another one. Each batch runs at least one command.
            let mut command = command;
            let mut ran = replies.len();
            while replies.len() < expected {
                command = rest(&command, ran);
                let under_way = db.propose_command(&command, purpose, level, Wake::Later);
                gathering::commit_soon(&db);
                match redis_outcome(under_way.await) {
                    Ok(Some(more)) if !more.is_empty() => {
                        ran = more.len();
                        replies.extend(more);
                    }
                    Ok(_) => break,
                    // The commands before have happened, so they get their replies.
                    Err(Failure(text)) => replies.resize_with(expected, || Reply::Error(text.clone())),
                }
            }
            Ok(Some(replies))
        })
    }
}
