//! Appends that only tell a follower of a commit.
//!
//! Owns: how long such an append waits for entries that carry the same commit, and the reasons to send it at once. Does not
//! own: sending (`network`).
//!
//! openraft tells the followers of each commit immediately, in an append without entries if there are no new ones. While
//! clients write, the next entries follow within a millisecond and carry the commit too, so that append only costs a frame
//! and a reply for each follower and commit. Here it waits up to [`MAX_WAIT`] for them.
//!
//! A follower that needs the commit at once does not wait: it has forwarded commands, which it acknowledges when it has
//! applied them, or it has asked for a read barrier. Its request notes in [`Wanted`] up to which entry it needs commits.
//!
//! Invariants: requests keep their order; a request with entries is never held back or left out; the last request without
//! entries is sent, at the latest at the second tick after it came.

use std::{cell::Cell, rc::Rc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use openraft::raft::AppendEntriesRequest;
use thalweg_types::Index;
use tokio::{sync::Notify, task::spawn_local, time::sleep};

use crate::types::Types;

/// Time between two ticks. Stale reads, watches and tails on a follower see the last commit of a burst later by up to two of
/// them. The timer adds up to a millisecond.
const TICK: Duration = Duration::from_millis(1);

type Request = AppendEntriesRequest<Types>;

/// Ticks for all followers, while commits wait.
///
/// A timer for each commit would be the earliest one of its thread each time, and setting the earliest timer takes a system
/// call and a turn of the thread's loop. So the commits of all followers wait for the same timer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace(Rc<Ticks>);

#[derive(Debug, Default)]
struct Ticks {
    number: Cell<u64>,
    /// Number of commits that wait.
    waiting: Cell<usize>,
    is_running: Cell<bool>,
    ticked: Notify,
}

/// A commit that waits.
struct Waiting<'a> {
    ticks: &'a Ticks,
    until: u64,
}

impl Pace {
    fn begin(&self) -> Waiting<'_> {
        let ticks = &*self.0;
        ticks.waiting.set(ticks.waiting.get() + 1);
        if !ticks.is_running.replace(true) {
            spawn_local(run(Rc::clone(&self.0)));
        }
        Waiting { ticks, until: ticks.number.get() + 2 }
    }
}

async fn run(ticks: Rc<Ticks>) {
    while ticks.waiting.get() > 0 {
        sleep(TICK).await;
        ticks.number.set(ticks.number.get() + 1);
        ticks.ticked.notify_waiters();
    }
    ticks.is_running.set(false);
}

impl Waiting<'_> {
    async fn end(&self) {
        while self.ticks.number.get() < self.until {
            self.ticks.ticked.notified().await;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.ticks.waiting.set(self.ticks.waiting.get() - 1);
    }
}

#[derive(Debug, Default)]
struct Inner {
    through: Cell<Option<Index>>,
    raised: Notify,
}

/// The entry up to which a follower waits for commits. A clone is the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted(Rc<Inner>);

impl Wanted {
    /// Notes that the follower waits until it knows that `index` is committed.
    pub fn raise(&self, index: Index) {
        if self.0.through.get() < Some(index) {
            self.0.through.set(Some(index));
            self.0.raised.notify_waiters();
        }
    }
}

struct Joining<S> {
    input: stream::Fuse<S>,
    wanted: Wanted,
    pace: Pace,
    /// Last entry that the follower was told to be committed.
    told: Option<Index>,
    /// True once a request with entries was sent. Before that, a request without entries is a heartbeat or a probe.
    has_sent_entries: bool,
}

/// Returns the requests to a follower, in which commits wait for entries.
pub(crate) fn joined<S>(input: S, wanted: Wanted, pace: Pace) -> impl Stream<Item = Request>
where
    S: Stream<Item = Request> + Unpin,
{
    let joining = Joining { input: input.fuse(), wanted, pace, told: None, has_sent_entries: false };
    stream::unfold(joining, |mut joining| async move {
        let request = joining.next().await?;
        Some((request, joining))
    })
}

impl<S: Stream<Item = Request> + Unpin> Joining<S> {
    async fn next(&mut self) -> Option<Request> {
        let mut request = self.input.next().await?;
        if self.has_sent_entries && request.entries.is_empty() {
            request = self.later(request).await;
        }
        self.has_sent_entries |= !request.entries.is_empty();
        self.told = self.told.max(request.leader_commit.as_ref().map(|id| Index(id.index)));
        Some(request)
    }

