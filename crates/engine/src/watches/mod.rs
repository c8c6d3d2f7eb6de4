//! Registered watches, below their handles ([`Watch`](crate::Watch)): the dispatcher, the queues, and the reader of
//! commits.

pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod hub;
pub(crate) mod interval;
pub(crate) mod observers;
pub(crate) mod queue;
pub(crate) mod reader;
