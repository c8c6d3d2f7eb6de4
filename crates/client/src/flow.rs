//! Subscriptions as streams of the `futures` crates, for `select!`, combinators, and code that takes any stream.
//!
//! Owns: only the conversion to a stream. Each subscription owns its behaviour, for example how it resumes after a lost
//! connection.

use futures_util::stream::{Stream, unfold};

use crate::{
    cluster_events::{ClusterUpdate, ClusterWatch},
    error::Error,
    group::{Delivery, Pushes},
    records::OwnedRecord,
    stream::Tail,
    subject::{OwnedMessage, Subscriber},
    watch::{Changes, Watch},
};

macro_rules! flows {
    ($($kind:ty => $item:ty),* $(,)?) => {$(
        impl $kind {
            /// Converts the subscription to a stream of the items that [`next`](Self::next) returns. Pin the
            /// stream before use. Polling the stream again after an error calls `next` again. Dropping the
            /// stream ends the subscription.
            pub fn into_stream(self) -> impl Stream<Item = Result<$item, Error>> + Send {
                unfold(self, |mut source| async move {
                    let next = source.next().await.transpose()?;
                    Some((next, source))
                })
            }
        }
    )*};
}

flows! {
    Subscriber => OwnedMessage,
    Tail => OwnedRecord,
    Watch => Changes,
    Pushes => Delivery,
    ClusterWatch => ClusterUpdate,
}
