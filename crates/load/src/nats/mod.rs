//! NATS servers: subjects of core NATS, and streams with a consumer of JetStream, through NATS's own client.
//!
//! The client needs a runtime, so it runs on threads of its own ([`crate::ClientThreads`]). Each connection of a load
//! thread has a task there, with a client of its own. The load thread sends requests to the task over a pair of
//! sockets, and the task performs them:
//!
//! ```text
//! load thread <- socket pair, frames -> task of a client thread <- async-nats -> server
//! ```
//!
//! Parts: `frames` has the requests and replies on the pair of sockets, [`NatsServer`] connects clients, `session`
//! performs the requests of a connection, `stream` performs those on the stream and its consumer, `pushes` passes the
//! messages of a subscription on, and [`NatsFeed`] is the side of the load threads. Does not own: the check of the
//! records in a reply ([`crate::feeds::Feed`]).
//!
//! | operation | over NATS |
//! |---|---|
//! | publish | a publish of each message, and then a request that nobody serves, whose answer shows that the server has processed the messages before it (core NATS confirms no message itself) |
//! | append | a JetStream publish of each record; the operation ends with the last ack |
//! | read | a direct get of many messages, by sequence number |
//! | fetch | a pull without waiting, of a durable consumer |
//! | ack | an ack of each message, which the server confirms |

mod feed;
mod frames;
mod names;
mod pushes;
mod server;
mod session;
mod stream;

pub use self::{feed::NatsFeed, server::NatsServer, stream::StreamStorage};
