//! Locks and semaphores.

use std::{fmt, time::Duration};

use thalweg_types::limits::MAX_RECIPE_NAME_BYTES;

use crate::{coordinator::Coordinator, error::RecipeError, hold::Hold, place::Place};

/// How to acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire<'a> {
    /// How long it is held without being kept alive: so long others wait for one that has died.
    pub ttl: Duration,
    /// How long to wait at most; zero: not at all, `None`: as long as it takes.
    pub wait: Option<Duration>,
    /// Who it is, for whoever looks: the value of the contender's key.
    pub value: &'a [u8],
}

impl Default for Acquire<'_> {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(10), wait: None, value: b"" }
    }
}

impl Acquire<'_> {
    /// Only if it is free.
    #[must_use]
    pub fn now_or_never() -> Self {
        Self { wait: Some(Duration::ZERO), ..Self::default() }
    }
}

pub(crate) fn check_name<E: std::error::Error>(name: &str) -> Result<(), RecipeError<E>> {
    if name.is_empty() || name.len() > MAX_RECIPE_NAME_BYTES {
        return Err(RecipeError::BadName { got: name.len() });
    }
    Ok(())
}

/// A lock: one holds it at a time, in the order in which they came.
#[derive(Clone, Debug)]
pub struct Lock<C> {
    coordinator: C,
    name: String,
}

impl<C: Coordinator> Lock<C> {
    /// The lock of that name. Others see the same one, if they look in the same keyspace.
    pub fn new(coordinator: C, name: &str) -> Result<Self, RecipeError<C::Error>> {
        check_name(name)?;
        Ok(Self { coordinator, name: name.to_owned() })
    }

    /// Waits for the lock.
    pub fn acquire(&self, how: &Acquire<'_>) -> Result<Hold<C>, RecipeError<C::Error>> {
        let mut place = Place::enter(&self.coordinator, &self.name, how.value, how.ttl)?;
        place.wait_turn(1, how.wait)?;
        Ok(Hold::new(place))
    }
}

/// A semaphore: so many hold it at a time, in the order in which they came.
#[derive(Clone)]
pub struct Semaphore<C> {
    coordinator: C,
    name: String,
    slots: usize,
}

impl<C: Coordinator> Semaphore<C> {
    /// The semaphore of that name. All who use it must name the same number of slots: each goes by its own.
    pub fn new(coordinator: C, name: &str, slots: usize) -> Result<Self, RecipeError<C::Error>> {
        check_name(name)?;
        if slots == 0 {
            return Err(RecipeError::NoSlots);
        }
        Ok(Self { coordinator, name: name.to_owned(), slots })
    }

    /// Waits for a slot.
    pub fn acquire(&self, how: &Acquire<'_>) -> Result<Hold<C>, RecipeError<C::Error>> {
        let mut place = Place::enter(&self.coordinator, &self.name, how.value, how.ttl)?;
        place.wait_turn(self.slots, how.wait)?;
        Ok(Hold::new(place))
    }
}

impl<C> fmt::Debug for Semaphore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore").field("name", &self.name).field("slots", &self.slots).finish_non_exhaustive()
    }
}
