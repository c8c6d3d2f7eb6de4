//! Fair sharing of a serving thread among connections with much output: limits how many bytes they send before the
//! thread polls its sockets again, and gives them turns.
//!
//! Owns: the rounds (the time between two polls of a runtime's sockets), the queue of the connections that wait for a
//! turn, and the bytes of a turn. Does not own: the output, and the decision which output is bulk.
//!
//! Bulk output is output that no client waits for, or that is long: deliveries, tails, pushes, watches, pages of scans,
//! and the part of a client's waiting replies beyond [`REPLY_BYTES`]. Other replies are sent immediately, and are not
//! counted here.
//!
//! ```text
//! round: bulk output, 512 KiB or 2 MiB in total ─► poll of the sockets ─► requests that arrived ─► next round
//! ```
//! Rounds limit how long a thread goes without polling its sockets, even if it copies megabytes for each of many slow
//! readers. While a round has bytes left, connections send whenever they are woken; that costs one counter. After its
//! end, connections with bulk output queue. Each later round begins with turns for the first connections in the queue:
//! addresses in turn, and the connections of each address in turn. A turn permits the bytes of two rounds, and may last
//! several rounds. Once no connection waits, all may send again without a turn.
//!
//! A client whose publishes cause 4 MiB of deliveries waits for a turn in the same queue ([`CausedWork`]). So requests
//! overtake deliveries, but publishers do not, and subscribers that read get all that is published.
//!
//! Long requests count like bulk output: two milliseconds of them end a round. A client that pipelines many of them is
//! served for [`SLICE`] at a time ([`Slice`]). Then this client waits for a turn too, while its thread serves the short
//! requests of other clients.
//!
//! A connection that has a turn and nothing to send does not delay the others. Bounds: the queue has one entry for each
//! connection or streamed body. `thalweg_transport` bounds the bytes of one write, and the unsent bytes that the kernel
//! accepts.
//!
//! Invariant: while `is_crowded` is true, a task exists that begins the next round.

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::task::AtomicWaker;
use tokio::runtime::Handle;

use crate::{
    admission::Account,
    fair_queue::{FairQueue, QueuePosition},
};

/// Maximum number of bytes of bulk output that a thread for plain TCP sends in one round, before it polls its sockets
/// again. A thread receives and sends this many in about a millisecond. A round exceeds this number by at most one
/// write for each thread of the runtime. Rounds of 512 KiB were slower: a publisher and its subscriber woke each other
/// so often that each delivery of 128 bytes took a tenth more of the server's CPU time.
pub const ROUND_BYTES: usize = 2 * 1024 * 1024;
/// Maximum number of bytes of bulk output that the async runtime sends in one round, before it polls its sockets again.
/// It is smaller than [`ROUND_BYTES`] because each byte takes longer: connections of this runtime encrypt, or send HTTP
/// bodies.
pub const SHARED_ROUND_BYTES: usize = 512 * 1024;
/// Time of long requests after which a round ends and the thread polls its sockets again: about two milliseconds.
/// Rounds that deliver messages mostly end sooner, because they have sent all their bytes.
const ROUND_TIME: Duration = Duration::from_nanos(1 << 21);
/// Number of rounds whose bytes a connection may send in one turn. A round is the time between two polls of a runtime's
/// sockets, and has a limit on its bytes of bulk output.
const TURN_ROUNDS: usize = 2;
/// Number of bytes of deliveries that a client's publishes may cause before the client must wait in the queue for bulk
/// output, while other connections are served.
const CAUSED_BYTES: u64 = (TURN_ROUNDS * ROUND_BYTES) as u64;
/// Maximum number of bytes of replies that a connection sends without waiting for a turn to send bulk output. The
/// replies to most requests are shorter.
pub const REPLY_BYTES: usize = 16 * 1024;
/// Number of bytes that each write of bulk output counts in addition to its size. Without it, a thread could make very
/// many small writes before its bytes are used up and it polls its sockets.
const WRITE_BYTES: usize = 512;
/// Number of waiting connections that get a turn at the beginning of the first round in which connections wait. Each
/// later round gives twice as many turns if the previous round left bytes unused, and half as many otherwise.
const FIRST_TURNS: usize = 8;
/// Maximum number of connections whose turn to send bulk output begins or continues at the start of a round (the time
/// between two polls of the runtime's sockets).
const MAX_TURNS: usize = 64;

