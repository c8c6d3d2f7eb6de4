//! Lookup of the keyspaces, streams and groups that a commit or a transaction names.

use std::{collections::HashMap, sync::Arc};

use thalweg_serving::{app::App, error::ApiError};
use thalweg_types::{GroupId, KeyspaceId, StreamId};

use crate::{call::Call, groups, read_gate};

/// Object whose name an operation contains: a keyspace, stream or group.
pub(crate) enum Target<'a> {
    /// A keyspace, by its name.
    Keyspace(&'a str),
    /// A stream, by its name.
    Stream(&'a str),
    /// A consumer group: the name of its stream, and its own name.
    Group(&'a str, &'a str),
}

/// Ids of the keyspaces, streams and groups that a commit or transaction names. Missing keyspaces and streams are
/// created before the commit. Their creation is not part of the atomic commit, and stays if the commit fails.
#[derive(Default)]
pub(crate) struct Names {
    keyspaces: HashMap<String, KeyspaceId>,
    streams: HashMap<String, StreamId>,
    /// Ids of consumer groups, by the name of the stream and the name of the group.
    groups: HashMap<(String, String), GroupId>,
}

impl Names {
    /// Looks up the names for a request, and creates missing keyspaces and streams.
    pub(crate) async fn of<'o>(
        app: &Arc<App>,
        call: &Call,
        targets: impl Iterator<Item = Target<'o>>,
    ) -> Result<Self, ApiError> {
        let mut names = Self::default();
        for target in targets {
            match target {
                Target::Keyspace(name) if !names.keyspaces.contains_key(name) => {
                    names.keyspaces.insert(name.to_owned(), call.keyspace(app, name).await?.id());
                }
                Target::Stream(name) if !names.streams.contains_key(name) => {
                    names.streams.insert(name.to_owned(), call.stream(app, name).await?.id());
                }
                Target::Keyspace(_) | Target::Stream(_) => {}
                Target::Group(stream, name) => {
                    let find = || groups::find_named(app.db.blocking(), stream, name);
                    let id = read_gate::look_up(app, call, find).await?.id();
                    names.groups.insert((stream.to_owned(), name.to_owned()), id);
                }
            }
        }
        Ok(names)
    }

    /// Returns the id of the keyspace with this name.
    pub(crate) fn keyspace(&self, name: &str) -> Result<KeyspaceId, ApiError> {
        self.keyspaces.get(name).copied().ok_or_else(|| thalweg_serving::error::no_such_keyspace(name))
    }

    /// Returns the id of the stream with this name.
    pub(crate) fn stream(&self, name: &str) -> Result<StreamId, ApiError> {
        self.streams.get(name).copied().ok_or_else(|| thalweg_serving::error::no_such_stream(name))
    }

    /// Returns the id of the consumer group with this name on the stream.
    pub(crate) fn group(&self, stream: &str, group: &str) -> Result<GroupId, ApiError> {
        let found = self.groups.get(&(stream.to_owned(), group.to_owned())).copied();
        found.ok_or_else(|| groups::no_such_group(stream, group))
    }
}
