//! A queue that serves client addresses in turn, and the connections of each address in turn.
//!
//! Owns: the order of the items. Does not own: the items, and locks.

use std::collections::{HashMap, VecDeque};

use crate::admission::AddressKey;

/// Position of an item in a fair queue: the item's client address, its connection and its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePosition {
    pub address: AddressKey,
    /// Number that identifies the connection. Another connection may have it after this one has ended.
    pub connection: usize,
    /// Number that identifies the item in its fair queue.
    pub ticket: u64,
}

/// A queue that serves client addresses in turn, and within an address its connections in turn.
#[derive(Debug)]
pub(crate) struct FairQueue<T> {
    /// Addresses with queued items, in the order in which they are served next.
    turns: VecDeque<AddressKey>,
    addresses: HashMap<AddressKey, AddressQueue<T>>,
    /// Number of items of each address that were taken from the queue and whose work is not finished.
    running: HashMap<AddressKey, usize>,
    len: usize,
}

#[derive(Debug)]
struct AddressQueue<T> {
    /// Connections of one address with queued items, in the order in which they are served next.
    turns: VecDeque<usize>,
    connections: HashMap<usize, VecDeque<(u64, T)>>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { turns: VecDeque::new(), addresses: HashMap::new(), running: HashMap::new(), len: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Number of items that wait in the queue.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds an item to the queue, behind all other items of its connection.
    pub(crate) fn push(&mut self, place: QueuePosition, item: T) {
        let Self { turns, addresses, len, .. } = self;
        let of_address = addresses.entry(place.address).or_insert_with(|| {
            turns.push_back(place.address);
            AddressQueue { turns: VecDeque::new(), connections: HashMap::new() }
        });
        let AddressQueue { turns, connections } = of_address;
        let items = connections.entry(place.connection).or_insert_with(|| {
            turns.push_back(place.connection);
            VecDeque::new()
        });
        items.push_back((place.ticket, item));
        *len += 1;
    }

    /// Takes the next item. Skips addresses that already have `max_of_address` unfinished items. Returns `None` if no
    /// item is left, or if `fits` returns false for the next one.
    pub(crate) fn pop(&mut self, max_of_address: usize, fits: impl FnOnce(&T) -> bool) -> Option<(QueuePosition, T)> {
        let may_run = |address| self.running.get(address).is_none_or(|running| *running < max_of_address);
        let turn = self.turns.iter().position(may_run)?;
        let address = self.turns[turn];
        let of_address = self.addresses.get_mut(&address)?;
        let connection = *of_address.turns.front()?;
        let items = of_address.connections.get_mut(&connection)?;
        if !fits(&items.front()?.1) {
            return None;
        }
        let (ticket, item) = items.pop_front()?;
        of_address.turns.pop_front();
        match items.is_empty() {
            true => drop(of_address.connections.remove(&connection)),
            false => of_address.turns.push_back(connection),
        }
        self.turns.remove(turn);
        match of_address.turns.is_empty() {
            true => drop(self.addresses.remove(&address)),
            false => self.turns.push_back(address),
        }
        *self.running.entry(address).or_default() += 1;
        self.len -= 1;
        Some((QueuePosition { address, connection, ticket }, item))
    }

    /// Records that an item of an address, which was taken from the queue before, is finished.
    pub(crate) fn finished(&mut self, address: AddressKey) {
        if let Some(running) = self.running.get_mut(&address) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(&address);
            }
        }
    }

    /// Removes an item that still waits in the queue.
    pub(crate) fn remove(&mut self, place: QueuePosition) -> Option<T> {
        let of_address = self.addresses.get_mut(&place.address)?;
        let items = of_address.connections.get_mut(&place.connection)?;
        let at = items.iter().position(|(ticket, _)| *ticket == place.ticket)?;
        let (_, item) = items.remove(at)?;
        if items.is_empty() {
            of_address.connections.remove(&place.connection);
            of_address.turns.retain(|connection| *connection != place.connection);
        }
        if of_address.turns.is_empty() {
            self.addresses.remove(&place.address);
            self.turns.retain(|address| *address != place.address);
        }
        self.len -= 1;
        Some(item)
    }

    /// Removes and returns all items that wait in the queue.
    pub(crate) fn clear(&mut self) -> Vec<T> {
        self.turns.clear();
        self.len = 0;
        let connections = self.addresses.drain().flat_map(|(_, of_address)| of_address.connections.into_values());
        connections.flatten().map(|(_, item)| item).collect()
    }
}

#[cfg(test)]
mod tests;
