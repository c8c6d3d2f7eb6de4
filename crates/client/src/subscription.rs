//! Common parts of tails, pushes, watches (of keys and of the cluster) and subscriptions to subjects: starting,
//! receiving and resuming.
//!
//! Owns: returning credit, cancelling, and resuming after a lost connection. Does not own the position at which a
//! subscription resumes: each kind of subscription stores its own position ([`Source`]).
//!
//! Credit: an item counts as consumed when the application requests the next one. The window therefore bounds the items
//! that wait in the client and the one item that the application is working on.

use std::sync::Arc;

use thalweg_types::{Action, Classified, ReadLevel};
use thalweg_wire::{Batch, Effect, Fields, Permit, SharedFrame};

use crate::{
    backoff::Backoff,
    client::{Client, Clock},
    error::{Error, Invalid, Lost, ProtocolError},
    link::{Begin, Link, SessionParameters, StageError, Ticket},
    mailbox::{Item, Mailbox},
    options::Window,
    staging::{not_connected, staged_in},
};

const NOTHING: Permit = Permit { messages: 0, bytes: 0 };

/// A subscription on one channel (a TCP connection or a QUIC stream). It does not survive the loss of the connection.
/// Dropping this value cancels the subscription.
struct Subscription {
    link: Arc<Link>,
    ticket: Ticket,
    mailbox: Arc<Mailbox>,
    /// Number of messages and bytes of the item that the application has received and is still working on.
    /// They are returned to the server as credit when the application requests the next item.
    owed: Permit,
    over: bool,
}

impl Subscription {
    /// Begins the subscription. Sends the request only to a server with the data set number `data` (see
    /// `Directory::data`); `None` stands for any data set.
    async fn begin(
        client: &Client,
        window: Window,
        data: Option<u32>,
        encode: &mut Begin<'_>,
    ) -> Result<(Self, SharedFrame), Error> {
        let (clock, pool) = (Clock::new(client.call_timeout()), client.pool());
        let (mailbox, permit) = (Arc::new(Mailbox::default()), window.permit());
        // A push delivers records to a member of a group. A server with other data may use the group's id for another
        // group, so the request must not reach that server.
        let check = |_: &SessionParameters| match client.directory().has_other_data(data) {
            true => Err(StageError::OtherData),
            false => Ok(()),
        };
        let stage = |link: &Arc<Link>| link.subscribe(&check, &mailbox, &permit, encode);
        let staging = staged_in(pool, pool.next_link(), stage, |_| None);
        let staged = clock.within(Effect::Nothing, staging).await;
        let (link, ticket) = staged.map_err(|error| not_connected(pool, error))?;
        let mut begun = Self { link: link.clone(), ticket, mailbox, owed: NOTHING, over: false };
        let reply = clock.within(Effect::Nothing, async { Ok(begun.next().await) }).await?;
        match reply {
            Item::Begun(frame) => Ok((begun, frame)),
            Item::Ended(failure) => Err(Error::Failed(failure)),
            Item::Lost(why) => Err(Error::Lost { why, effect: Effect::Nothing }),
            // The session passes no other item on before the subscription has begun.
            Item::Batch(_) | Item::Dropped(_) | Item::Frame(..) => Err(lost_order()),
        }
    }

    async fn next(&mut self) -> Item {
        let done = std::mem::replace(&mut self.owed, NOTHING);
        if done != NOTHING {
            self.link.consumed(self.ticket, done);
        }
        let item = self.mailbox.next().await;
        match &item {
            Item::Batch(bytes) => {
                let messages = Batch::decode(bytes).map_or(0, |batch| u64::from(batch.count()));
                self.owed = Permit { messages, bytes: bytes.len() as u64 };
            }
            Item::Frame(_, counts) => self.owed = counts.clone(),
            Item::Ended(_) | Item::Lost(_) => self.over = true,
            Item::Begun(_) | Item::Dropped(_) => {}
        }
        item
    }
}

fn lost_order() -> Error {
    Error::Lost { why: Lost::Closed, effect: Effect::Nothing }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if !self.over {
            self.link.cancel(self.ticket);
        }
    }
}

