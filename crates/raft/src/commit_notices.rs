//! Commit notices: messages of the leader without entries, by which a follower learns that earlier entries are
//! committed.
//!
//! Owns: the time at which a notice is sent. Does not own: the network that carries it.
//!
//! openraft sends a notice to each follower after each commit, unless an entry follows immediately. A client that waits
//! for each of its writes sends the next one a moment later. Without a delay, half of all messages and half of the
//! resulting wake-ups would come from notices. A notice therefore waits for [`NoticeTimes::delay`]. It is dropped if
//! another append follows in this time, because that append carries the same commit position or a later one. A notice
//! does not wait if the follower has recently asked for something whose reply waits for a commit
//! ([`FollowerRequests`]).
//!
//! openraft expects no separate result for a dropped notice: the result of a later append serves as well. Each
//! heartbeat has the commit position as well, so a follower that misses a notice learns of the commit with the next
//! one.

use std::{cell::Cell, fmt, rc::Rc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use openraft::{
    Instant,
    async_runtime::AsyncRuntime,
    raft::AppendEntriesRequest,
    type_config::{TypeConfigExt, alias::InstantOf},
};

use crate::types::Types;

/// Settings for the delay of commit notices (messages that tell a follower only that entries are committed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoticeTimes {
    /// Longest time for which a notice waits. A longer delay saves messages, but readers of followers see a write
    /// later.
    pub delay: Duration,
    /// Time after a request of the follower during which notices to this follower are sent without delay.
    pub at_once_for: Duration,
}

impl NoticeTimes {
    /// Settings for commit notices that the server uses.
    pub const DEFAULTS: Self = Self { delay: Duration::from_millis(1), at_once_for: Duration::from_secs(1) };
}

/// Rule that decides how long a message to a follower waits: only commit notices may be delayed.
#[derive(Clone, Copy, Debug)]
struct NoticePolicy {
    times: NoticeTimes,
    has_sent_entries: bool,
}

impl NoticePolicy {
    const fn new(times: NoticeTimes) -> Self {
        Self { times, has_sent_entries: false }
    }

    /// Returns the time for which an append waits for another append to replace it; zero if it is sent at once.
    /// `since_request` is the time since the follower's last request; `None` if it has sent none. An append that
    /// precedes the stream's first entries is sent at once: it probes for the last entry that the follower has, or is a
    /// heartbeat.
    fn wait(self, is_notice: bool, since_request: Option<Duration>) -> Duration {
        let has_asked = since_request.is_some_and(|since| since < self.times.at_once_for);
        if is_notice && self.has_sent_entries && !has_asked { self.times.delay } else { Duration::ZERO }
    }

    /// Returns the rule that applies to the next message to the follower, after one message was sent. `is_notice` is
    /// true if that message was a commit notice.
    const fn left(self, is_notice: bool) -> Self {
        Self { has_sent_entries: self.has_sent_entries || !is_notice, ..self }
    }
}

/// Time of a follower's last request whose reply waits until the follower has applied an entry: a forwarded write or a
/// linearizable read. Clones share the time.
pub struct FollowerRequests<Rt: AsyncRuntime>(Rc<Cell<Option<InstantOf<Types<Rt>>>>>);

impl<Rt: AsyncRuntime> Clone for FollowerRequests<Rt> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<Rt: AsyncRuntime> Default for FollowerRequests<Rt> {
    fn default() -> Self {
        Self(Rc::new(Cell::new(None)))
    }
}

impl<Rt: AsyncRuntime> fmt::Debug for FollowerRequests<Rt> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FollowerRequests").field(&self.0.get()).finish()
    }
}

impl<Rt: AsyncRuntime> FollowerRequests<Rt> {
    /// Sets the time of the follower's last request to now.
    pub fn note(&self) {
        self.0.set(Some(Types::<Rt>::now()));
    }

    fn age(&self) -> Option<Duration> {
        Some(Types::<Rt>::now().saturating_duration_since(self.0.get()?))
    }
}

