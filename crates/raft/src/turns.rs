//! A queue in which tasks wait for their turn. Each task takes a place in the queue, prepares an action, and performs
//! the action once it is the first. So the actions happen in the order of the places.
//!
//! Owns: the order. Does not own: the actions.
//!
//! A task that is dropped leaves the queue, and the other tasks keep their order. One thread uses the whole queue.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    future::poll_fn,
    rc::Rc,
    task::{Poll, Waker},
};

#[derive(Debug, Default)]
struct Line {
    next: u64,
    /// Places of the waiting tasks; the task with the smallest place is next. A task that already waits has a waker.
    places: BTreeMap<u64, Option<Waker>>,
}

/// A queue of tasks that wait for their turn. Clones refer to the same queue.
#[derive(Clone, Debug, Default)]
pub struct Turns(Rc<RefCell<Line>>);

/// Place of a task in the queue. Dropping it gives up the place.
#[derive(Debug)]
pub struct Turn {
    line: Rc<RefCell<Line>>,
    place: u64,
}

impl Turns {
    /// Adds a place at the end of the queue, and returns it.
    #[must_use]
    pub fn queue(&self) -> Turn {
        let mut line = self.0.borrow_mut();
        let place = line.next;
        line.next += 1;
        line.places.insert(place, None);
        Turn { line: Rc::clone(&self.0), place }
    }
}

impl Turn {
    /// Waits until this place is the first in the queue, because all places before it were dropped.
    pub async fn come(&self) {
        poll_fn(|context| {
            let mut line = self.line.borrow_mut();
            if line.places.first_key_value().is_none_or(|(first, _)| *first == self.place) {
                return Poll::Ready(());
            }
            line.places.insert(self.place, Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut line = self.line.borrow_mut();
            line.places.remove(&self.place);
            line.places.first_entry().and_then(|mut first| first.get_mut().take())
        };
        if let Some(waker) = next {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn turns_come_in_the_order_of_the_line() {
        let turns = Turns::default();
        let [first, second, third] = [turns.queue(), turns.queue(), turns.queue()];
        assert!(first.come().now_or_never().is_some());
        assert!(second.come().now_or_never().is_none());
        // If a task in the middle gives up its place, the next task still waits for the tasks before it.
        drop(second);
        assert!(third.come().now_or_never().is_none());
        drop(first);
        assert!(third.come().now_or_never().is_some());
        drop(third);
        assert!(turns.queue().come().now_or_never().is_some());
    }
}
