//! The order of a memtable's keys.
//!
//! Owns: the skip list over the arena's nodes: searching, linking, walking both ways.
//! Does not own: versions and their visibility, or the hash index.
//!
//! Invariant: on every level, keys ascend strictly. A node is linked from the bottom up, each link by
//! one atomic store, so a reader sees it fully linked on a level or not at all; readers that miss a
//! node while it is being linked could not see its versions yet either.

use std::{cmp::Ordering, sync::Arc};

use super::arena::{Arena, MAX_HEIGHT, Needle, Node};

/// The list as readers see it.
pub(super) struct SkipList {
    arena: Arc<Arena>,
    head: u32,
}

/// Where the last key went: its neighbours on every level. A key that goes right beside it, as in
/// sequential writes, is placed without a search. One at a time links: see `order`.
#[derive(Clone)]
pub(super) struct Finger {
    prev: [u32; MAX_HEIGHT],
    next: [u32; MAX_HEIGHT],
}

impl SkipList {
    /// A list over an arena whose node `head` has the full height.
    pub(super) fn new(arena: Arc<Arena>, head: u32) -> Self {
        Self { arena, head }
    }

    pub(super) fn finger(&self) -> Finger {
        Finger { prev: [self.head; MAX_HEIGHT], next: [0; MAX_HEIGHT] }
    }

    #[inline]
    pub(super) fn node(&self, offset: u32) -> Option<Node<'_>> {
        self.arena.node(offset)
    }

    fn head(&self) -> Node<'_> {
        self.arena.node(self.head).expect("the head is never at 0")
    }

    /// The first node whose key is not below the needle.
    pub(super) fn lower_bound(&self, needle: &Needle<'_>) -> Option<Node<'_>> {
        let mut prev = self.head();
        let mut checked = None;
        for level in (0..MAX_HEIGHT).rev() {
            checked = advance(&mut prev, level, checked, needle);
        }
        checked
    }

    /// The last node whose key is below the needle, or not above it.
    pub(super) fn upper_bound(&self, needle: &Needle<'_>, inclusive: bool) -> Option<Node<'_>> {
        let mut prev = self.head();
        let mut checked = None;
        for level in (0..MAX_HEIGHT).rev() {
            checked = advance(&mut prev, level, checked, needle);
        }
        match checked {
            Some(node) if inclusive && node.compare(needle) == Ordering::Equal => Some(node),
            _ => self.unless_head(prev),
        }
    }

    /// The node with exactly this key.
    pub(super) fn find(&self, needle: &Needle<'_>) -> Option<Node<'_>> {
        self.lower_bound(needle).filter(|node| node.compare(needle) == Ordering::Equal)
    }

    pub(super) fn first(&self) -> Option<Node<'_>> {
        self.head().next(0)
    }

    pub(super) fn last(&self) -> Option<Node<'_>> {
        let mut last = self.head();
        for level in (0..MAX_HEIGHT).rev() {
            while let Some(next) = last.next(level) {
                last = next;
            }
        }
        self.unless_head(last)
    }

    /// The node in front of one of the list's nodes.
    #[inline]
    pub(super) fn before(&self, node: Node<'_>) -> Option<Node<'_>> {
        let prev = node.prev()?.offset();
        if prev == self.head { None } else { self.node(prev) }
    }

    fn unless_head<'a>(&self, node: Node<'a>) -> Option<Node<'a>> {
        (node.offset() != self.head).then_some(node)
    }

    /// Whether the finger points at where the needle belongs.
    #[inline]
    pub(super) fn is_beside(&self, finger: &Finger, needle: &Needle<'_>) -> bool {
        // Between its neighbours on level 0 there is no node, so if the needle lies between them, the
        // neighbours on all levels are right too.
        let after_prev = finger.prev[0] == self.head || self.is_below(finger.prev[0], needle);
        after_prev && !self.is_below(finger.next[0], needle)
    }

    /// Whether there is such a node and its key is below the needle.
    #[inline]
    fn is_below(&self, offset: u32, needle: &Needle<'_>) -> bool {
        self.node(offset).is_some_and(|node| node.compare(needle) == Ordering::Less)
    }

    /// Points the finger at where the needle belongs. Whoever links only.
    pub(super) fn locate(&self, finger: &mut Finger, needle: &Needle<'_>) {
        self.descend(finger, self.head(), MAX_HEIGHT, needle);
    }

    /// As [`locate`](Self::locate), for a needle above the last key linked here: goes on from there, so it
    /// costs as much as the way is long.
    pub(super) fn locate_after(&self, finger: &mut Finger, needle: &Needle<'_>) {
        let passed = (0..MAX_HEIGHT).take_while(|level| self.is_below(finger.next[*level], needle)).count();
        // What comes next on the highest level passed lies behind the finger on all levels below, too.
        if let Some(start) = passed.checked_sub(1).and_then(|top| self.node(finger.next[top])) {
            self.descend(finger, start, passed, needle);
        }
    }

    /// Points the finger at the needle's neighbours on the levels below `levels`, from a node before it.
    fn descend(&self, finger: &mut Finger, start: Node<'_>, levels: usize, needle: &Needle<'_>) {
        let mut prev = start;
        let mut checked = None;
        for level in (0..levels).rev() {
            checked = advance(&mut prev, level, checked, needle);
            finger.prev[level] = prev.offset();
            finger.next[level] = checked.map_or(0, Node::offset);
        }
    }

    /// Links a new node at the finger, which then points behind it. Whoever links only.
    pub(super) fn link(&self, finger: &mut Finger, node: Node<'_>) {
        let next = self.node(finger.next[0]);
        if let Some(prev) = self.node(finger.prev[0]) {
            node.set_prev(prev);
        }
        for level in 0..node.height() {
            node.set_next(level, self.node(finger.next[level]));
            if let Some(prev) = self.node(finger.prev[level]) {
                prev.set_next(level, Some(node));
            }
            finger.prev[level] = node.offset();
        }
        if let Some(next) = next {
            next.set_prev(node);
        }
    }
}

/// Moves `prev` on a level up to the last node below the needle; returns the node after it. `checked`
/// is a node known not to be below the needle.
#[inline]
fn advance<'a>(prev: &mut Node<'a>, level: usize, checked: Option<Node<'a>>, needle: &Needle<'_>) -> Option<Node<'a>> {
    loop {
        let next = prev.next(level)?;
        if checked == Some(next) || next.compare(needle) != Ordering::Less {
            return Some(next);
        }
        *prev = next;
    }
}
