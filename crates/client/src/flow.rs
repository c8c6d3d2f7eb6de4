//! Subscriptions as the streams of the `futures` crates: for `select!`s, combinators, and code that takes any stream.
//!
//! Owns: nothing but the adapter. What a subscription is, and how it goes on after a lost connection, is its own.

use futures_util::stream::{Stream, unfold};

use crate::{
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
            /// As a stream of what [`next`](Self::next) gives, to be pinned. After an error it may be polled again, which is to call
            /// `next` again; dropped, it ends the subscription.
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
}
