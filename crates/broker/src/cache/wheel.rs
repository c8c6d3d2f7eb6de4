//! A timer wheel: setting and cancelling a timer have constant cost.
//!
//! Owns: the timers, each with an item of the caller. Does not own: the clock. Callers pass the time, which must not
//! decrease.
//!
//! ```text
//!   a tick is 2^20 ns; a level has 64 slots; a slot of level n spans 64^n ticks
//!   level 0  ▪▪▪▪…▪   the current 64 ticks, one slot for each tick
//!   level 1  ▪▪▪▪…▪   the current 64 × 64 ticks, ...
//! ```
//! The level of a timer is the highest base-64 digit in which the timer's tick differs from the current tick. This
//! digit is also the number of its slot. When time reaches a slot above level 0, the timers of the slot move to lower
//! levels. Eight levels hold every tick of a 64-bit nanosecond clock.
//!
//! A slot may have very many timers. So each call moves only as many timers as its caller permits, and later calls move
//! the rest. Until all are moved, the wheel's current tick stays at the beginning of the slot, and no timer fires.
//!
//! A timer never fires before its deadline. It fires in the first call that comes at least one tick after its deadline
//! and is permitted to move all timers that must be moved first.

use crate::Moment;

const TICK_BITS: u32 = 20;
const DIGIT_BITS: u32 = 6;
const SLOTS: usize = 1 << DIGIT_BITS;
const LEVELS: usize = 8;
const NONE: u32 = u32::MAX;

const _: () = assert!(LEVELS as u32 * DIGIT_BITS + TICK_BITS >= u64::BITS);

/// Handle of a timer, by which the timer can be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerId(u32);

impl TimerId {
    /// Handle that stands for no timer. Used for an entry without a deadline.
    pub(crate) const NONE: Self = Self(NONE);
}

/// Result of [`Wheel::pop_due`].
#[derive(Debug)]
pub(crate) enum Due<T> {
    /// A timer with a passed deadline was removed. Contains the item that was stored with the timer.
    Fired(T),
    /// No timer's deadline has passed.
    None,
    /// The call has moved as many timers as it was permitted, but timers remain that must be moved before the next one
    /// can fire. The caller must call again.
    Moving,
}

#[derive(Debug)]
struct Node<T> {
    item: Option<T>,
    tick: u64,
    /// Number of the next node in a linked list. A list contains the timers of one slot (a span of time), or all nodes
    /// that are not in use.
    next: u32,
    previous: u32,
    slot: u16,
}

#[derive(Debug)]
pub(crate) struct Wheel<T> {
    nodes: Vec<Node<T>>,
    free: u32,
    len: usize,
    current: u64,
    occupied: [u64; LEVELS],
    heads: Box<[u32; LEVELS * SLOTS]>,
    /// Slot (span of time) above level 0 whose timers are moving to lower levels, because time has reached it; `None`
    /// if there is none. The slot begins at the current tick.
    moving: Option<usize>,
}

