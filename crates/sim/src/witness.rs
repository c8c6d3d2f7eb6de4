//! Observer of the writes of consensus to a node's log, and of the log's confirmations.

use std::{io, ops::RangeInclusive};

use openraft::{
    LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
    type_config::TypeConfigExt,
};
use thalweg_raft::{LogReader, RaftEntry, RaftLogId, RaftVote, log_id, raft_log_id, vote};
use thalweg_state::membership::LogId;
use thalweg_types::{Index, Term};

use crate::{
    logs::{Logs, Opened},
    runtime::{ProcessId, spawn},
    types::Types,
};

/// The log of one run of a node. It reports each operation of consensus on the log to the checks in `logs`.
pub(crate) struct Witness<S> {
    pub(crate) store: S,
    pub(crate) node: ProcessId,
    pub(crate) logs: Logs,
    /// True if the node's files may be damaged, so that the log is not compared with earlier reports.
    pub(crate) is_damaged: bool,
    pub(crate) has_opened: bool,
}

impl<S: RaftLogStorage<Types, LogReader = LogReader>> Witness<S> {
    /// Reports the contents of the log that was just opened.
    async fn report_opened(&mut self, state: &LogState<Types>) -> io::Result<()> {
        let mut reader = self.store.get_log_reader().await;
        let found = RaftLogReader::<Types>::read_vote(&mut reader).await?;
        let purged = state.last_purged_log_id.as_ref().map(log_id);
        let first = purged.map_or(Index::ZERO, |purged| purged.index.next());
        let last = state.last_log_id.filter(|last| last.index >= first.0);
        let term_ends = match last {
            Some(last) => {
                let range: RangeInclusive<RaftLogId> = raft_log_id(LogId { term: Term::ZERO, index: first })..=last;
                RaftLogReader::<Types>::get_key_log_ids(&mut reader, range).await?
            }
            None => Vec::new(),
        };
        let opened =
            Opened { vote: found.as_ref().map(vote), purged, term_ends: term_ends.iter().map(log_id).collect() };
        self.logs.opened(self.node, &opened, self.is_damaged);
        Ok(())
    }
}

impl<S: RaftLogStorage<Types, LogReader = LogReader>> RaftLogStorage<Types> for Witness<S> {
    type LogReader = LogReader;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let state = self.store.get_log_state().await?;
        if !std::mem::replace(&mut self.has_opened, true) {
            self.report_opened(&state).await?;
        }
        Ok(state)
    }

    async fn get_log_reader(&mut self) -> LogReader {
        self.store.get_log_reader().await
    }

    async fn save_vote(&mut self, raft: &RaftVote) -> io::Result<()> {
        self.store.save_vote(raft).await?;
        self.logs.voted(self.node, vote(raft));
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<RaftEntry> = entries.into_iter().collect();
        self.logs.appended(self.node, &entries);
        let last = entries.last().map(|entry| log_id(&entry.log_id));
        let (sender, receiver) = Types::oneshot();
        self.store.append(entries, IOFlushed::signal(sender)).await?;
        let (node, logs) = (self.node, self.logs.clone());
        spawn(node, async move {
            // The log drops the callback when the node ends.
            let Ok(flushed) = receiver.await else { return };
            if let Some(last) = last.filter(|_| flushed.is_ok()) {
                logs.confirmed(node, last);
            }
            callback.io_completed(flushed);
        });
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> io::Result<()> {
        self.store.truncate_after(last).await?;
        self.logs.truncated(self.node, last.as_ref().map(log_id));
        Ok(())
    }

    async fn purge(&mut self, upto: RaftLogId) -> io::Result<()> {
        self.store.purge(upto).await?;
        self.logs.purged(self.node, log_id(&upto));
        Ok(())
    }
}
