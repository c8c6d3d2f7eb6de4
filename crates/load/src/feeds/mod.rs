//! Records and messages of a run that appends to a stream, reads it, consumes it through a group, or publishes to a
//! subject.
//!
//! Owns: the numbered texts of records and messages ([`NumberedTexts`]); the ledgers of the position of each record, of
//! the deliveries of a group, and of the messages of a subscriber, each with the faults ([`AppendLedger`],
//! [`GroupLedger`], [`SubscriberLedger`]); the requests and replies of each protocol ([`FeedProtocol`]); and the
//! subscribers of a subject ([`Listening`]). A [`Feed`] joins them. Does not own: the mix of operations, or the pace of
//! requests.
//!
//! The stream, the group and the subject of a run are new, and no other client uses them. All appends have the same
//! number of records. If records have dense offsets, the records of one append lie together in one *slot* of that size.
//! Two numbers for each append are then enough to tell lost, duplicated and reordered records apart. If records have
//! ids with gaps, the ledger keeps the id of each record.

mod appends;
mod deliveries;
mod faults;
mod feed;
mod http;
mod listen;
mod native;
mod numbers;
mod protocol;
mod resp;
mod steps;
mod texts;

pub use self::{
    appends::{Append, AppendLedger, Positions},
    deliveries::{GroupLedger, SubscriberLedger},
    faults::{FeedFault, FeedFaults},
    feed::Feed,
    http::HttpFeed,
    listen::Listening,
    native::NativeFeed,
    numbers::{MAX_NUMBERS, Numbers},
    protocol::{Arrived, FeedContent, FeedParts, FeedProtocol, FeedRecord, Subscription, Texts},
    resp::RespFeed,
    steps::{Arrival, FeedProblem, FeedReply, FeedSizes, FeedStep, ReadFrom, Reader},
    texts::{LEAST_TEXT_BYTES, NumberedTexts},
};
