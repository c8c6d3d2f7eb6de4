//! Which handler a frame goes to.

use thalweg_wire::{ClientFrame, DecodeError, Permit};

use super::{
    failure::Failure,
    reads,
    request::{Handled, Request, Turn},
    streams, write,
};

/// What a frame permits to be sent, if it begins a subscription.
#[must_use]
pub fn permit_of(frame: &ClientFrame<'_>) -> Option<Permit> {
    match frame {
        ClientFrame::Tail(tail) => Some(tail.permit.clone()),
        ClientFrame::Push(push) => Some(push.permit.clone()),
        ClientFrame::Watch(watch) => Some(watch.permit.clone()),
        ClientFrame::Subscribe(subscribe) => Some(subscribe.permit.clone()),
        _ => None,
    }
}

/// Carries a request out, or begins to.
pub fn dispatch(turn: &mut Turn<'_>, request: &Request<'_>, frame: ClientFrame<'_>) -> Result<Handled, Failure> {
    match frame {
        ClientFrame::Get(get) => reads::get(turn, request, &get),
        ClientFrame::Write(write) => write::write(turn, &write),
        ClientFrame::Read(read) => streams::read(turn, request, &read),
        ClientFrame::Tail(tail) => streams::tail(turn, request, &tail),
        other => Err(Failure::of(&DecodeError::UnknownKind { kind: other.kind() as u16 })),
    }
}