/// Counters of bulk output, which the runtimes of a server share.
#[derive(Debug, Default)]
pub struct BulkCounters {
    bytes: AtomicU64,
    rounds: AtomicU64,
}

impl BulkCounters {
    /// Returns the number of bytes of bulk output since the start. Each write counts with `WRITE_BYTES` more than its
    /// size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns how many rounds have ended because bulk output or long requests used up their bytes. A round is the time
    /// between two polls of a runtime's sockets.
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }
}

/// Turns to send bulk output, shared by the connections of one runtime. All these connections together send at most the
/// bytes of one round before the runtime polls its sockets. See the [module](self).
#[derive(Debug)]
pub struct BulkTurns {
    /// Number of bytes of bulk output that the connections of the runtime may send together between two polls of its
    /// sockets (in one round).
    round_bytes: usize,
    /// Bytes of bulk output that the connections may still send in this round (the time between two polls of the
    /// runtime's sockets). Sent bytes and the time of long requests, converted to bytes, are subtracted. The round ends
    /// at 0 or below.
    left: AtomicI64,
    /// True from the time at which the connections have used up the bytes of a round (the time between two polls of the
    /// runtime's sockets) until no connection waits for a turn. While this flag is true, each connection needs a turn
    /// to send bulk output.
    is_crowded: AtomicBool,
    counters: Arc<BulkCounters>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    queue: FairQueue<Arc<TurnTicket>>,
    /// Connections whose turn was interrupted because the runtime had to poll its sockets (the end of a round). Their
    /// turns continue in the next round.
    paused: Vec<Arc<TurnTicket>>,
    /// Number of connections that got a turn to send bulk output at the beginning of the last round (the time between
    /// two polls of the runtime's sockets).
    turns: usize,
    next_ticket: u64,
}

/// Flag that says that a waiting connection may send now, and the waker of the connection's task. The connection and
/// the queue share it.
#[derive(Debug, Default)]
struct TurnTicket {
    has_turn: AtomicBool,
    waker: AtomicWaker,
}

impl BulkTurns {
    /// Creates the turns of a runtime. Its connections may send `round_bytes` bytes of bulk output between two polls of
    /// the sockets. The sent bytes are added to `counters`.
    #[must_use]
    pub fn new(round_bytes: usize, counters: &Arc<BulkCounters>) -> Arc<Self> {
        let waiting = Waiting { queue: FairQueue::default(), paused: Vec::new(), turns: FIRST_TURNS, next_ticket: 0 };
        Arc::new(Self {
            round_bytes,
            left: AtomicI64::new(round_bytes as i64),
            is_crowded: AtomicBool::new(false),
            counters: Arc::clone(counters),
            waiting: Mutex::new(waiting),
        })
    }

    /// Returns the counters to which the sent bytes of bulk output are added.
    #[must_use]
    pub fn counters(&self) -> &Arc<BulkCounters> {
        &self.counters
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // No code of a client runs under this lock.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_round_over(&self) -> bool {
        self.left.load(Ordering::Relaxed) <= 0
    }

    fn spend(self: &Arc<Self>, bytes: i64) {
        let before = self.left.fetch_sub(bytes, Ordering::Relaxed);
        if before > 0 && before <= bytes {
            self.end_round();
        }
    }

    #[cold]
    fn end_round(self: &Arc<Self>) {
        self.counters.rounds.fetch_add(1, Ordering::Relaxed);
        let mut waiting = self.lock();
        if self.is_crowded.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            self.left.store(self.round_bytes as i64, Ordering::Relaxed);
            return;
        };
        waiting.turns = FIRST_TURNS;
        self.is_crowded.store(true, Ordering::Relaxed);
        drop(waiting);
        runtime.spawn(begin_rounds(Arc::clone(self)));
    }

    /// Begins the next round (the time between two polls of the runtime's sockets) and wakes the connections that may
    /// send bulk output in this round. Returns false if no connection waited.
    fn begin_round(&self) -> bool {
        let mut waiting = self.lock();
        let unused = self.left.swap(self.round_bytes as i64, Ordering::Relaxed);
        waiting.turns = if unused > 0 { (waiting.turns * 2).min(MAX_TURNS) } else { (waiting.turns / 2).max(1) };
        let mut next = std::mem::take(&mut waiting.paused);
        while next.len() < waiting.turns {
            let Some((place, seat)) = waiting.queue.pop(usize::MAX, |_| true) else { break };
            waiting.queue.finished(place.address);
            next.push(seat);
        }
        if next.is_empty() {
            self.is_crowded.store(false, Ordering::Relaxed);
        }
        drop(waiting);
        for seat in &next {
            seat.has_turn.store(true, Ordering::Release);
            seat.waker.wake();
        }
        !next.is_empty()
    }
}

