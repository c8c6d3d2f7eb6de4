//! Load generator of the native protocol.
//!
//! The generator shares the machine's cores with the server, so it does as little work as possible for each message. A
//! payload is made with one copy and checked with one comparison. Messages of a batch are counted as a run, and all
//! messages that came with one read share one arrival time.
//!
//! Parts: [`ReadyChannel`] is a channel of the protocol and [`drive()`] its event loop. [`Payloads`] makes and checks
//! the payloads of messages, and [`check`] checks that each subscriber got every message once and in order. [`Finish`]
//! ends a run. [`requests`] sends requests and counts replies. [`Server`] reaches or starts a server, and
//! [`NativeEndpoint`] holds its port and transport. [`NativePlace`] opens connections for one request at a time;
//! [`NativeTunnel`] does so over TLS or QUIC. [`bare`] and [`relay`] measure the speed of the machine without a server.

pub mod bare;
pub mod check;
mod drive;
mod endpoint;
mod finish;
mod line;
mod options;
mod payload;
mod place;
pub mod relay;
pub mod requests;
mod server;
mod tunnel;

pub(crate) use self::place::{ID, answer_ping, frame, refusal};
pub use self::{
    check::{Faults, Runs, Share, SubscriberAccount, compare_accounts},
    drive::{Session, SessionWait, drive},
    endpoint::{NativeEndpoint, TransportKind},
    finish::Finish,
    line::{ChannelError, ReadyChannel, body, unexpected},
    options::{DEFAULT_MAX_LAG, LoadOptions},
    payload::{Depth, HEAD_BYTES, Head, Payloads},
    place::{NativePlace, decode_request},
    requests::{CallPlan, ChannelRequests},
    server::{Profile, Server, ServerOptions, development_trust},
    tunnel::NativeTunnel,
};