    /// Returns the next request with entries, or the last one without if none comes in time.
    async fn later(&mut self, mut request: Request) -> Request {
        let waiting = self.pace.begin();
        while request.entries.is_empty() && self.wanted.0.through.get() <= self.told {
            tokio::select! {
                biased;
                next = self.input.next() => match next {
                    Some(next) => request = next,
                    None => return request,
                },
                () = self.wanted.0.raised.notified() => {}
                () = waiting.end() => return request,
            }
        }
        request
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use thalweg_raft::{Commands, RaftEntry, RaftLogId};
    use thalweg_state::membership::LogId;
    use thalweg_types::{NodeId, SpaceTime, Term};
    use thalweg_wire::peer::PeerVote;
    use tokio::sync::mpsc;

    use super::*;
    use crate::{convert::raft_vote, testing::run};

    fn id(index: u64) -> RaftLogId {
        thalweg_raft::raft_log_id(LogId { term: Term(1), index: Index(index) })
    }

    /// Returns an append after the entry `last`, with the next entry or without entries.
    fn request(last: u64, has_entry: bool, committed: u64) -> Request {
        let entry = RaftEntry {
            log_id: id(last + 1),
            payload: openraft::EntryPayload::Normal(Commands { time: SpaceTime(1), bytes: vec![7].into() }),
        };
        Request {
            vote: raft_vote(&PeerVote { term: Term(1), node: NodeId(1), committed: true }),
            prev_log_id: Some(id(last)),
            leader_commit: Some(id(committed)),
            entries: has_entry.then_some(entry).into_iter().collect(),
        }
    }

    /// Returns the number of entries of a request, and the index of its commit.
    fn parts(request: &Request) -> (usize, u64) {
        (request.entries.len(), request.leader_commit.unwrap().index)
    }

    struct Requests {
        sender: Option<mpsc::UnboundedSender<Request>>,
        wanted: Wanted,
    }

    impl Requests {
        fn begin() -> (Self, impl Stream<Item = Request> + Unpin) {
            let (sender, receiver) = mpsc::unbounded_channel();
            let input = stream::unfold(receiver, |mut receiver: mpsc::UnboundedReceiver<Request>| async move {
                Some((receiver.recv().await?, receiver))
            });
            let wanted = Wanted::default();
            let joined = Box::pin(joined(Box::pin(input), wanted.clone(), Pace::default()));
            (Self { sender: Some(sender), wanted }, joined)
        }

        fn send(&self, request: Request) {
            self.sender.as_ref().unwrap().send(request).unwrap();
        }
    }

    #[test]
    fn a_commit_travels_with_the_next_entries() {
        run(async {
            let (requests, mut joined) = Requests::begin();
            requests.send(request(4, true, 4));
            requests.send(request(5, false, 5));
            requests.send(request(5, true, 5));
            requests.send(request(6, false, 6));
            requests.send(request(6, false, 7));
            requests.send(request(6, true, 7));
            let sent: Vec<_> = joined.by_ref().take(3).map(|request| parts(&request)).collect().await;
            assert_eq!(sent, [(1, 4), (1, 5), (1, 7)]);
        });
    }

    #[test]
    fn a_commit_without_further_entries_is_sent_in_time_and_at_the_end() {
        run(async {
            let (mut requests, mut joined) = Requests::begin();
            requests.send(request(4, true, 4));
            requests.send(request(5, false, 5));
            assert_eq!(parts(&joined.next().await.unwrap()), (1, 4));
            let began = Instant::now();
            assert_eq!(parts(&joined.next().await.unwrap()), (0, 5));
            assert!(began.elapsed() >= TICK);
            requests.send(request(5, false, 6));
            requests.sender = None;
            assert_eq!(parts(&joined.next().await.unwrap()), (0, 6));
            assert!(joined.next().await.is_none());
        });
    }

    #[test]
    fn heartbeats_before_entries_do_not_wait() {
        run(async {
            let (requests, mut joined) = Requests::begin();
            requests.send(request(4, false, 4));
            let first = futures_util::FutureExt::now_or_never(joined.next());
            assert_eq!(parts(&first.unwrap().unwrap()), (0, 4));
        });
    }

    #[test]
    fn a_commit_that_the_follower_waits_for_is_sent_at_once() {
        run(async {
            let (requests, mut joined) = Requests::begin();
            requests.send(request(4, true, 4));
            assert_eq!(parts(&joined.next().await.unwrap()), (1, 4));
            // The follower needs entry 5 before its commit is known here, and entry 6 while the commit waits.
            requests.wanted.raise(Index(5));
            requests.send(request(5, false, 5));
            let sent = futures_util::FutureExt::now_or_never(joined.next());
            assert_eq!(parts(&sent.unwrap().unwrap()), (0, 5));
            requests.send(request(5, false, 6));
            let mut next = joined.next();
            assert!(futures_util::poll!(&mut next).is_pending());
            requests.wanted.raise(Index(6));
            let std::task::Poll::Ready(sent) = futures_util::poll!(&mut next) else { panic!("it still waits") };
            assert_eq!(parts(&sent.unwrap()), (0, 6));
        });
    }
}
