//! The load generator of the native protocol.
//!
//! It shares the machine's cores with the server, so it does as little as it can for each message: payloads are one
//! copy, checks one comparison, messages of a batch are counted as a run, and all that came with one read has one time
//! of arrival.
//!
//! Parts: [`Line`] is a channel of the protocol and [`drive()`] its loop, [`Payloads`] makes and judges the payloads of
//! messages, [`check`] finds out whether each subscriber got everything, once, in order, [`Finish`] ends a run,
//! [`requests`] sends requests and counts replies, [`Server`] reaches or starts a server and [`Place`] names its port
//! and transport. [`bare`] and [`relay`] measure what the machine carries without a server.

pub mod bare;
pub mod check;
mod drive;
mod endpoint;
mod finish;
mod line;
mod options;
mod payload;
pub mod relay;
pub mod requests;
mod server;

pub use self::{
    check::{Faults, Runs, Share, SubscriberAccount, compare_accounts},
    drive::{Session, SessionWait, drive},
    endpoint::{NativeEndpoint, TransportKind},
    finish::Finish,
    line::{ChannelError, ReadyChannel, body, unexpected},
    options::LoadOptions,
    payload::{Depth, HEAD_BYTES, Head, Payloads},
    requests::{CallPlan, ChannelRequests},
    server::{Profile, Server, ServerOptions},
};
