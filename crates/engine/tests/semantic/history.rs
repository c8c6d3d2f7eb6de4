//! Watches, history, reads at a revision.