async fn begin_rounds(turns: Arc<BulkTurns>) {
    loop {
        // The runtime continues here after it has polled the sockets. Tasks that the sockets have woken run before the
        // connections that get a turn.
        tokio::task::yield_now().await;
        if !turns.begin_round() {
            return;
        }
    }
}

/// Membership of a connection, or of a streamed HTTP body, in the queue for bulk output of a runtime. Used by one task.
#[derive(Debug)]
pub struct BulkSeat {
    turns: Arc<BulkTurns>,
    account: Arc<Account>,
    /// Flag and waker by which the connection learns that it may send. Created when the connection first waits for a
    /// turn.
    seat: Option<Arc<TurnTicket>>,
    state: SeatState,
}

#[derive(Clone, Copy, Debug)]
enum SeatState {
    /// The connection has no turn to send bulk output. It needs none as long as no connection of the runtime waits for
    /// a turn.
    Free,
    /// The connection waits for a turn. `place` is its position in the queue; `None` while a turn that has begun waits
    /// for the next round. `left` is the number of bytes that the turn permits.
    Waiting { place: Option<QueuePosition>, left: usize },
    /// The connection has a turn, in which it may send `left` more bytes.
    Turn { left: usize },
}

impl BulkSeat {
    /// Creates the membership of a connection or a streamed body in the queue of `turns`. `account` is the connection's
    /// account.
    #[must_use]
    pub fn new(turns: &Arc<BulkTurns>, account: &Arc<Account>) -> Self {
        Self { turns: Arc::clone(turns), account: Arc::clone(account), seat: None, state: SeatState::Free }
    }

    /// Returns true if the connection may send bulk output now. Otherwise the connection queues for a turn, and its
    /// task is woken when the turn begins.
    #[inline]
    pub fn may_send(&mut self, cx: &Context<'_>) -> bool {
        matches!(self.state, SeatState::Free) && !self.turns.is_crowded.load(Ordering::Relaxed) || self.has_turn(cx)
    }

    #[cold]
    fn has_turn(&mut self, cx: &Context<'_>) -> bool {
        if let SeatState::Waiting { left, .. } = self.state {
            let Some(seat) = &self.seat else { return true };
            seat.waker.register(cx.waker());
            if !seat.has_turn.swap(false, Ordering::Acquire) {
                return false;
            }
            self.state = SeatState::Turn { left };
        }
        match self.state {
            SeatState::Turn { left } if left > 0 => !self.turns.is_round_over() || self.pause(cx, left),
            _ => self.join(cx),
        }
    }

    /// Adds the connection to the queue. Returns true if the connection needs no turn, because no connection of the
    /// runtime waits for one any more.
    fn join(&mut self, cx: &Context<'_>) -> bool {
        let seat = Arc::clone(self.seat.get_or_insert_default());
        let mut waiting = self.turns.lock();
        if !self.turns.is_crowded.load(Ordering::Relaxed) {
            self.state = SeatState::Free;
            return true;
        }
        waiting.next_ticket += 1;
        let connection = Arc::as_ptr(&self.account) as usize;
        let place = QueuePosition { address: self.account.address(), connection, ticket: waiting.next_ticket };
        seat.waker.register(cx.waker());
        waiting.queue.push(place, seat);
        self.state = SeatState::Waiting { place: Some(place), left: TURN_ROUNDS * self.turns.round_bytes };
        false
    }

    /// Pauses the connection's turn until the runtime has polled its sockets and the next round begins. Returns true if
    /// the next round has begun already.
    fn pause(&mut self, cx: &Context<'_>, left: usize) -> bool {
        let seat = Arc::clone(self.seat.get_or_insert_default());
        let mut waiting = self.turns.lock();
        if !self.turns.is_round_over() || !self.turns.is_crowded.load(Ordering::Relaxed) {
            return true;
        }
        seat.waker.register(cx.waker());
        waiting.paused.push(seat);
        self.state = SeatState::Waiting { place: None, left };
        false
    }

