//! A position in the key order of a memtable, which keeps the memtable in memory.
//!
//! Owns: [`MemtableCursor`], which finds the same entries as [`Range`](super::Range) but borrows nothing. It remembers
//! the offset of a node in the arena, and looks the node up for each call. Does not own: the merge with other sources.

use std::{ops::Bound, sync::Arc};

use super::{BatchNumber, Memtable, Node, first_from, last_to};
use crate::{
    backend::{BackendError, Direction},
    cursor::Cursor,
    span::OwnedSpan,
};

/// A cursor over the keys of a memtable within a span. It shows the newest entry of each key among the batches up to
/// number `upto`; see the [module](self).
#[derive(Clone)]
pub struct MemtableCursor {
    memtable: Arc<Memtable>,
    /// Offset of the node on which the cursor is positioned.
    node: u32,
    /// Offset of the version that the cursor shows: the newest version of the node's key from batch `upto` or an
    /// earlier one.
    version: u32,
    direction: Direction,
    /// Bound of the keys at which the cursor ends: the upper bound if it moves forward, the lower bound in reverse.
    end: Bound<Arc<[u8]>>,
    upto: u32,
}

impl MemtableCursor {
    /// Opens a cursor on the first key within the span that a batch up to number `upto` has changed; `None` if there is
    /// no such key.
    pub fn open(memtable: &Arc<Memtable>, span: &OwnedSpan, upto: BatchNumber) -> Option<Self> {
        let (list, upto) = (&memtable.list, memtable.complete(upto));
        memtable.order.settle(list);
        let (first, end) = match span.direction {
            Direction::Forward => (first_from(list, span.lower()), span.upper.clone()),
            Direction::Reverse => (last_to(list, span.upper()), span.lower.clone()),
        };
        let mut cursor =
            Self { memtable: Arc::clone(memtable), node: 0, version: 0, direction: span.direction, end, upto };
        cursor.settle(first.map(Node::offset)).then_some(cursor)
    }

    #[inline]
    fn current(&self) -> Option<Node<'_>> {
        self.memtable.list.node(self.node)
    }

    /// Returns the offset of the node after `node` in the direction of the cursor; `None` if there is none.
    #[inline]
    fn after(&self, node: Node<'_>) -> Option<u32> {
        let next = match self.direction {
            Direction::Forward => node.next(0),
            Direction::Reverse => self.memtable.list.before(node),
        };
        next.map(Node::offset)
    }

    #[inline]
    fn is_past_end(&self, key: &[u8]) -> bool {
        match (&self.end, self.direction) {
            (Bound::Unbounded, _) => false,
            (Bound::Included(end), Direction::Forward) => *key > **end,
            (Bound::Excluded(end), Direction::Forward) => *key >= **end,
            (Bound::Included(end), Direction::Reverse) => *key < **end,
            (Bound::Excluded(end), Direction::Reverse) => *key <= **end,
        }
    }

    /// Positions the cursor on the first node, beginning with the one at `offset`, whose key a batch up to number
    /// `upto` has changed. Returns false if no such node comes before the end of the span.
    #[inline]
    fn settle(&mut self, mut offset: Option<u32>) -> bool {
        while let Some(node) = offset.and_then(|offset| self.memtable.list.node(offset)) {
            if self.is_past_end(node.key()) {
                return false;
            }
            if let Some(version) = node.version_at(self.upto) {
                (self.node, self.version) = (node.offset(), version.offset());
                return true;
            }
            offset = self.after(node);
        }
        false
    }
}

impl Cursor for MemtableCursor {
    #[inline]
    fn key(&self) -> &[u8] {
        self.current().map_or(&[], Node::key)
    }

    #[inline]
    fn value(&self) -> Option<&[u8]> {
        self.current()?.version(self.version)?.value()
    }

    #[inline]
    fn advance(&mut self) -> Result<bool, BackendError> {
        let next = self.current().and_then(|node| self.after(node));
        Ok(self.settle(next))
    }
}
