//! Notification of waiting stream readers and of watches that entries were applied.

use std::sync::Arc;

use thalweg_replica::Observer;
use thalweg_types::command::Outcome;

use crate::{tails::Tails, watch::hub::Hub};

/// The two receivers of the notification that an entry was applied: waiting stream readers, and watches.
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
