//! The reply to a request that was staged on a link, and the identity of the request.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use thalweg_wire::SharedFrame;
use tokio::sync::oneshot;

use crate::error::Lost;

/// Identity of a request or subscription that was staged on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub generation: u64,
    pub id: u32,
}

/// The server's reply to a staged request, which may not have arrived yet.
#[derive(Debug)]
pub(crate) struct Reply {
    pub ticket: Ticket,
    pub(super) receiver: oneshot::Receiver<Result<SharedFrame, Lost>>,
}

impl Reply {
    /// Returns the reply if it has arrived; otherwise `None`, without waiting.
    pub(crate) fn try_take(&mut self) -> Option<Result<SharedFrame, Lost>> {
        match self.receiver.try_recv() {
            Ok(came) => Some(came),
            Err(oneshot::error::TryRecvError::Empty) => None,
            Err(oneshot::error::TryRecvError::Closed) => Some(Err(Lost::Closed)),
        }
    }
}

impl Future for Reply {
    type Output = Result<SharedFrame, Lost>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.receiver).poll(cx).map(|came| came.unwrap_or(Err(Lost::Closed)))
    }
}
