//! Entries that nodes have applied, compared as the nodes apply them.
//!
//! Owns: the one committed entry of each index, and the violations found so far. Invariant checked here: all nodes apply
//! the same entry at an index, and have the same running hash after it, in each of their runs.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use bytes::Bytes;
use thalweg_log::LogRecord;

use crate::runtime::{ProcessId, record};

/// Most violations that one simulation reports.
const MAX_VIOLATIONS: usize = 20;

/// A committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntry {
    /// Term in which the entry was proposed.
    pub term: u64,
    /// Payload of the entry's record.
    pub payload: Bytes,
    /// Running hash of the state after the entry.
    pub running_hash: u64,
}

#[derive(Default)]
struct Inner {
    entries: BTreeMap<u64, CommittedEntry>,
    /// Index of each payload; payloads of clients differ.
    indexes: HashMap<Bytes, u64>,
    violations: Vec<String>,
}

/// The committed entries of a simulation. A clone refers to the same entries.
#[derive(Clone, Default)]
pub struct Truth(Rc<RefCell<Inner>>);

impl Truth {
    /// Reports that a node has applied an entry.
    pub fn applied(&self, node: ProcessId, applied: &LogRecord, running_hash: u64) {
        let index = applied.index.0;
        let entry = CommittedEntry { term: applied.term.0, payload: applied.payload.clone(), running_hash };
        let before = self.0.borrow().entries.get(&index).cloned();
        match before {
            None => {
                let mut inner = self.0.borrow_mut();
                inner.indexes.insert(entry.payload.clone(), index);
                inner.entries.insert(index, entry);
            }
            Some(before) if (before.term, &before.payload) != (entry.term, &entry.payload) => {
                self.violation(
                    node,
                    format!("entry {index} of term {} is not that of term {}", entry.term, before.term),
                );
            }
            Some(before) if before.running_hash != running_hash => {
                self.violation(node, format!("the state after entry {index} differs from that of another node"));
            }
            Some(_) => {}
        }
    }

    /// Reports a violation.
    pub fn violation(&self, node: ProcessId, text: String) {
        record(node, format!("VIOLATION: {text}"));
        let violations = &mut self.0.borrow_mut().violations;
        if violations.len() < MAX_VIOLATIONS {
            violations.push(text);
        }
    }

    /// Returns the violations found so far.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.0.borrow().violations.clone()
    }

    /// Returns the index at which a client's payload was committed.
    #[must_use]
    pub fn index_of(&self, payload: &Bytes) -> Option<u64> {
        self.0.borrow().indexes.get(payload).copied()
    }

    /// Returns the index of the last committed entry.
    #[must_use]
    pub fn last(&self) -> Option<u64> {
        self.0.borrow().entries.last_key_value().map(|(index, _)| *index)
    }
}
