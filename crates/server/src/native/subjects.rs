//! A channel's subscriptions to subjects.
//!
//! The channel asks for them in each turn ([`Subjects::deliver`]) while its outbox has room, and hands on what the client
//! permits or cancels.

use std::{sync::Arc, task::Context};

use thalweg_wire::{CancelMode, Credit};

use super::replies::Replies;
use crate::app::App;

/// What a channel's subscriptions to subjects have come to in a turn.
#[derive(Debug, Default)]
pub struct Delivered {
    /// Whether something was put into the outbox.
    pub moved: bool,
    /// Subscriptions whose last frame was.
    pub ended: Vec<u32>,
    /// The channel is given up because a subscription's queue was full, and its policy says so: why.
    pub disconnect: Option<String>,
}

/// A channel's subscriptions to subjects. None can be begun yet.
#[derive(Debug)]
pub struct Subjects {}

impl Subjects {
    /// None yet.
    #[must_use]
    pub fn new(_app: &Arc<App>) -> Self {
        Self {}
    }

    /// The channel's task is polled: this is how to wake it when there is something to deliver.
    pub fn woken_by(&mut self, _cx: &Context<'_>) {}

    /// Puts what waits into the outbox, as far as it has room.
    pub fn deliver(&mut self, _out: &mut Replies) -> Delivered {
        Delivered::default()
    }

    /// The receiver of a subscription permits more.
    pub fn credit(&mut self, _id: u32, _credit: &Credit) {}

    /// Ends a subscription. True if its `ended` is in the outbox; else [`deliver`](Self::deliver) tells when it is.
    pub fn cancel(&mut self, _id: u32, _mode: CancelMode, _out: &mut Replies) -> bool {
        false
    }
}
