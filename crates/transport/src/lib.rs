//! Byte channels over TCP, TLS and QUIC.
//!
//! Owns: listening and dialling, socket options, TLS identities and trust, and the transfer of queued bytes
//! into the kernel with the fewest calls and copies. Does not own: frames, sessions, reconnecting, access
//! control.
//!
//! A [`Channel`] is an ordered stream of bytes in each direction. Dialling and accepting return a first
//! channel together with its [`Connection`]. Over TCP and TLS the connection has no other channel; over QUIC
//! it can open more. Channels are polled, not awaited: the task that owns a channel waits for the socket and
//! its other events together, without splitting the channel into halves or copying through a pipe.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! use std::future::poll_fn;
//! use bytes::BytesMut;
//! use thalweg_transport::{Dialer, Endpoint, ListenOptions, Listener, Outbox};
//!
//! let listener = Listener::bind("127.0.0.1:0".parse()?, ListenOptions::default()).await?;
//! let endpoint = Endpoint::tcp(listener.local_addr().to_string());
//! let (_connection, mut client) = Dialer::new().dial(&endpoint).await?;
//! let (_connection, mut server) = listener.accept().await?.establish().await?;
//!
//! let mut outbox = Outbox::new();
//! outbox.buffer().extend_from_slice(b"hello");
//! while !outbox.is_empty() {
//!     poll_fn(|cx| client.poll_write(cx, &mut outbox)).await?;
//! }
//! let mut read = BytesMut::with_capacity(4096);
//! poll_fn(|cx| server.poll_read(cx, &mut read)).await?;
//! assert_eq!(read, "hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! # Invariants
//!
//! * Bytes that have left an [`Outbox`] were handed to the kernel (TCP, TLS) or to the QUIC connection,
//!   completely and in order.
//! * Accepting never waits for a peer: handshakes happen in [`Incoming::establish`], which has a timeout.

mod authority;
mod certificate;
mod channel;
mod connection;
mod datagrams;
mod dialer;
mod error;
mod identity;
mod listener;
mod outbox;
mod peer_tls;
mod quic;
mod timer;
mod tls;
mod trust;

pub use authority::{AUTHORITY_FILE, AUTHORITY_KEY_FILE, Authority, CertificateFiles, Existing};
pub use certificate::{Fingerprint, IdentityError, MAX_PEM_BYTES};
pub use channel::{Channel, Kind, UNSENT_BYTES, limit_unsent};
pub use connection::Connection;
pub use datagrams::{QUIC_RECEIVE_BYTES, QUIC_SEND_BYTES};
pub use dialer::{Dialer, Endpoint};
pub use error::{DialError, EstablishError, ListenError};
pub use identity::{CERTIFICATE_FILE, Identity, KEY_FILE, Validity};
pub use listener::{Incoming, ListenOptions, Listener, StoppedListener, TcpSecurity, listen};
pub use outbox::{Outbox, SHARED_FROM_BYTES};
pub use peer_tls::{PeerStream, PeerTls, PeerTlsError, PeerTlsFiles};
pub use quic::{MAX_QUIC_SOCKETS, QuicOptions, UNTRUSTED_WINDOW_BYTES};
pub use timer::Timer;
pub use tls::{ALPN, looks_like_tls};
pub use trust::{Trust, TrustError};
