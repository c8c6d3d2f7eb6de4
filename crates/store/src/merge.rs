//! An ordered merge of several sorted sources of pairs of key and value, such as memtables and tables.
//!
//! Owns: the merge. If several sources contain a key, the newest source's entry wins; deleted keys are skipped.
//! Does not own: the sources.
//!
//! While one source has the next keys, the merge stays with this source, so each of these keys costs one comparison.

use std::{cmp::Ordering, ops::ControlFlow};

use crate::{
    backend::{BackendError, Direction, Visit},
    cursor::Cursor,
    memtable::{Entry, Range},
    passed::note_passed,
};

/// One sorted input of a merge, positioned on a pair of key and value.
pub enum Source<'a, C> {
    /// A memtable as an input of the merge, positioned on a pair.
    Memtable {
        /// Pairs of the memtable after the one on which the source is positioned.
        range: Range<'a>,
        /// Key and entry of the memtable on which the source is positioned.
        head: (&'a [u8], Entry<'a>),
    },
    /// A sorted run of tables, or the view of a store.
    Run(Box<C>),
}

impl<'a, C> Source<'a, C> {
    /// Creates an input of a merge from a range of a memtable; returns `None` if the range is empty.
    pub fn of_range(mut range: Range<'a>) -> Option<Self> {
        range.next().map(|head| Self::Memtable { range, head })
    }
}

impl<C: Cursor> Cursor for Source<'_, C> {
    #[inline]
    fn key(&self) -> &[u8] {
        match self {
            Self::Memtable { head, .. } => head.0,
            Self::Run(cursor) => cursor.key(),
        }
    }

    #[inline]
    fn value(&self) -> Option<&[u8]> {
        match self {
            Self::Memtable { head: (_, Entry::Value(value)), .. } => Some(value),
            Self::Memtable { .. } => None,
            Self::Run(cursor) => cursor.value(),
        }
    }

    #[inline]
    fn advance(&mut self) -> Result<bool, BackendError> {
        match self {
            Self::Memtable { range, head } => match range.next() {
                Some(next) => {
                    *head = next;
                    Ok(true)
                }
                None => Ok(false),
            },
            Self::Run(cursor) => cursor.advance(),
        }
    }
}

/// Calls `visit` with the merged pairs of all sources in order. The sources are given newest first; the newest source
/// with a key determines its value.
pub(crate) fn merge<C: Cursor>(
    mut sources: Vec<Source<'_, C>>,
    direction: Direction,
    visit: &mut Visit<'_>,
) -> Result<(), BackendError> {
    while let Some(leader) = settle_leader(&mut sources, direction)? {
        if let [Source::Run(cursor)] = &mut *sources {
            return cursor.walk(visit);
        }
        if follow(&mut sources, leader, direction, visit)?.is_break() {
            return Ok(());
        }
    }
    Ok(())
}

/// Compares the keys of two sources in the order of the merge.
#[inline]
pub(crate) fn order<S: Cursor>(left: &S, right: &S, direction: Direction) -> Ordering {
    match direction {
        Direction::Forward => left.key().cmp(right.key()),
        Direction::Reverse => right.key().cmp(left.key()),
    }
}

/// Returns the source with the first key in order; if several sources have this key, the newest of them. Moves the
/// older sources past the key.
pub(crate) fn settle_leader<S: Cursor>(
    sources: &mut Vec<S>,
    direction: Direction,
) -> Result<Option<usize>, BackendError> {
    let mut leader = 0;
    for other in 1..sources.len() {
        if order(&sources[other], &sources[leader], direction).is_lt() {
            leader = other;
        }
    }
    let mut other = leader + 1;
    while other < sources.len() {
        let is_same = order(&sources[other], &sources[leader], direction).is_eq();
        if is_same && !sources[other].advance()? {
            sources.remove(other);
        } else {
            other += 1;
        }
    }
    Ok((!sources.is_empty()).then_some(leader))
}

/// Visits those pairs of one source (the leader) that come before the current pairs of all other sources.
fn follow<C: Cursor>(
    sources: &mut Vec<Source<'_, C>>,
    leader: usize,
    direction: Direction,
    visit: &mut Visit<'_>,
) -> Result<ControlFlow<()>, BackendError> {
    let second = (0..sources.len())
        .filter(|other| *other != leader)
        .min_by(|left, right| order(&sources[*left], &sources[*right], direction));
    loop {
        let source = &mut sources[leader];
        match source.value() {
            Some(value) if visit(source.key(), value).is_break() => return Ok(ControlFlow::Break(())),
            Some(_) => {}
            None if note_passed().is_break() => return Ok(ControlFlow::Break(())),
            None => {}
        }
        if !source.advance()? {
            sources.remove(leader);
            return Ok(ControlFlow::Continue(()));
        }
        if let Some(second) = second
            && !order(&sources[leader], &sources[second], direction).is_lt()
        {
            return Ok(ControlFlow::Continue(()));
        }
    }
}
