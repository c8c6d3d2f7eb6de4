//! Deferred linking of new nodes into the key order of a memtable.
//!
//! Owns: the queue of new nodes that are not linked into the list yet, and the linking of these nodes: they are sorted
//! and linked in one walk along the list, instead of one search from the top of the list for each node. Point reads go
//! by hash and don't need the order; code that walks the order calls [`Order::settle`] first, and so does a background
//! thread (`buffered::ahead`). Does not own: the list's links, or the visibility of versions.
//!
//! Invariants: when a batch becomes visible, each of its nodes is linked, queued, or being linked by a thread that
//! holds the linker's lock. At most [`MAX_WAITING`] nodes are queued, so linking all of them (`settle`) is bounded
//! work. Keys that arrive in order are linked immediately, because their position is next to the last linked node,
//! which the *finger* (a position in the list) remembers. A thread that links queued nodes holds the linker's lock. The
//! memtable's only writer may link a node without this lock while no node is queued or being linked (`is_waiting` is
//! false). The linker's lock is taken before that of the queue.

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
    queue: Mutex<Vec<QueuedNode>>,
    linker: Mutex<Linker>,
    /// True if nodes are queued or being linked. Any thread may read this flag without a lock. It becomes true under
    /// the lock of the queue, and false under both locks.
    is_waiting: AtomicBool,
}

/// State for linking nodes. A thread links nodes only while it holds the lock of this state.
struct Linker {
    /// Position in the skip list after the node that the linker linked last. Outdated if the memtable's writer has
    /// linked nodes itself since.
    finger: Finger,
    /// Nodes that were taken out of the queue to link them into the skip list; empty while no nodes are being linked.
    taken: Vec<QueuedNode>,
}

/// The position in the skip list at which the memtable's writer last linked a node.
pub(super) struct WriterFinger {
    finger: Finger,
    /// True if no node was queued since this position was set, so that no other thread has linked a node since.
    is_current: bool,
    /// Number that limits searches in the skip list. Each key that arrives in order raises it, and each search for the
    /// position of another key lowers it. So an occasional key out of order is linked by a search, and the following
    /// keys in order need not be queued.
    credit: u32,
}

/// Amount by which one search lowers `credit`. A key that arrives in order raises it by 1.
const SEARCH_CREDIT: u32 = 8;
const MAX_CREDIT: u32 = 8 * SEARCH_CREDIT;

/// Guard of the lock of the queue of new nodes; `None` until a batch first needs the lock.
pub(super) type HeldQueue<'a> = Option<MutexGuard<'a, Vec<QueuedNode>>>;

/// A queued node with the first 24 bytes of its key, so that most comparisons only read the queue's own memory. The
/// table and the keyspace of a row take five of these bytes. With only 16 bytes, typical numbered keys would compare as
/// equal.
pub(super) struct QueuedNode {
    key: [u64; 3],
    node: u32,
}

// A full queue takes 256 KiB, which the cache of a core holds.
const _: () = assert!(size_of::<QueuedNode>() == 32);

impl Order {
    pub(super) fn new(list: &SkipList) -> Self {
        let linker = Linker { finger: list.finger(), taken: Vec::new() };
        Self { queue: Mutex::default(), linker: Mutex::new(linker), is_waiting: AtomicBool::new(false) }
    }

    pub(super) fn writer_finger(list: &SkipList) -> WriterFinger {
        WriterFinger { finger: list.finger(), is_current: true, credit: MAX_CREDIT }
    }

    /// Returns true if any nodes are not linked into the key order yet: they are queued or being linked.
    #[inline]
    pub(super) fn has_queued(&self) -> bool {
        self.is_waiting.load(Ordering::Acquire)
    }

    /// Links all nodes that are queued now into the skip list. The writer can queue more nodes meanwhile.
    #[inline]
    pub(super) fn settle(&self, list: &SkipList) {
        if self.is_waiting.load(Ordering::Acquire) {
            self.link_waiting(list);
        }
    }

    /// Links all queued nodes, like [`settle`](Self::settle). The memtable's writer calls this. Releases the lock of
    /// the queue first if the writer holds it.
    pub(super) fn settle_held(&self, held: &mut HeldQueue<'_>, list: &SkipList) {
        // The linker's lock comes first, and only the writer queues nodes.
        *held = None;
        self.settle(list);
    }

    /// Links a new node of the memtable's writer into the skip list, or queues the node. The needle contains the node's
    /// key.
    #[inline]
    pub(super) fn add<'a>(
        &'a self,
        held: &mut HeldQueue<'a>,
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
            self.queue_node(held, writer, list, node, needle);
        }
    }

    fn queue_node<'a>(
        &'a self,
        held: &mut HeldQueue<'a>,
        writer: &mut WriterFinger,
        list: &SkipList,
        node: Node<'_>,
        needle: &Needle<'_>,
    ) {
        // While the writer holds the queue's lock, a node of its batch is queued, so `is_waiting` is true. Here it is
        // false, so the writer does not hold the lock.
        if !writer.is_current && !self.is_waiting.load(Ordering::Acquire) {
            // Since the writer last queued a node, only the linker has linked nodes.
            writer.finger.clone_from(&lock(&self.linker).finger);
            writer.is_current = true;
            if list.is_beside(&writer.finger, needle) {
                list.link(&mut writer.finger, node);
                return;
            }
        }
        writer.is_current = false;
        let queue = held.get_or_insert_with(|| lock(&self.queue));
        queue.push(QueuedNode { key: needle.beginning(), node: node.offset() });
        self.is_waiting.store(true, Ordering::Release);
        if queue.len() == MAX_WAITING {
            self.settle_held(held, list);
        }
    }

    fn link_waiting(&self, list: &SkipList) {
        let mut linker = lock(&self.linker);
        std::mem::swap(&mut linker.taken, &mut lock(&self.queue));
        linker.link_taken(list);
        let queue = lock(&self.queue);
        if queue.is_empty() {
            self.is_waiting.store(false, Ordering::Release);
        }
    }
}

impl Linker {
    /// Sorts the nodes that were taken out of the queue, and links them into the skip list.
    fn link_taken(&mut self, list: &SkipList) {
        let key = |taken: &QueuedNode| list.node(taken.node).map(Node::key);
        self.taken.sort_unstable_by(|left, right| left.key.cmp(&right.key).then_with(|| key(left).cmp(&key(right))));
        let mut is_first = true;
        for taken in self.taken.drain(..) {
            let Some(node) = list.node(taken.node) else { continue };
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
