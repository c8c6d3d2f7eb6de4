//! The history of a simulation: what clients asked, and what they were told.
//!
//! Owns: the operations with the moments of their beginning and end. Does not own: the verdict (`oracle`).

use std::{cell::RefCell, rc::Rc};

use bytes::Bytes;

/// An operation of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reads the key.
    Get,
    /// Sets the key to this number.
    Put(u64),
    /// Sets the key, on condition that it has the expected value.
    Swap {
        /// Expected value; `None` for a key that does not exist.
        expect: Option<u64>,
        /// New value.
        put: u64,
    },
    /// Appends a record to the stream.
    Append,
}

/// Answer that a client got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The write happened.
    Done,
    /// The condition did not hold, so nothing happened.
    Refused,
    /// The key had this value.
    Value(Option<u64>),
    /// The record has this offset.
    Offset(u64),
}

/// An operation with its answer.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Key of the operation. Appends have none.
    pub key: u64,
    /// Request of the client.
    pub action: Action,
    /// Moment of the request. Moments of a history are distinct and ascending.
    pub begin: u64,
    /// Moment of the answer, and the answer; `None` if the client got none, so the write may have happened.
    pub end: Option<(u64, Answer)>,
    /// Commands that the client proposed; empty for a read.
    pub payload: Bytes,
    /// Index of the entry, as the leader reported it.
    pub index: Option<u64>,
}

#[derive(Default)]
struct Inner {
    moment: u64,
    operations: Vec<Operation>,
}

/// Number of an operation in its history.
pub type OperationId = usize;

/// A growing history. A clone refers to the same history.
#[derive(Clone, Default)]
pub struct History(Rc<RefCell<Inner>>);

impl Inner {
    fn next_moment(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }
}

impl History {
    /// Records that a client sends a request.
    pub fn begin(&self, key: u64, action: Action, payload: Bytes) -> OperationId {
        let mut inner = self.0.borrow_mut();
        let begin = inner.next_moment();
        inner.operations.push(Operation { key, action, begin, end: None, payload, index: None });
        inner.operations.len() - 1
    }

    /// Records the answer to a request.
    pub fn end(&self, id: OperationId, answer: Answer, index: Option<u64>) {
        let mut inner = self.0.borrow_mut();
        let moment = inner.next_moment();
        let operation = &mut inner.operations[id];
        (operation.end, operation.index) = (Some((moment, answer)), index);
    }

    /// Returns the operations in the order of their beginnings.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        self.0.borrow().operations.clone()
    }
}
