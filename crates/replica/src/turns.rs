//! Order in which the queue takes expensive proposals. They have a lane of their own, and are taken in turns (batches),
//! so that no client has to wait for all commands of another one.
//!
//! Owns: the order in which these proposals are taken: one address after the other, and within each address one client
//! after the other. So a client's commands wait for at most one command of each other address, and of each other client
//! of its own address. An address that makes a pause (`turn_pause`) is passed over. Does not own: which proposals are
//! expensive (`queue`).
//!
//! Invariants: the proposals of one client are taken in the order of their arrival. The maps have an element for an
//! address or a client exactly while one of its proposals waits.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use crate::{
    client::{Client, ClientAddress},
    pending::Pending,
};

/// Expensive proposals that wait in the queue, by client address and client.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    addresses: HashMap<usize, AddressTurns>,
    /// Keys of the addresses with waiting proposals, in the order in which their proposals are taken.
    order: VecDeque<usize>,
    len: usize,
}

/// Waiting expensive proposals of one client address.
#[derive(Debug)]
struct AddressTurns {
    address: Arc<ClientAddress>,
    clients: HashMap<usize, VecDeque<Pending>>,
    /// Keys of the address's clients with waiting proposals, in the order in which their proposals are taken.
    order: VecDeque<usize>,
    steps: u64,
    bytes: usize,
}

impl Turns {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the total size in bytes of the expensive commands that wait in the queue.
    pub(crate) fn bytes(&self) -> usize {
        self.addresses.values().map(|address| address.bytes).sum()
    }

    /// Returns true if an expensive proposal of this client waits in the queue.
    pub(crate) fn has(&self, client: &Arc<Client>) -> bool {
        self.addresses.get(&client.address_key()).is_some_and(|address| address.clients.contains_key(&client.key()))
    }

    /// Returns the total probable steps (units of work) and the total bytes of all proposals that wait for clients with
    /// the same address as `client`.
    pub(crate) fn of_address(&self, client: &Client) -> (u64, usize) {
        self.addresses.get(&client.address_key()).map_or((0, 0), |address| (address.steps, address.bytes))
    }

    /// Adds an expensive proposal of a client to the end of the client's proposals.
    pub(crate) fn push(&mut self, client: &Arc<Client>, pending: Pending) {
        let (address_key, key) = (client.address_key(), client.key());
        let address = self.addresses.entry(address_key).or_insert_with(|| {
            self.order.push_back(address_key);
            AddressTurns {
                address: Arc::clone(client.address()),
                clients: HashMap::new(),
                order: VecDeque::new(),
                steps: 0,
                bytes: 0,
            }
        });
        address.steps += pending.counted_steps();
        address.bytes += pending.bytes();
        let queued = address.clients.entry(key).or_insert_with(|| {
            address.order.push_back(key);
            VecDeque::new()
        });
        queued.push_back(pending);
        self.len += 1;
    }

    /// Returns the time until an expensive proposal may be taken: zero if one may be taken now, and `None` if none
    /// waits. The time is longer than zero if all addresses with waiting proposals pause.
    pub(crate) fn time_to_next(&self, now: Duration) -> Option<Duration> {
        self.addresses.values().map(|turns| turns.address.pause().left(now)).min()
    }

    /// Returns the proposal that is to be taken next. It belongs to the first address in the order that does not pause,
    /// and this address becomes the first one. `None` if all addresses pause or no proposal waits.
    pub(crate) fn front(&mut self, now: Duration) -> Option<&Pending> {
        let may = |key: &usize| self.addresses.get(key).is_some_and(|turns| turns.address.pause().left(now).is_zero());
        let next = self.order.iter().position(may)?;
        if next > 0 {
            let key = self.order.remove(next)?;
            self.order.push_front(key);
        }
        let address = self.addresses.get(self.order.front()?)?;
        address.clients.get(address.order.front()?)?.front()
    }

