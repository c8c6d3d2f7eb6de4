use std::net::IpAddr;

use super::*;

fn address(last: u8) -> AddressKey {
    AddressKey::of(IpAddr::from([127, 0, 0, last]))
}

fn place(at: u8, connection: usize, ticket: u64) -> QueuePosition {
    QueuePosition { address: address(at), connection, ticket }
}

fn filled(items: &[(u8, usize)]) -> FairQueue<&'static str> {
    let mut queue = FairQueue::default();
    for (ticket, (at, connection)) in (0..).zip(items) {
        queue.push(place(*at, *connection, ticket), "read");
    }
    queue
}

fn drained(queue: &mut FairQueue<&'static str>) -> Vec<(AddressKey, usize, u64)> {
    let next = || queue.pop(usize::MAX, |_| true).map(|(at, _)| (at.address, at.connection, at.ticket));
    std::iter::from_fn(next).collect()
}

#[test]
fn addresses_take_turns_and_then_the_connections_of_each() {
    // Ten reads of connection 1, then one each of other connections.
    let mut queue = filled(&[(1, 1), (1, 1), (1, 1), (1, 2), (1, 2), (2, 3), (2, 3), (3, 4)]);
    assert_eq!(queue.len(), 8);
    let order = [(1, 1, 0), (2, 3, 5), (3, 4, 7), (1, 2, 3), (2, 3, 6), (1, 1, 1), (1, 2, 4), (1, 1, 2)];
    assert_eq!(drained(&mut queue), order.map(|(at, connection, ticket)| (address(at), connection, ticket)));
    assert_eq!(queue.len(), 0);
    assert!(queue.turns.is_empty() && queue.addresses.is_empty());
}

#[test]
fn an_address_that_uses_its_threads_is_passed_over() {
    let mut queue = filled(&[(1, 1), (1, 1), (1, 1), (2, 2)]);
    let next = |queue: &mut FairQueue<_>| queue.pop(1, |_| true).map(|(at, _)| at.ticket);
    assert_eq!([next(&mut queue), next(&mut queue), next(&mut queue)], [Some(0), Some(3), None]);
    queue.finished(address(1));
    assert_eq!([next(&mut queue), next(&mut queue)], [Some(1), None]);
}

#[test]
fn an_item_that_does_not_fit_keeps_its_turn() {
    let mut queue = filled(&[(1, 1), (2, 2)]);
    assert_eq!(queue.pop(9, |_| false), None);
    assert_eq!(drained(&mut queue), [(address(1), 1, 0), (address(2), 2, 1)]);
}

#[test]
fn removed_items_leave_nothing_behind() {
    let mut queue = filled(&[(1, 1), (1, 1), (1, 2), (2, 3)]);
    for gone in [place(1, 1, 0), place(1, 2, 2), place(2, 3, 3)] {
        assert_eq!(queue.remove(gone), Some("read"));
        assert_eq!(queue.remove(gone), None);
    }
    assert_eq!(queue.len(), 1);
    assert_eq!(drained(&mut queue), [(address(1), 1, 1)]);
    assert!(queue.turns.is_empty() && queue.addresses.is_empty());
}
