//! When nodes get their place in the order.
//!
//! Owns: the new nodes that are not linked yet, and linking them: sorted, in one walk along the list,
//! instead of a search from the top for each. Point reads go by hash and don't need the order; whoever
//! walks it calls [`Order::settle`] first.
//! Does not own: the list's links, or which versions are visible.
//!
//! Invariants: a node is either linked or waiting, from before its batch is visible on; at most
//! [`MAX_WAITING`] wait, so whoever settles does bounded work. Keys that come in order are linked at
//! once: they lie beside the finger. Links are changed with the linker locked, or, while no node waits, by
//! the memtable's one writer: then nobody who gets the lock has anything to link.

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
    /// Whether nodes wait, to be seen without the lock; changed with it.
    is_waiting: AtomicBool,
}

/// The nodes that wait.
pub(super) struct Linker {
    /// Behind what was linked last, unless the writer has linked since.
    finger: Finger,
    waiting: Vec<Waiting>,
}

/// The writer's own place in the list.
pub(super) struct WriterFinger {
    finger: Finger,
    /// Whether no node was told to wait since the finger was set: if so, nobody else has linked any.
    is_current: bool,
    /// Keys in order earn it, a search for the place of another spends it: a row of the state's own now and
    /// then must not make all that follow wait.
    credit: u32,
}

/// What a search costs, in keys that came in order.
const SEARCH_CREDIT: u32 = 8;
const MAX_CREDIT: u32 = 8 * SEARCH_CREDIT;

/// The linker's lock, once a batch needed it.
pub(super) type HeldLinker<'a> = Option<MutexGuard<'a, Linker>>;

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

    pub(super) fn writer_finger(list: &SkipList) -> WriterFinger {
        WriterFinger { finger: list.finger(), is_current: true, credit: MAX_CREDIT }
    }

    /// Links all nodes that wait.
    #[inline]
    pub(super) fn settle(&self, list: &SkipList) {
        if self.is_waiting.load(Ordering::Acquire) {
            self.link_waiting(&mut self.lock(), list);
        }
    }

    /// As [`settle`](Self::settle), for the writer, who may hold the lock.
    pub(super) fn settle_held<'a>(&'a self, held: &mut HeldLinker<'a>, list: &SkipList) {
        self.link_waiting(held.get_or_insert_with(|| self.lock()), list);
    }

    /// Takes the writer's new node, whose key is the needle.
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
            self.add_elsewhere(held.get_or_insert_with(|| self.lock()), writer, list, node, needle);
        }
    }

    fn add_elsewhere(
        &self,
        linker: &mut Linker,
        writer: &mut WriterFinger,
        list: &SkipList,
        node: Node<'_>,
        needle: &Needle<'_>,
    ) {
        if !writer.is_current && linker.waiting.is_empty() {
            // Since this writer told a node to wait, only the linker has linked.
            writer.finger.clone_from(&linker.finger);
            writer.is_current = true;
            if list.is_beside(&writer.finger, needle) {
                list.link(&mut writer.finger, node);
                return;
            }
        }
        writer.is_current = false;
        linker.waiting.push(Waiting { key: needle.beginning(), node: node.offset() });
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
    /// Links all that wait.
    fn link_waiting(&mut self, list: &SkipList) {
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