    /// Takes the proposal that [`front`](Self::front) returned. Its address and its client go to the end of the order
    /// if further proposals of theirs wait.
    pub(crate) fn pop(&mut self) -> Option<Pending> {
        let address_key = self.order.pop_front()?;
        let address = self.addresses.get_mut(&address_key)?;
        let key = address.order.pop_front()?;
        let queued = address.clients.get_mut(&key)?;
        let pending = queued.pop_front()?;
        self.len -= 1;
        address.steps -= pending.counted_steps();
        address.bytes -= pending.bytes();
        if queued.is_empty() {
            address.clients.remove(&key);
        } else {
            address.order.push_back(key);
        }
        if address.order.is_empty() {
            self.addresses.remove(&address_key);
        } else {
            self.order.push_back(address_key);
        }
        Some(pending)
    }
}

#[cfg(test)]
mod tests {
    use thalweg_log::Purpose;
    use thalweg_types::{
        Durability, KeyspaceId,
        command::{Framed, encode_put},
    };

    use super::*;
    use crate::client::ClientAddress;

    fn push(turns: &mut Turns, client: &Arc<Client>, key: &[u8]) {
        let mut command = Framed::new();
        command.encode(|out| encode_put(out, KeyspaceId(1), key, b"v")).unwrap();
        turns.push(client, Pending::new(command, Durability::Os, Purpose::Data, None, Some(Arc::clone(client))));
    }

    /// Takes all proposals in order, and returns the keys of their puts.
    fn taken(turns: &mut Turns) -> Vec<String> {
        std::iter::from_fn(|| turns.front(Duration::ZERO).is_some().then(|| turns.pop())?)
            .map(|pending| {
                let bytes = pending.command.bytes().to_vec();
                let text = String::from_utf8_lossy(&bytes).into_owned();
                text.matches(|byte: char| byte.is_ascii_digit() || ('a'..='c').contains(&byte)).collect()
            })
            .collect()
    }

    #[test]
    fn addresses_take_turns_and_so_do_the_clients_of_each() {
        let [here, there] = [(); 2].map(|()| Arc::new(ClientAddress::default()));
        let (a, b, c) = (Client::new(&here), Client::new(&here), Client::new(&there));
        let mut turns = Turns::default();
        for key in [b"a1", b"a2", b"a3"] {
            push(&mut turns, &a, key);
        }
        push(&mut turns, &b, b"b1");
        for key in [b"c1", b"c2"] {
            push(&mut turns, &c, key);
        }
        assert!(turns.len() == 6 && turns.has(&a) && turns.has(&c));
        assert!(turns.of_address(&b).1 > turns.of_address(&c).1 && turns.of_address(&c).1 > 0);
        assert_eq!(taken(&mut turns), ["a1", "c1", "b1", "c2", "a2", "a3"]);
        assert!(turns.len() == 0 && !turns.has(&a) && turns.addresses.is_empty() && turns.order.is_empty());
        assert_eq!(turns.of_address(&a), (0, 0));
    }

    #[test]
    fn an_address_that_makes_a_pause_is_passed_over_and_keeps_its_place() {
        let [here, there] = [(); 2].map(|()| Arc::new(ClientAddress::default()));
        let (a, b) = (Client::new(&here), Client::new(&there));
        let mut turns = Turns::default();
        for (client, key) in [(&a, b"a1"), (&b, b"b1"), (&a, b"a2"), (&b, b"b2")] {
            push(&mut turns, client, key);
        }
        let now = Duration::from_secs(1);
        assert_eq!(turns.time_to_next(now), Some(Duration::ZERO));
        here.pause().begin_probable(now, 10_000);
        let is_of = |pending: Option<&Pending>, client: &Arc<Client>| {
            pending.and_then(|pending| pending.client.as_ref()).is_some_and(|found| Arc::ptr_eq(found, client))
        };
        assert!(is_of(turns.front(now), &b) && is_of(turns.pop().as_ref(), &b));
        there.pause().begin_probable(now, 20_000);
        assert!(turns.front(now).is_none() && turns.len() == 3);
        let left = turns.time_to_next(now).unwrap();
        assert_eq!(left, here.pause().left(now), "the shorter one");
        assert!(is_of(turns.front(now + left), &a));
        assert_eq!(Turns::default().time_to_next(now), None);
    }
}