    /// Waits until the connection may send bulk output.
    pub async fn turn(&mut self) {
        poll_fn(|cx| if self.may_send(cx) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Counts bytes of bulk output, which the connection has sent or encoded.
    pub fn sent(&mut self, bytes: usize) {
        let bytes = bytes + WRITE_BYTES;
        self.turns.counters.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.spend(bytes);
    }

    /// Counts the time that the requests of the connection took. A time of `ROUND_TIME` uses up all bytes of bulk
    /// output that the runtime may send before it polls its sockets. So long requests also make the runtime poll its
    /// sockets.
    pub fn worked(&mut self, time: Duration) {
        self.spend(bytes_for(time, self.turns.round_bytes));
    }

    fn spend(&mut self, bytes: usize) {
        if let SeatState::Turn { left } = &mut self.state {
            *left = left.saturating_sub(bytes);
        }
        self.turns.spend(bytes as i64);
    }

    /// Ends the connection's turn to send bulk output, if the connection has one, because it has nothing more to send.
    #[inline]
    pub fn rest(&mut self) {
        if let SeatState::Turn { .. } = self.state {
            self.state = SeatState::Free;
        }
    }
}

impl Drop for BulkSeat {
    fn drop(&mut self) {
        if let SeatState::Waiting { place: Some(place), .. } = self.state {
            self.turns.lock().queue.remove(place);
        }
    }
}

/// Converts the time of requests to the number of bytes of bulk output that counts as much. `round_bytes` is the number
/// of bytes for a time of `ROUND_TIME`.
fn bytes_for(time: Duration, round_bytes: usize) -> usize {
    (time.as_nanos() as usize).saturating_mul(round_bytes) / ROUND_TIME.as_nanos() as usize
}

/// Time for which one connection's requests are handled before other connections get a turn. Most batches of pipelined
/// requests take less.
pub const SLICE: Duration = ROUND_TIME;
/// Minimum total time of the requests in one poll of a connection that counts like bulk output. Shorter times are
/// ignored.
const LONG_REQUESTS: Duration = Duration::from_micros(100);
/// Number of requests that are handled between two readings of the clock.
const CLOCK_INTERVAL: u32 = 16;

/// Period in which one poll of a connection's task handles requests. It ends at the first reading of the clock after
/// [`SLICE`], at most 16 requests late.
#[derive(Debug)]
pub struct Slice {
    began: Instant,
    requests: u32,
}

impl Slice {
    /// Starts the period in which the requests of one poll are handled, at the current time `now`.
    #[inline]
    #[must_use]
    pub fn begin(now: Instant) -> Self {
        Self { began: now, requests: 0 }
    }

    /// Counts a request that is about to be handled. Returns false if the period is over; the request must then wait.
    #[inline]
    pub fn has_time(&mut self) -> bool {
        self.requests += 1;
        !self.requests.is_multiple_of(CLOCK_INTERVAL) || self.began.elapsed() < SLICE
    }

    /// Counts a request that may take long, like [`has_time`](Self::has_time), but always reads the clock.
    #[inline]
    pub fn has_time_now(&mut self) -> bool {
        self.requests += 1;
        self.began.elapsed() < SLICE
    }

    /// Ends the period in which one poll of a connection handles requests. Returns the total time of these requests;
    /// `None` if this time is too short to count.
    #[inline]
    #[must_use]
    pub fn work(self) -> Option<Duration> {
        Some(self.began.elapsed()).filter(|time| *time >= LONG_REQUESTS)
    }
}

/// Work that the requests of a connection have caused since the connection's last turn: deliveries of the messages that
/// it published, and the time of its requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct CausedWork {
    bytes: u64,
    time: Duration,
}

impl CausedWork {
    /// Counts the publish of a batch: `batch_bytes` bytes to each of `receivers` subscribers.
    #[inline]
    pub fn add(&mut self, batch_bytes: usize, receivers: u64) {
        self.bytes = self.bytes.saturating_add((batch_bytes as u64).saturating_mul(receivers));
    }

    /// Adds the time that requests took, including publishes. The limit on this time is separate from the limit on
    /// bytes of deliveries.
    #[inline]
    pub fn add_time(&mut self, time: Duration) {
        self.time = self.time.saturating_add(time);
    }

    /// Returns true if the connection must wait for a turn before more of its requests are handled.
    #[inline]
    #[must_use]
    pub fn need_turn(&self) -> bool {
        self.bytes >= CAUSED_BYTES || self.time >= ROUND_TIME
    }

    /// Sets the counted work of the connection to zero, because the connection has waited while others were served.
    pub fn had_turn(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests;
