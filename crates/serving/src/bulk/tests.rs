use std::{cell::RefCell, net::IpAddr, rc::Rc};

use tokio::task::{LocalSet, yield_now};

use super::*;
use crate::{
    admission::{AddressKey, Admission},
    config::Config,
};

struct Runtime {
    admission: Arc<Admission>,
    turns: Arc<BulkTurns>,
}

impl Runtime {
    fn new() -> Self {
        Self { admission: Admission::new(&Config::default()), turns: BulkTurns::new(ROUND_BYTES, &Arc::default()) }
    }

    fn seat(&self, last: u8) -> BulkSeat {
        let address = AddressKey::of(IpAddr::from([127, 0, 0, last]));
        BulkSeat::new(&self.turns, &self.admission.account(address))
    }

    fn sent(&self) -> usize {
        self.turns.counters().bytes() as usize
    }

    /// Sends bulk output until the connections may send no more before the runtime polls its sockets (the end of a
    /// round).
    async fn end_round(&self) {
        let mut seat = self.seat(9);
        seat.turn().await;
        seat.sent(ROUND_BYTES);
    }
}

const WRITE: usize = 64 * 1024;

/// Sends this number of bytes in writes of [`WRITE`] bytes, like a connection that has nothing else to do.
async fn send(mut seat: BulkSeat, bytes: usize) {
    for _ in 0..bytes / WRITE {
        seat.turn().await;
        seat.sent(WRITE);
    }
    seat.rest();
}

#[tokio::test]
async fn requests_are_served_after_each_round() {
    let runtime = Runtime::new();
    let tasks: Vec<_> = (0..50).map(|_| tokio::spawn(send(runtime.seat(1), 4 << 20))).collect();
    let mut polls = 0;
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        let before = runtime.sent();
        // The task continues after the sockets were polled, like a task that waits for a request.
        yield_now().await;
        polls += 1;
        let sent = runtime.sent() - before;
        assert!(sent <= 2 * ROUND_BYTES + WRITE, "{sent} bytes between two polls");
    }
    assert!(polls >= (200 << 20) / (2 * ROUND_BYTES + WRITE), "{polls}");
    assert!(runtime.turns.counters().rounds() > 0);
}

#[tokio::test]
async fn nobody_waits_while_a_round_has_bytes_left() {
    let runtime = Runtime::new();
    let mut seat = runtime.seat(1);
    let cx = Context::from_waker(std::task::Waker::noop());
    for _ in 0..3 {
        for _ in 1..ROUND_BYTES / WRITE {
            assert!(seat.may_send(&cx));
            seat.sent(WRITE);
        }
        assert!(seat.seat.is_none(), "it never waited");
        seat.sent(WRITE);
        assert!(!seat.may_send(&cx), "the round is over");
        seat = runtime.seat(1);
        while !seat.may_send(&cx) {
            seat = runtime.seat(1);
            yield_now().await;
        }
    }
}

#[tokio::test]
async fn addresses_and_connections_take_turns_of_the_same_length() {
    let (runtime, order) = (Rc::new(Runtime::new()), Rc::new(RefCell::new(Vec::new())));
    let local = LocalSet::new();
    local
        .run_until(async {
            runtime.end_round().await;
            let tasks: Vec<_> = [1, 1, 1, 2]
                .into_iter()
                .map(|address| {
                    let (runtime, order) = (Rc::clone(&runtime), Rc::clone(&order));
                    tokio::task::spawn_local(async move {
                        let mut seat = runtime.seat(address);
                        for _ in 0..2 * TURN_ROUNDS * ROUND_BYTES / WRITE {
                            seat.turn().await;
                            seat.sent(WRITE);
                            order.borrow_mut().push(address);
                            // The runtime stays crowded.
                            runtime.turns.spend(ROUND_BYTES as i64);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        })
        .await;
    let order = order.borrow();
    let done = order.iter().rposition(|&address| address == 2).unwrap();
    assert!(done < order.len() * 3 / 4, "the other address waited for all connections: {order:?}");
}

#[tokio::test]
async fn a_turn_that_is_not_used_holds_up_nobody() {
    let runtime = Runtime::new();
    runtime.end_round().await;
    let cx = Context::from_waker(std::task::Waker::noop());
    // These connections wait for their turns. Half of them are then dropped, and the others get their turns but are
    // never polled again.
    let mut idle: Vec<_> = (0..100).map(|_| runtime.seat(1)).collect();
    assert!(idle.iter_mut().all(|seat| !seat.may_send(&cx)));
    idle.truncate(50);
    send(runtime.seat(1), 8 << 20).await;
    let mut after = runtime.seat(1);
    after.turn().await;
    drop(idle);
    assert_eq!(runtime.turns.lock().queue.len(), 0);
}

#[tokio::test]
async fn a_turn_ends_after_its_bytes() {
    let runtime = Runtime::new();
    runtime.end_round().await;
    let mut seat = runtime.seat(1);
    seat.turn().await;
    // The queue gave the connection a turn, or was empty.
    seat.state = SeatState::Turn { left: WRITE };
    runtime.turns.spend(ROUND_BYTES as i64);
    seat.sent(WRITE);
    let cx = Context::from_waker(std::task::Waker::noop());
    assert!(!seat.may_send(&cx));
    let SeatState::Waiting { place: Some(_), left } = seat.state else { panic!("{:?}", seat.state) };
    assert_eq!(left, TURN_ROUNDS * ROUND_BYTES);
}

#[test]
fn publishers_of_many_deliveries_need_turns() {
    let mut caused = CausedWork::default();
    caused.add(1024, 100);
    assert!(!caused.need_turn());
    caused.add(64 * 1024, 200);
    assert!(caused.need_turn());
    caused.had_turn();
    assert!(!caused.need_turn());
    caused.add(usize::MAX, u64::MAX);
    assert!(caused.need_turn());
}

#[tokio::test]
async fn long_requests_use_up_a_round_and_short_ones_do_not() {
    let runtime = Runtime::new();
    let (mut busy, mut other) = (runtime.seat(1), runtime.seat(2));
    // A busy machine may take the thread from its processor in between.
    let is_short = (0..1000).any(|_| {
        let mut slice = Slice::begin(Instant::now());
        assert!(slice.has_time());
        slice.work().is_none()
    });
    assert!(is_short, "a short request");
    let mut slice = Slice::begin(Instant::now());
    let requests = (0..1000).take_while(|_| slice.has_time()).map(|_| std::thread::sleep(SLICE / 4)).count();
    assert!(requests < 16, "the clock is read at every sixteenth request: {requests}");
    let time = slice.work().expect("requests of more than a slice");
    assert!(time >= SLICE);
    let mut caused = CausedWork::default();
    caused.add_time(time);
    assert!(caused.need_turn());
    busy.worked(time);
    for seat in [&mut busy, &mut other] {
        let waits = poll_fn(|cx| Poll::Ready(!seat.may_send(cx))).await;
        assert!(waits, "the round is over");
    }
    busy.turn().await;
    other.turn().await;
    assert_eq!(runtime.sent(), 0, "time is not counted as bytes");
}
