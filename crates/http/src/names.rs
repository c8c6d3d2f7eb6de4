//! The names in a commit or a transaction, and whose ids they are.

use std::{collections::HashMap, sync::Arc};

use thalweg_engine::Database;
use thalweg_serving::{app::App, error::ApiError};
use thalweg_types::{GroupId, KeyspaceId, StreamId};

use crate::groups;

/// What an operation is about.
pub(crate) enum Target<'a> {
    /// A keyspace.
    Keyspace(&'a str),
    /// A stream.
    Stream(&'a str),
    /// A consumer group: its stream's name, and its own.
    Group(&'a str, &'a str),
}

/// Ids of the names in a commit or transaction. Keyspaces and streams that do not exist are created before it: that
/// is not part of what is atomic, and harmless if it then fails.
#[derive(Default)]
pub(crate) struct Names {
    keyspaces: HashMap<String, KeyspaceId>,
    streams: HashMap<String, StreamId>,
    /// By the names of their streams and of themselves.
    groups: HashMap<(String, String), GroupId>,
}

impl Names {
    /// Of these, for a request.
    pub(crate) async fn of<'o>(app: &Arc<App>, targets: impl Iterator<Item = Target<'o>>) -> Result<Self, ApiError> {
        let mut names = Self::default();
        for target in targets {
            match target {
                Target::Keyspace(name) if !names.keyspaces.contains_key(name) => {
                    names.keyspaces.insert(name.to_owned(), app.keyspace(name).await?.id());
                }
                Target::Stream(name) if !names.streams.contains_key(name) => {
                    names.streams.insert(name.to_owned(), app.stream(name).await?.id());
                }
                Target::Keyspace(_) | Target::Stream(_) => {}
                Target::Group(stream, name) => names.add_group(app.db.blocking(), stream, name)?,
            }
        }
        Ok(names)
    }

    /// The same for whoever has the database open.
    pub(crate) fn of_database<'o>(db: &Database, targets: impl Iterator<Item = Target<'o>>) -> Result<Self, ApiError> {
        let mut names = Self::default();
        for target in targets {
            match target {
                Target::Keyspace(name) => _ = names.keyspaces.insert(name.to_owned(), db.keyspace(name)?.id()),
                Target::Stream(name) => _ = names.streams.insert(name.to_owned(), db.stream(name)?.id()),
                Target::Group(stream, name) => names.add_group(db, stream, name)?,
            }
        }
        Ok(names)
    }

    fn add_group(&mut self, db: &Database, stream: &str, group: &str) -> Result<(), ApiError> {
        let id = groups::find_named(db, stream, group)?.id();
        self.groups.insert((stream.to_owned(), group.to_owned()), id);
        Ok(())
    }

    /// A keyspace's id.
    pub(crate) fn keyspace(&self, name: &str) -> Result<KeyspaceId, ApiError> {
        self.keyspaces.get(name).copied().ok_or_else(|| thalweg_serving::error::no_such_keyspace(name))
    }

    /// A stream's id.
    pub(crate) fn stream(&self, name: &str) -> Result<StreamId, ApiError> {
        self.streams.get(name).copied().ok_or_else(|| thalweg_serving::error::no_such_stream(name))
    }

    /// A consumer group's id.
    pub(crate) fn group(&self, stream: &str, group: &str) -> Result<GroupId, ApiError> {
        let found = self.groups.get(&(stream.to_owned(), group.to_owned())).copied();
        found.ok_or_else(|| groups::no_such_group(stream, group))
    }
}
