//! Deferred linking of new nodes into the key order.
//!
//! Owns: the new nodes that are not linked yet, and linking them: sorted, in one walk along the list, instead of
//! one search from the top for each. Point reads go by hash and don't need the order; code that walks the order
//! calls [`Order::settle`] first.
//! Does not own: the list's links, or the visibility of versions.
//!
//! Invariants: from before its batch becomes visible, a node is either linked or queued. At most [`MAX_WAITING`]
//! nodes are queued, so settling is bounded work. Keys that arrive in order are linked immediately, because their
//! position is next to the finger. Links are changed with the linker locked or, while no node is queued, by the
//! memtable's only writer: then any thread that gets the lock has nothing to link.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use super::{
    arena::{Needle, Node},
    skip_list::{Finger, SkipList},
};

/// Number of queued nodes at which the writer links them itself. A larger value makes the walk cheaper per node,
/// because the nodes are denser, but makes the longest wait of a scan or a write longer: an estimated millisecond
/// at this value.
const MAX_WAITING: usize = 8 << 10;

/// The queue of nodes to link; see the [module](self).
pub(super) struct Order {
    linker: Mutex<Linker>,
    /// True if nodes are queued. Readable without the lock; changed only under it.
    is_waiting: AtomicBool,
}

/// The queued nodes and the position of the last link.
pub(super) struct Linker {
    /// Position after the last linked node, unless the writer has linked since.
    finger: Finger,
    waiting: Vec<QueuedNode>,
}

/// The writer's own position in the list.
pub(super) struct WriterFinger {
    finger: Finger,
    /// True if no node was queued since the finger was set. Then no other thread has linked a node since.
    is_current: bool,
    /// Budget for searches. Keys in order increase it, and a search for another key's position decreases it. So an
    /// occasional row of the state's own bookkeeping does not queue all keys that follow.
    credit: u32,
}

/// Cost of a search, in keys that arrived in order.
const SEARCH_CREDIT: u32 = 8;
const MAX_CREDIT: u32 = 8 * SEARCH_CREDIT;

/// Guard of the linker's lock, acquired when a batch first needs it.
pub(super) type HeldLinker<'a> = Option<MutexGuard<'a, Linker>>;

/// A queued node with the first 16 bytes of its key, so that most comparisons stay within the queue's memory.
struct QueuedNode {
    key: [u64; 2],
    node: u32,
}

impl Order {
    pub(super) fn new(list: &SkipList) -> Self {
        let linker = Linker { finger: list.finger(), waiting: Vec::new() };
        Self { linker: Mutex::new(linker), is_waiting: AtomicBool::new(false) }
    }

    pub(super) fn writer_finger(list: &SkipList) -> WriterFinger {
        WriterFinger { finger: list.finger(), is_current: true, credit: MAX_CREDIT }
    }

    /// Links all queued nodes into the list.
    #[inline]
    pub(super) fn settle(&self, list: &SkipList) {
        if self.is_waiting.load(Ordering::Acquire) {
            self.link_waiting(&mut self.lock(), list);
        }
    }

    /// Links all queued nodes, like [`settle`](Self::settle), for the writer, which may already hold the lock.
    pub(super) fn settle_held<'a>(&'a self, held: &mut HeldLinker<'a>, list: &SkipList) {
        self.link_waiting(held.get_or_insert_with(|| self.lock()), list);
    }

    /// Links or queues the writer's new node, whose key is the needle.
    #[inline]
    pub(super) fn add<'a>(
        &'a self,
        held: &mut HeldLinker<'a>,
        writer: &mut WriterFinger,
        list: &SkipList,
        node: Node<'_>,
        needle: &Needle<'_>,
    ) {
        if writer.is_current && list.is_beside(&writer.finger, needle) {
            writer.credit = (writer.credit + 1).min(MAX_CREDIT);
            list.link(&mut writer.finger, node);
        } else if writer.is_current && writer.credit >= SEARCH_CREDIT {
            writer.credit -= SEARCH_CREDIT;
            list.locate(&mut writer.finger, needle);
            list.link(&mut writer.finger, node);
        } else {
            self.queue_node(held.get_or_insert_with(|| self.lock()), writer, list, node, needle);
        }
    }

    fn queue_node(
        &self,
        linker: &mut Linker,
        writer: &mut WriterFinger,
        list: &SkipList,
        node: Node<'_>,
        needle: &Needle<'_>,
    ) {
        if !writer.is_current && linker.waiting.is_empty() {
            // Since the writer last queued a node, only the linker has linked nodes.
            writer.finger.clone_from(&linker.finger);
            writer.is_current = true;
            if list.is_beside(&writer.finger, needle) {
                list.link(&mut writer.finger, node);
                return;
            }
        }
        writer.is_current = false;
        linker.waiting.push(QueuedNode { key: needle.beginning(), node: node.offset() });
        self.is_waiting.store(true, Ordering::Release);
        if linker.waiting.len() == MAX_WAITING {
            self.link_waiting(linker, list);
        }
    }

    fn link_waiting(&self, linker: &mut Linker, list: &SkipList) {
        linker.link_waiting(list);
        self.is_waiting.store(false, Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Linker> {
        self.linker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Linker {
    /// Sorts the queued nodes and links them.
    fn link_waiting(&mut self, list: &SkipList) {
        let key = |waiting: &QueuedNode| list.node(waiting.node).map(Node::key);
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
