//! Deferred linking of new nodes into the key order.
//!
//! Owns: the queue of new nodes that are not linked into the list yet, and the linking of these nodes: they are sorted
//! and linked in one walk along the list, instead of one search from the top of the list for each node. Point reads go
//! by hash and don't need the order; code that walks the order calls [`Order::settle`] first. Does not own: the list's
//! links, or the visibility of versions.
//!
//! Invariants: from before its batch becomes visible, a node is either linked or queued. At most [`MAX_WAITING`] nodes
//! are queued, so linking all of them (`settle`) is bounded work. Keys that arrive in order are linked immediately,
//! because their position is next to the last linked node, which the *finger* (a position in the list) remembers. Links
//! are changed with the linker locked or, while no node is queued, by the memtable's only writer: in that case a thread
//! that gets the lock has nothing to link.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use super::{
    arena::{Needle, Node},
    skip_list::{Finger, SkipList},
};

/// Number of queued nodes at which the writer links them itself. With a larger number, linking becomes cheaper per
/// node, because the nodes are denser, but the longest wait of a scan or write becomes longer: an estimated millisecond
/// at this number.
const MAX_WAITING: usize = 8 << 10;

/// The queue of nodes that must still be linked into the key order; see the [module](self).
pub(super) struct Order {
    linker: Mutex<Linker>,
    /// True if nodes are queued. Any thread may read this flag without the lock; it changes only under the lock.
    is_waiting: AtomicBool,
}

/// The queued nodes, and the position at which the last node was linked.
pub(super) struct Linker {
    /// Position after the last linked node, unless the memtable's writer has linked other nodes since.
    finger: Finger,
    waiting: Vec<QueuedNode>,
}

/// The position in the list at which the memtable's writer last linked a node.
pub(super) struct WriterFinger {
    finger: Finger,
    /// True if no node was queued since this position was set, so that no other thread has linked a node since.
    is_current: bool,
    /// Budget for searches in the list. Each key that arrives in order increases the budget, and a search for the
    /// position of another key decreases it. So an occasional row with internal data of the state does not cause all
    /// following keys to be queued.
    credit: u32,
}

/// Cost of a search in the budget, as a number of keys that arrived in order.
const SEARCH_CREDIT: u32 = 8;
const MAX_CREDIT: u32 = 8 * SEARCH_CREDIT;

/// Guard of the linker's lock, acquired when a batch first needs the lock.
pub(super) type HeldLinker<'a> = Option<MutexGuard<'a, Linker>>;

/// A queued node with the first 24 bytes of its key, so that most comparisons only read the queue's own memory. Five of
/// these bytes are the table and the keyspace of a row, so with 16 bytes, numbered keys of a usual form were alike.
struct QueuedNode {
    key: [u64; 3],
    node: u32,
}

// A full queue takes 256 KiB, which the cache of a core holds.
const _: () = assert!(size_of::<QueuedNode>() == 32);

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

    /// Links all queued nodes, like [`settle`](Self::settle), on behalf of the memtable's writer, which may already
    /// hold the lock.
    pub(super) fn settle_held<'a>(&'a self, held: &mut HeldLinker<'a>, list: &SkipList) {
        self.link_waiting(held.get_or_insert_with(|| self.lock()), list);
    }

    /// Links the writer's new node into the list, or queues the node. The needle contains the node's key.
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
