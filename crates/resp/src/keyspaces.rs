//! A keyspace as a database: reads of one view of the state, writes as commands of the log.

use thalweg_engine::{AsyncDatabase, Keyspace, Purpose, Wake, WriteError};
use thalweg_redis::{Flags, Read, StoreError};
use thalweg_types::{
    Durability, KeyspaceId,
    command::{KeyspaceConfig, Outcome, RedisBuilder},
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
    /// Returns a handle that serves a keyspace as a Redis database. Writes are acknowledged at the durability `level`,
    /// but at least at `os`, because below `os` the outcome of a command is unknown.
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
        Box::pin(async move {
            match under_way.await {
                Ok((_, Some(Outcome::Redis(outcome)))) => Ok(outcome),
                Ok(other) => Err(Failure(format!("MISCONF the log returned an unexpected outcome: {other:?}").into())),
                Err(error) => Err(Failure::of(&error)),
            }
        })
    }
}
