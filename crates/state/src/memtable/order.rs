//! When nodes get their place in the order.
//!
//! Owns: the new nodes that are not linked yet, and linking them: sorted, in one walk along the list,
//! instead of a search from the top for each. Point reads go by hash and don't need the order; whoever
//! walks it calls [`Order::settle`] first.
//! Does not own: the list's links, or which versions are visible.
//!
//! Invariants: a node is either linked or waiting, from before its batch is visible on; at most
//! [`MAX_WAITING`] wait, so whoever settles does bounded work. Keys that come in order are linked at
//! once: they lie beside the finger.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use super::{
    arena::{Needle, Node},
    skip_list::{Finger, SkipList},
};

/// Nodes that wait before the writer links them itself. More makes the walk cheaper per node (it is
/// the denser) and the longest wait of a scan or a write longer: a millisecond at this, as estimated.
const MAX_WAITING: usize = 8 << 10;

/// See the module.
pub(super) struct Order {
    linker: Mutex<Linker>,
    /// Whether nodes wait, for readers to see without the lock.
    is_waiting: AtomicBool,
}

/// The right to change the list's links.
pub(super) struct Linker {
    finger: Finger,
    waiting: Vec<Waiting>,
}

/// A node and the beginning of its key, so that most comparisons stay within the list of those that wait.
struct Waiting {
    key: [u64; 2],
    node: u32,
}

impl Order {
    pub(super) fn new(list: &SkipList) -> Self {
        let linker = Linker { finger: list.finger(), waiting: Vec::new() };
        Self { linker: Mutex::new(linker), is_waiting: AtomicBool::new(false) }
    }

    /// Links all nodes of visible batches that wait.
    #[inline]
    pub(super) fn settle(&self, list: &SkipList) {
        if self.is_waiting.load(Ordering::Acquire) {
            let mut linker = self.lock();
            linker.link_waiting(list);
            self.is_waiting.store(false, Ordering::Release);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Linker> {
        self.linker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says whether nodes wait. Called with the linker locked, before what was added becomes visible.
    pub(super) fn publish(&self, linker: &Linker) {
        self.is_waiting.store(!linker.waiting.is_empty(), Ordering::Release);
    }
}

impl Linker {
    /// Takes a new node, whose key is the needle.
    #[inline]
    pub(super) fn add(&mut self, list: &SkipList, node: Node<'_>, needle: &Needle<'_>) {
        if list.is_beside(&self.finger, needle) {
            list.link(&mut self.finger, node);
            return;
        }
        self.waiting.push(Waiting { key: needle.beginning(), node: node.offset() });
        if self.waiting.len() == MAX_WAITING {
            self.link_waiting(list);
        }
    }

    /// Links all that wait.
    pub(super) fn link_waiting(&mut self, list: &SkipList) {
        let key = |waiting: &Waiting| list.node(waiting.node).map(Node::key);
        self.waiting.sort_unstable_by(|left, right| left.key.cmp(&right.key).then_with(|| key(left).cmp(&key(right))));
        let mut is_first = true;
        for waiting in self.waiting.drain(..) {
            let Some(node) = list.node(waiting.node) else { continue };
            let needle = Needle::new(node.key());
            if is_first {
                list.locate(&mut self.finger, &needle);
            } else {
                list.locate_after(&mut self.finger, &needle);
            }
            list.link(&mut self.finger, node);
            is_first = false;
        }
    }
}