/// Passes on a stream of appends to a follower, without those commit notices that a later append makes unnecessary.
pub fn without_needless_notices<Rt, S>(
    appends: S,
    times: NoticeTimes,
    requests: FollowerRequests<Rt>,
) -> impl Stream<Item = AppendEntriesRequest<Types<Rt>>>
where
    Rt: AsyncRuntime,
    S: Stream<Item = AppendEntriesRequest<Types<Rt>>> + Unpin,
{
    let state = (appends.fuse(), NoticePolicy::new(times), requests);
    stream::unfold(state, |(mut appends, policy, requests)| async move {
        let mut append = appends.next().await?;
        let wait = policy.wait(append.entries.is_empty(), requests.age());
        if !wait.is_zero() {
            let leaves = Types::<Rt>::now() + wait;
            while append.entries.is_empty() {
                match Types::<Rt>::timeout_at(leaves, appends.next()).await {
                    Ok(Some(next)) => append = next,
                    Ok(None) | Err(_) => break,
                }
            }
        }
        let policy = policy.left(append.entries.is_empty());
        Some((append, (appends, policy, requests)))
    })
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use openraft::EntryPayload;
    use openraft_rt_tokio::TokioRuntime;
    use thalweg_state::membership::LogId;
    use thalweg_types::{Index, SpaceTime, Term};
    use tokio::{sync::mpsc, time::Instant};

    use super::*;
    use crate::{Commands, RaftEntry, RaftLogId, RaftVote, raft_log_id};

    const TIMES: NoticeTimes = NoticeTimes::DEFAULTS;

    type Append = AppendEntriesRequest<Types<TokioRuntime>>;
    type Requests = FollowerRequests<TokioRuntime>;

    /// Runs a test on a simulated clock that advances only while no task can run.
    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(test);
    }

    fn id(index: u64) -> RaftLogId {
        raft_log_id(LogId { term: Term(1), index: Index(index) })
    }

    /// Returns an append after entry `index - 1`: with one entry, or without entries as a commit notice.
    fn append(index: u64, has_entry: bool) -> Append {
        let payload = EntryPayload::Normal(Commands { time: SpaceTime(1), bytes: vec![7].into() });
        AppendEntriesRequest {
            vote: RaftVote { leader_id: openraft::vote::RaftLeaderId::new(1, 1), committed: true },
            prev_log_id: Some(id(index - 1)),
            leader_commit: None,
            entries: if has_entry { vec![RaftEntry { log_id: id(index), payload }] } else { Vec::new() },
        }
    }

    /// Passes appends through the filter of commit notices at the given times in milliseconds. Returns the appends that
    /// the filter let pass: for each, the index of the entry before it and the time in milliseconds at which it left.
    async fn pass(requests: Requests, appends: Vec<(u64, Append)>) -> Vec<(u64, u128)> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let input = stream::unfold(receiver, |mut receiver: mpsc::UnboundedReceiver<_>| async move {
            Some((receiver.recv().await?, receiver))
        });
        let begun = Instant::now();
        let left = without_needless_notices(Box::pin(input), TIMES, requests)
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
    fn the_policy_delays_notices_that_nobody_waits_for() {
        let policy = NoticePolicy::new(TIMES);
        assert_eq!(policy.left(true).wait(true, None), Duration::ZERO, "a heartbeat, or a search for the last entry");
        let policy = policy.left(false).left(true);
        assert_eq!(policy.wait(true, None), TIMES.delay);
        assert_eq!(policy.wait(false, None), Duration::ZERO, "entries");
        assert_eq!(policy.wait(true, Some(TIMES.at_once_for)), TIMES.delay);
        let just_before = TIMES.at_once_for - Duration::from_nanos(1);
        assert_eq!(policy.wait(true, Some(just_before)), Duration::ZERO);
    }

    #[test]
    fn a_notice_leaves_with_the_next_entries_or_after_its_delay() {
        run(async {
            let appends = vec![
                (0, append(2, false)),
                (0, append(2, true)),
                (10, append(3, false)),
                (10, append(3, false)),
                (10, append(3, true)),
                (20, append(4, false)),
                (30, append(4, true)),
                (30, append(5, false)),
            ];
            // The first append asks for the follower's last entry. No append replaces the notice at 20 ms in time, and
            // the stream ends after the last append.
            let left = pass(Requests::default(), appends).await;
            assert_eq!(left, [(1, 0), (1, 0), (2, 10), (3, 21), (3, 30), (4, 30)]);
        });
    }

    #[test]
    fn a_notice_does_not_wait_after_a_request_of_the_follower() {
        run(async {
            let requests = Requests::default();
            requests.note();
            let appends = |at| vec![(at, append(2, true)), (at + 1, append(3, false)), (at + 9, append(3, true))];
            assert_eq!(pass(requests.clone(), appends(0)).await, [(1, 0), (2, 1), (2, 9)]);
            tokio::time::sleep(TIMES.at_once_for).await;
            assert_eq!(pass(requests, appends(0)).await, [(1, 0), (2, 2), (2, 9)], "it waits again");
        });
    }
}
