//! Commit notices: appends without entries, by which a follower learns that earlier entries are committed.
//!
//! Owns: when a notice leaves. openraft sends one to each follower after each commit, unless an entry follows
//! immediately. A client that waits for each of its writes sends the next one a moment later. Without a delay, half of
//! all messages, and of the wake-ups that they cost on both nodes, would be notices. A notice therefore waits for
//! [`NOTICE_DELAY`], and is dropped if another append follows meanwhile, which has the same commit position or a later
//! one. It does not wait if the follower has recently asked for something whose reply waits for a commit ([`Waiting`]).
//!
//! openraft counts entries as stored by the results of later appends too, so a dropped notice needs no result of its own.

use std::{cell::Cell, rc::Rc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use openraft::raft::AppendEntriesRequest;
use tokio::time::{Instant, timeout_at};

use crate::types::Types;

/// Longest time for which a notice waits.
const NOTICE_DELAY: Duration = Duration::from_millis(1);
/// Time after a request of a follower in which commit notices to this follower are sent without delay.
const WAITING_FOR: Duration = Duration::from_secs(1);

/// Time of the last request of a follower whose reply waits until the follower has applied an entry: a forwarded write,
/// or a linearizable read. Clones share the time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting(Rc<Cell<Option<Instant>>>);

impl Waiting {
    /// Notes a request.
    pub(crate) fn note(&self) {
        self.0.set(Some(Instant::now()));
    }

    fn is_recent(&self) -> bool {
        self.0.get().is_some_and(|at| at.elapsed() < WAITING_FOR)
    }
}

/// Passes appends on, and drops the notices that another append makes unnecessary. Appends before the first one with
/// entries are passed on immediately: they determine the last entry that the follower has.
pub(super) fn without_needless(
    appends: impl Stream<Item = AppendEntriesRequest<Types>> + Unpin,
    waiting: Waiting,
) -> impl Stream<Item = AppendEntriesRequest<Types>> {
    let has_sent_entries = false;
    stream::unfold((appends.fuse(), has_sent_entries, waiting), |(mut appends, had_entries, waiting)| async move {
        let mut append = appends.next().await?;
        if had_entries && append.entries.is_empty() && !waiting.is_recent() {
            let leaves = Instant::now() + NOTICE_DELAY;
            while append.entries.is_empty() {
                match timeout_at(leaves, appends.next()).await {
                    Ok(Some(next)) => append = next,
                    Ok(None) | Err(_) => break,
                }
            }
        }
        let has_entries = had_entries || !append.entries.is_empty();
        Some((append, (appends, has_entries, waiting)))
    })
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::{super::tests::request, *};
    use crate::testing::run_paused;

    /// Passes appends through the filter at the given times in milliseconds. Returns the index of the entry before each
    /// append that left, with the time at which it left.
    async fn pass(waiting: Waiting, appends: Vec<(u64, AppendEntriesRequest<Types>)>) -> Vec<(u64, u128)> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let input = stream::unfold(receiver, |mut receiver: mpsc::UnboundedReceiver<_>| async move {
            Some((receiver.recv().await?, receiver))
        });
        let begun = Instant::now();
        let left = without_needless(Box::pin(input), waiting)
            .map(|append| (append.prev_log_id.unwrap().index, begun.elapsed().as_millis()));
        let sends = async move {
            for (at, append) in appends {
                tokio::time::sleep_until(begun + Duration::from_millis(at)).await;
                sender.send(append).unwrap();
            }
        };
        futures_util::future::join(left.collect(), sends).await.0
    }

    #[test]
    fn a_notice_leaves_with_the_next_entries_or_after_its_delay() {
        run_paused(async {
            let appends = vec![
                (0, request(2, None)),
                (0, request(2, Some(1))),
                (10, request(3, None)),
                (10, request(3, None)),
                (10, request(3, Some(1))),
                (20, request(4, None)),
                (30, request(4, Some(1))),
                (30, request(5, None)),
            ];
            // The first append looks for the follower's last entry. The notice at 20 ms has no successor in time, and
            // the stream ends after the last one.
            let left = pass(Waiting::default(), appends).await;
            assert_eq!(left, [(1, 0), (1, 0), (2, 10), (3, 21), (3, 30), (4, 30)]);
        });
    }

    #[test]
    fn a_notice_does_not_wait_after_a_request_of_the_follower() {
        run_paused(async {
            let waiting = Waiting::default();
            waiting.note();
            let appends =
                |at| vec![(at, request(2, Some(1))), (at + 1, request(3, None)), (at + 9, request(3, Some(1)))];
            assert_eq!(pass(waiting.clone(), appends(0)).await, [(1, 0), (2, 1), (2, 9)]);
            tokio::time::sleep(WAITING_FOR).await;
            assert_eq!(pass(waiting, appends(0)).await, [(1, 0), (2, 2), (2, 9)], "it waits again");
        });
    }
}
