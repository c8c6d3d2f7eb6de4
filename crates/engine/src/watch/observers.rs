//! Notification of tails and watches that entries were applied.

use std::sync::Arc;

use thalweg_replica::Observer;
use thalweg_types::command::Outcome;

use crate::{tails::Tails, watch::hub::Hub};

/// Receivers of the notification that entries were applied.
#[derive(Debug)]
pub(crate) struct Observers {
    pub(crate) tails: Arc<Tails>,
    pub(crate) watches: Arc<Hub>,
}

impl Observer for Observers {
    fn applied(&self, outcomes: &[Outcome]) {
        self.tails.applied(outcomes);
        self.watches.notify();
    }
}