impl<T> Wheel<T> {
    pub(crate) fn new() -> Self {
        let heads = Box::new([NONE; LEVELS * SLOTS]);
        Self { nodes: Vec::new(), free: NONE, len: 0, current: 0, occupied: [0; LEVELS], heads, moving: None }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn set(&mut self, deadline: Moment, item: T) -> TimerId {
        let tick = deadline.nanos().div_ceil(1 << TICK_BITS);
        let node = Node { item: Some(item), tick, next: NONE, previous: NONE, slot: 0 };
        let number = if self.free == NONE {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("the number of entries is bounded by memory")
        } else {
            let number = self.free;
            self.free = self.nodes[number as usize].next;
            self.nodes[number as usize] = node;
            number
        };
        self.len += 1;
        self.link(number);
        TimerId(number)
    }

    /// Removes a timer that has not fired, and returns the item that was stored with the timer; `None` for
    /// [`TimerId::NONE`].
    pub(crate) fn cancel(&mut self, timer: TimerId) -> Option<T> {
        if timer == TimerId::NONE {
            return None;
        }
        self.unlink(timer.0);
        self.release(timer.0)
    }

    /// Removes a timer with a passed deadline, and returns its item. Moves at most `moves` timers between slots (spans
    /// of time), and subtracts the moved ones from `moves`. `now` must not decrease between calls.
    pub(crate) fn pop_due(&mut self, now: Moment, moves: &mut usize) -> Due<T> {
        let target = now.nanos() >> TICK_BITS;
        loop {
            while let Some(at) = self.next_to_move() {
                if *moves == 0 {
                    return Due::Moving;
                }
                *moves -= 1;
                self.unlink(at);
                self.link(at);
            }
            self.moving = None;
            let next = self.next_slot().filter(|(_, _, start)| *start <= target);
            let Some((level, slot, start)) = next else {
                self.current = self.current.max(target);
                return Due::None;
            };
            self.current = self.current.max(start);
            if level == 0 {
                let at = self.heads[slot];
                self.unlink(at);
                return self.release(at).map_or(Due::None, Due::Fired);
            }
            self.moving = Some(slot);
        }
    }

    /// Returns the next timer of the slot whose timers are moving to lower levels; `None` if there is no such slot, or
    /// if the slot is empty. Timers that are set in the meantime never enter this slot: they belong to lower levels or
    /// later slots.
    fn next_to_move(&self) -> Option<u32> {
        self.moving.map(|slot| self.heads[slot]).filter(|head| *head != NONE)
    }

    /// Earliest time at which a timer of the wheel may be due; `None` if there are no timers. This time is in the past
    /// while timers must be moved.
    pub(crate) fn next_due(&self) -> Option<Moment> {
        let start = match self.next_to_move() {
            Some(_) => self.current,
            None => self.next_slot()?.2,
        };
        Some(Moment::from_nanos(start.saturating_mul(1 << TICK_BITS)))
    }

    /// Finds the slot (span of time) whose timers are due first. Returns its level, its number and its first tick. All
    /// slots of a lower level are due before those of a higher level.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        let level = self.occupied.iter().position(|occupied| *occupied != 0)?;
        let digit = u64::from(self.occupied[level].trailing_zeros());
        let shift = level as u32 * DIGIT_BITS;
        let above = self.current.checked_shr(shift + DIGIT_BITS).unwrap_or(0).checked_shl(shift + DIGIT_BITS);
        Some((level, level * SLOTS + digit as usize, above.unwrap_or(0) | digit << shift))
    }

    fn link(&mut self, number: u32) {
        let node = &mut self.nodes[number as usize];
        node.tick = node.tick.max(self.current);
        let differs = node.tick ^ self.current;
        let level = (63 - (differs | 1).leading_zeros()) / DIGIT_BITS;
        let digit = (node.tick >> (level * DIGIT_BITS)) as usize % SLOTS;
        let slot = level as usize * SLOTS + digit;
        node.slot = slot as u16;
        node.previous = NONE;
        node.next = self.heads[slot];
        if node.next != NONE {
            let next = node.next;
            self.nodes[next as usize].previous = number;
        }
        self.heads[slot] = number;
        self.occupied[level as usize] |= 1 << digit;
    }

    fn unlink(&mut self, number: u32) {
        let Node { next, previous, slot, .. } = self.nodes[number as usize];
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if previous != NONE {
            self.nodes[previous as usize].next = next;
            return;
        }
        let slot = usize::from(slot);
        self.heads[slot] = next;
        if next == NONE {
            self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
        }
    }

