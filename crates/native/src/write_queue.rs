//! Writes of a channel that wait for rows from the disk, or that wait behind such writes.
//!
//! Owns: their order and their bounds. Does not own: the choice of the rows (`row_fetch` of the engine), the threads
//! that read them (`thalweg_serving::readers`), and the proposals (`write`).
//!
//! If a command needs rows that are not in memory, other threads read them before it is proposed. So no commit waits
//! for the disk. During this time, the channel handles its next frames. Further writes queue behind the command, while
//! their own rows are read.
//!
//! Invariants:
//! * A channel's writes are proposed in the order in which they arrived. No event stops a waiting write: it is proposed
//!   even after the timeout of its request.
//! * While [`MAX_FETCHES`] writes wait for rows, or the waiting writes take [`MAX_WAITING_BYTES`], the queue is full,
//!   and the channel handles no further frame. Each bound is exceeded by one write at most. The bytes count in
//!   [`Resource::BodyBytes`]. If a client has no room there, its waiting writes are proposed at once, without reads of
//!   rows.
//! * A channel that closes with a goodbye proposes all its waiting writes at once. A channel whose connection is lost
//!   proposes none of them, and their reads end.

use std::{collections::VecDeque, fmt, sync::Arc, task::Context};

use thalweg_engine::{Database, RowsOf};
use thalweg_serving::{
    admission::{Account, Reservation, Resource},
    fetched::{FetchingRows, RowFetcher},
};
use tokio::sync::oneshot;

/// Maximum number of waiting writes whose rows other threads read. It equals the number of threads for cold reads.
const MAX_FETCHES: usize = 32;
/// Maximum memory in bytes of the waiting writes of a channel (a TCP connection or a QUIC stream).
const MAX_WAITING_BYTES: usize = 1 << 20;
/// Memory in bytes of a waiting write, in addition to its data.
const WRITE_BYTES: usize = 1024;

/// Function that proposes a write. The channel (a TCP connection or a QUIC stream) commits the proposed command
/// afterwards.
pub(crate) type Propose<T> = Box<dyn FnOnce() -> T + Send>;

/// Queue of the writes of a channel (a TCP connection or a QUIC stream) that wait until other threads have read rows
/// for them. Proposing a write returns a `T`. See the [module](self).
pub(crate) struct WriteQueue<T> {
    waiting: VecDeque<WaitingWrite<T>>,
    /// Number of waiting writes for which other threads read rows from the disk.
    fetches: usize,
    /// Memory in bytes of all writes that wait in the queue.
    bytes: usize,
}

struct WaitingWrite<T> {
    fetching: FetchingRows,
    /// True if other threads had to read rows from the disk for this write.
    has_fetch: bool,
    propose: Propose<T>,
    proposed: oneshot::Sender<T>,
    /// Memory in bytes of the waiting write and its data.
    bytes: usize,
    _held: Option<Reservation>,
}

impl<T> Default for WriteQueue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), fetches: 0, bytes: 0 }
    }
}

impl<T> WriteQueue<T> {
    /// Returns true if too many writes wait. The channel (a TCP connection or a QUIC stream) then must not handle
    /// another frame.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.fetches >= MAX_FETCHES || self.bytes >= MAX_WAITING_BYTES
    }

    /// Begins to read the rows that a command will need when it is applied. Returns `None` if the command can be
    /// proposed now. Otherwise the caller must [add](Self::push) the command to the queue.
    pub(crate) fn begin(&self, fetcher: RowFetcher<'_>, db: &Database, command: &[u8]) -> Option<FetchingRows> {
        let fetching = fetcher.begin(db, RowsOf::Command(command));
        if self.waiting.is_empty() { fetching } else { Some(fetching.unwrap_or_default()) }
    }

    /// Adds a write with `bytes` bytes of data; `propose` proposes it later. The returned receiver gets the result,
    /// unless the queue is dropped before. If the client may not hold so many bytes now, all waiting writes are
    /// proposed at once, including this one.
    pub(crate) fn push(
        &mut self,
        account: &Arc<Account>,
        fetching: FetchingRows,
        bytes: usize,
        propose: Propose<T>,
    ) -> oneshot::Receiver<T> {
        let bytes = WRITE_BYTES + bytes;
        let held = account.take_quietly(Resource::BodyBytes, bytes as u64);
        let has_room = held.is_some();
        let (proposed, result) = oneshot::channel();
        let has_fetch = !fetching.is_done();
        self.fetches += usize::from(has_fetch);
        self.bytes += bytes;
        self.waiting.push_back(WaitingWrite { fetching, has_fetch, propose, proposed, bytes, _held: held });
        if !has_room {
            self.propose_all();
        }
        result
    }

    /// Proposes writes whose rows have been read, in order, up to the first one that still waits. Returns true if any
    /// was proposed; the channel (a TCP connection or a QUIC stream) must then commit them.
    pub(crate) fn propose_read(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Some(first) = self.waiting.front_mut() {
            if first.fetching.poll_done(cx).is_pending() {
                break;
            }
            any |= self.propose_first();
        }
        any
    }

    /// Proposes all waiting writes in order, without their rows. Returns true if there were any.
    pub(crate) fn propose_all(&mut self) -> bool {
        let mut any = false;
        while self.propose_first() {
            any = true;
        }
        any
    }

    fn propose_first(&mut self) -> bool {
        let Some(write) = self.waiting.pop_front() else { return false };
        self.fetches -= usize::from(write.has_fetch);
        self.bytes -= write.bytes;
        // If the timeout of the request has passed, the receiver is gone, and the reply is dropped.
        let _ = write.proposed.send((write.propose)());
        true
    }
}

