//! Locks and semaphores, acquired in order of arrival.

use std::fmt;

use thalweg_types::limits::MAX_RECIPE_NAME_BYTES;

use crate::{acquire::Acquire, coordinator::Coordinator, error::RecipeError, hold::Hold, queue_entry::QueueEntry};

pub(crate) fn check_name<E: std::error::Error>(name: &str) -> Result<(), RecipeError<E>> {
    if name.is_empty() || name.len() > MAX_RECIPE_NAME_BYTES {
        return Err(RecipeError::BadName { got: name.len() });
    }
    Ok(())
}

/// A lock: one contender holds it at a time, in order of arrival.
#[derive(Clone, Debug)]
pub struct Lock<C> {
    coordinator: C,
    name: String,
}

impl<C: Coordinator> Lock<C> {
    /// Creates a handle of the lock with that name. All clients that use this name in the same keyspace share
    /// the lock.
    pub fn new(coordinator: C, name: &str) -> Result<Self, RecipeError<C::Error>> {
        check_name(name)?;
        Ok(Self { coordinator, name: name.to_owned() })
    }

    /// Waits until this contender is first in the queue, and acquires the lock. A contender whose lease ends
    /// while it waits enters the queue again, at its end.
    pub fn acquire(&self, how: &Acquire<'_>) -> Result<Hold<C>, RecipeError<C::Error>> {
        QueueEntry::acquire(&self.coordinator, &self.name, 1, how).map(Hold::new)
    }
}

/// A semaphore: up to `slots` contenders hold a slot at a time, in order of arrival.
#[derive(Clone)]
pub struct Semaphore<C> {
    coordinator: C,
    name: String,
    slots: usize,
}

impl<C: Coordinator> Semaphore<C> {
    /// Creates a handle to the semaphore with that name. All users of the semaphore must pass the same number
    /// of slots, because each of them checks only the number that it passed.
    pub fn new(coordinator: C, name: &str, slots: usize) -> Result<Self, RecipeError<C::Error>> {
        check_name(name)?;
        if slots == 0 {
            return Err(RecipeError::NoSlots);
        }
        Ok(Self { coordinator, name: name.to_owned(), slots })
    }

    /// Waits until one of the semaphore's slots is free for this contender, and acquires the slot. A contender
    /// whose lease ends while it waits enters the queue again, at its end.
    pub fn acquire(&self, how: &Acquire<'_>) -> Result<Hold<C>, RecipeError<C::Error>> {
        QueueEntry::acquire(&self.coordinator, &self.name, self.slots, how).map(Hold::new)
    }
}

impl<C> fmt::Debug for Semaphore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("name", &self.name).field("slots", &self.slots).finish_non_exhaustive()
    }
}