    fn release(&mut self, number: u32) -> Option<T> {
        let node = &mut self.nodes[number as usize];
        node.next = std::mem::replace(&mut self.free, number);
        self.len -= 1;
        node.item.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const TICK: u64 = 1 << TICK_BITS;

    #[test]
    fn never_early_and_at_most_a_tick_late() {
        for seed in 1..40_u64 {
            let mut dice = crate::subject_table::MemberRng::new(seed);
            let mut wheel = Wheel::new();
            let mut model: BTreeMap<u64, (u64, TimerId)> = BTreeMap::new();
            let mut now = dice.below(1 << 40) as u64;
            for number in 0..3000 {
                match dice.below(4) {
                    0 | 1 => {
                        let span = (dice.below(1 << 30) as u64) << dice.below(28);
                        let deadline = now.saturating_add(span);
                        model.insert(number, (deadline, wheel.set(Moment::from_nanos(deadline), number)));
                    }
                    2 if !model.is_empty() => {
                        let at = dice.below(model.len());
                        let which = *model.keys().nth(at).unwrap();
                        let (_, timer) = model.remove(&which).unwrap();
                        assert_eq!(wheel.cancel(timer), Some(which), "seed {seed}");
                    }
                    _ => now = now.saturating_add((dice.below(1 << 30) as u64) << dice.below(24)),
                }
                assert_eq!(wheel.len(), model.len());
                if let Some(due) = wheel.next_due() {
                    let first = model.values().map(|(deadline, _)| *deadline).min().unwrap();
                    assert!(due.nanos() <= first.saturating_add(TICK), "seed {seed}: reported too late");
                }
                let is_complete = loop {
                    match wheel.pop_due(Moment::from_nanos(now), &mut dice.below(20)) {
                        Due::Fired(fired) => {
                            let (deadline, _) = model.remove(&fired).expect("set and not cancelled");
                            assert!(deadline <= now, "seed {seed}: early by {}", deadline - now);
                        }
                        // The move pauses here while other timers are set and cancelled.
                        Due::Moving if dice.below(4) == 0 => break false,
                        Due::Moving => {}
                        Due::None => break true,
                    }
                };
                let late = model.values().filter(|(deadline, _)| deadline.saturating_add(TICK) <= now).count();
                if is_complete {
                    assert_eq!(late, 0, "seed {seed} at {now}");
                } else {
                    assert!(wheel.next_due().is_some_and(|due| due.nanos() <= now), "seed {seed}: there is more to do");
                }
            }
            let mut moves = usize::MAX;
            while !matches!(wheel.pop_due(Moment::NEVER, &mut moves), Due::None) {}
            assert!(
                wheel.len()
                    <= model.values().filter(|(deadline, _)| deadline >> TICK_BITS == u64::MAX >> TICK_BITS).count()
            );
        }
    }

    #[test]
    fn a_call_moves_a_bounded_number_of_the_timers_that_share_a_slot() {
        const TIMERS: u64 = 10_000;
        const MOVES: usize = 1_000;
        let mut wheel = Wheel::new();
        let start = 64 * 64 * TICK;
        let timers: Vec<_> = (0..TIMERS).map(|number| wheel.set(Moment::from_nanos(start + number), number)).collect();
        let now = Moment::from_nanos(start + 2 * TICK);
        let (mut calls, mut fired) = (0, Vec::new());
        let mut cancelled = timers[..10].iter();
        loop {
            let mut moves = MOVES;
            match wheel.pop_due(now, &mut moves) {
                Due::Fired(number) => fired.push(number),
                Due::None => break,
                Due::Moving => {
                    assert!(moves == 0 && fired.is_empty() && wheel.next_due().unwrap() <= now);
                    calls += 1;
                    wheel.cancel(*cancelled.next().unwrap()).unwrap();
                    wheel.set(now, TIMERS);
                }
            }
        }
        // All ticks are at the beginning of a slot of level 2, so each timer moves only once, directly to level 0.
        assert_eq!(calls, 9);
        let was_cancelled = |number: &u64| *number < calls;
        assert!((0..TIMERS).filter(was_cancelled).all(|number| !fired.contains(&number)));
        assert_eq!((fired.len(), wheel.len()), (TIMERS as usize, 0));
    }
}