impl<T> fmt::Debug for WriteQueue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { waiting, fetches, bytes } = self;
        write!(f, "WriteQueue({} writes, {fetches} with reads, {bytes} bytes)", waiting.len())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Mutex, task::Waker};

    use super::*;
    use crate::test_node::TestNode;

    /// A queue whose writes record their numbers when they are proposed.
    struct Tested {
        account: Arc<Account>,
        queue: WriteQueue<u32>,
        proposed: Arc<Mutex<Vec<u32>>>,
    }

    impl Tested {
        fn push(&mut self, number: u32, bytes: usize) -> oneshot::Receiver<u32> {
            let proposed = Arc::clone(&self.proposed);
            let propose = move || {
                proposed.lock().unwrap().push(number);
                number
            };
            self.queue.push(&self.account, FetchingRows::default(), bytes, Box::new(propose))
        }

        fn proposed(&self) -> Vec<u32> {
            self.proposed.lock().unwrap().clone()
        }

        fn held(&self) -> u64 {
            self.account.held(Resource::BodyBytes)
        }
    }

    #[tokio::test]
    async fn writes_wait_in_order_and_within_bounds() {
        let node = TestNode::start().await;
        let mut tested = Tested { account: node.account(), queue: WriteQueue::default(), proposed: Arc::default() };
        let receivers = [1, 2, 3].map(|number| tested.push(number, 100));
        assert_eq!((tested.proposed(), tested.held()), (vec![], 3 * (WRITE_BYTES as u64 + 100)));
        assert!(tested.queue.propose_read(&mut Context::from_waker(Waker::noop())));
        assert!(!tested.queue.propose_read(&mut Context::from_waker(Waker::noop())));
        for (receiver, number) in receivers.into_iter().zip(1..) {
            assert_eq!(receiver.await, Ok(number));
        }
        assert_eq!((tested.proposed(), tested.held()), (vec![1, 2, 3], 0));
        // Dropping the receiver does not stop its write.
        drop(tested.push(4, MAX_WAITING_BYTES));
        assert!(tested.queue.is_full());
        assert!(tested.queue.propose_all() && !tested.queue.is_full());
        assert_eq!((tested.proposed().len(), tested.held()), (4, 0));
        // If the queue is dropped with its channel, it proposes no writes.
        let receiver = tested.push(5, 100);
        tested.queue = WriteQueue::default();
        assert!(receiver.await.is_err());
        assert_eq!((tested.proposed().len(), tested.held()), (4, 0));
    }

    #[tokio::test]
    async fn writes_do_not_wait_if_their_client_has_no_room() {
        let node = TestNode::start().await;
        let mut tested = Tested { account: node.account(), queue: WriteQueue::default(), proposed: Arc::default() };
        let waiting = tested.push(1, 100);
        // Uses the same connection, because another connection would get a part of the reserve.
        let same = Arc::clone(&tested.account);
        let held: Vec<_> = std::iter::from_fn(|| same.take_quietly(Resource::BodyBytes, 1 << 20)).collect();
        assert!(held.len() > 1 && tested.proposed().is_empty());
        let large = tested.push(2, 2 << 20);
        drop(held);
        assert_eq!((waiting.await, large.await, tested.held()), (Ok(1), Ok(2), 0));
        assert_eq!(tested.proposed(), [1, 2]);
    }
}
