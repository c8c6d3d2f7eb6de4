//! Producers whose appends the current commit has checked but not applied yet.

use std::collections::BTreeMap;

use thalweg_types::{StreamId, command::Outcome, limits::MAX_STREAM_PRODUCERS};

use crate::{refused::Refused, streams::producers::ProducerRow};

/// State of the producers that the current commit names, as if its appends checked so far were applied.
#[derive(Debug, Default)]
pub(crate) struct CheckedProducers(BTreeMap<StreamId, BTreeMap<Box<str>, ProducerRow>>);

impl CheckedProducers {
    /// Removes all producers. Called before the writes of a commit are checked.
    pub(crate) fn clear(&mut self) {
        if !self.0.is_empty() {
            self.0.clear();
        }
    }

    pub(crate) fn get(&self, stream: StreamId, id: &str) -> Option<ProducerRow> {
        self.0.get(&stream)?.get(id).copied()
    }

    /// Stores a producer's state after a checked append. Rejects the commit if it names too many producers of the
    /// stream.
    pub(crate) fn set(&mut self, stream: StreamId, id: &str, row: ProducerRow) -> Result<(), Refused> {
        let named = self.0.entry(stream).or_default();
        if named.len() >= MAX_STREAM_PRODUCERS as usize && !named.contains_key(id) {
            let what = "producers of a stream in one commit";
            return Err(Refused::Outcome(Outcome::TooMany { what, limit: MAX_STREAM_PRODUCERS as usize }));
        }
        named.insert(id.into(), row);
        Ok(())
    }
}