/// Request of one kind of subscription, with the position at which the subscription begins or resumes.
pub(crate) trait Source: Send + Sync {
    /// Appends the request that begins the subscription after the last item that was returned.
    fn request(&self, out: &mut Vec<u8>, id: u32, fields: &Fields<'_>, permit: Permit) -> Result<(), Invalid>;
    /// Processes the server's reply that begins the subscription.
    fn begun(&mut self, frame: &SharedFrame) -> Result<(), Error>;
}

/// An event of a subscription.
pub(crate) enum Event {
    Item(Item),
    /// The subscription has resumed after a lost connection. Subscriptions without history, such as those to
    /// subjects, have missed messages here.
    Resumed,
}

/// A subscription that survives lost connections.
pub(crate) struct Feed<S> {
    client: Client,
    window: Window,
    active: Option<Subscription>,
    backoff: Backoff,
    interrupted: bool,
    over: bool,
    /// Number of the server's data set in which the id in the subscription's request is valid; `None` if the request
    /// has no id. A data set is all data of a server; a restored server has another one. The client numbers the data
    /// sets that it meets (`Directory::data`).
    data: Option<u32>,
    pub source: S,
}

impl<S: Source> Feed<S> {
    /// Begins the subscription. Returns an error if the first attempt fails. `data` is the number of the server's data
    /// set in which the id in the request is valid (see `Directory::data`); `None` if the request has no id.
    pub(crate) async fn begin(client: &Client, window: Window, data: Option<u32>, source: S) -> Result<Self, Error> {
        let (client, backoff) = (client.clone(), Backoff::new(client.options().retries));
        let mut feed = Self { client, window, active: None, backoff, interrupted: false, over: false, data, source };
        feed.begin_again().await?;
        Ok(feed)
    }

    async fn begin_again(&mut self) -> Result<(), Error> {
        let source = &self.source;
        // After an interruption another node may answer. It must have all data that the former node had, so the read is
        // linearizable.
        let read = if self.interrupted { Some(ReadLevel::Linearizable) } else { self.client.read_field() };
        let fields = Fields { read, ..Fields::default() };
        let mut encode = |out: &mut Vec<u8>, id: u32, permit: Permit| source.request(out, id, &fields, permit);
        let (active, frame) = Subscription::begin(&self.client, self.window, self.data, &mut encode).await?;
        self.source.begun(&frame)?;
        self.active = Some(active);
        Ok(())
    }

    /// Waits for the next event; `None` if the subscription has ended as intended. After an error the next call
    /// resumes the subscription. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, Error> {
        loop {
            if self.over {
                return Ok(None);
            }
            let Some(active) = &mut self.active else {
                match self.begin_again().await {
                    Ok(()) => self.interrupted = false,
                    Err(error) if error.action() == Action::Retry => {
                        tokio::time::sleep(self.backoff.next()).await;
                        continue;
                    }
                    Err(error) => return Err(error),
                }
                return Ok(Some(Event::Resumed));
            };
            match active.next().await {
                Item::Lost(why) => {
                    self.interrupt();
                    if why.action() != Action::Retry {
                        return Err(Error::Lost { why, effect: Effect::Nothing });
                    }
                }
                Item::Ended(failure) => {
                    self.interrupt();
                    match failure.code.as_str() {
                        "limit_reached" | "cancelled" => self.over = true,
                        // The application learns that it was too slow, and may continue.
                        "slow_consumer" => return Err(Error::Failed(failure)),
                        _ if failure.action == Action::Retry => tokio::time::sleep(self.backoff.next()).await,
                        _ => return Err(Error::Failed(failure)),
                    }
                }
                item => {
                    self.backoff.reset();
                    return Ok(Some(Event::Item(item)));
                }
            }
        }
    }

    /// Waits for the next frame of a subscription that resumes without a gap, because the server keeps its history;
    /// `None` if the subscription has ended. Cancel safe.
    pub(crate) async fn next_frame(&mut self) -> Result<Option<(SharedFrame, Permit)>, Error> {
        loop {
            match self.next().await? {
                None => return Ok(None),
                Some(Event::Resumed) => {}
                Some(Event::Item(Item::Frame(frame, counts))) => return Ok(Some((frame, counts))),
                Some(Event::Item(_)) => return Err(Error::Protocol(ProtocolError::WrongReply { kind: 0 })),
            }
        }
    }

    fn interrupt(&mut self) {
        self.active = None;
        self.interrupted = true;
    }
}

impl<S> std::fmt::Debug for Feed<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Feed").field("active", &self.active.is_some()).finish_non_exhaustive()
    }
}
