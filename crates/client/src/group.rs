//! Consumer groups: fetching records or receiving them by push, and settling (acking or nacking) them.
//!
//! Owns: [`Group`], [`Delivery`], [`Pushes`]. Delivery is at least once: the group redelivers records that are not
//! acked before their deadline, or whose delivery was lost with a connection. Each record carries its number of
//! deliveries.

use std::{sync::Arc, time::Duration};

pub use thalweg_types::info::{Group as GroupInfo, Member as MemberInfo, SettlementResult};
use thalweg_types::{
    Attempt, Durability, GroupId, Offset, SpaceTime, StreamId,
    command::groups::{
        GroupConfig, Lapsed, OffsetRun, Redelivery, Settlement, encode_ack, encode_configure_group,
        encode_create_group, encode_delete_group, encode_extend, encode_nack, encode_seek,
    },
};
use thalweg_wire::{self as wire, Fields, Frame as _, Permit, Release, SharedFrame};

use crate::{
    client::{Client, RequestOptions, RetrySafety},
    error::{Error, Invalid},
    named::NamedObject,
    names::Name,
    options::Window,
    records::Records,
    request::reply_of,
    stream::Stream,
    subscription::{Feed, Source},
    target::Target,
    write::done,
};

/// A consumer group of a stream, identified by its name. Cheap to clone. The handle requests the group's id
/// at the first use.
#[derive(Clone, Debug)]
pub struct Group(Arc<NamedObject>);

/// Options of a push: a subscription by which the server sends a group's records to a member as they arrive.
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// Name of the member of the group that receives the deliveries.
    pub member: String,
    /// Maximum number of records that the member may hold, delivered but not yet acked or nacked; 0 selects the
    /// server's default.
    pub held_records: u32,
    /// Maximum number of bytes of records that the member may hold, delivered but not yet acked or nacked; 0 selects
    /// the server's default.
    pub held_bytes: u64,
    /// Time at which the group redelivers records that the member has not acked or nacked when the push (this
    /// subscription) ends.
    pub release: Release,
    /// Numbers of records and bytes that the server may send before the application has taken them; `None`
    /// selects the client's [`Window`].
    pub window: Option<Window>,
}

impl PushOptions {
    /// Creates the options of a push (a subscription to a group's records) for a member, with the server's default
    /// maximums of held records and bytes. Records that the member has not acked or nacked when the push ends are
    /// redelivered immediately.
    #[must_use]
    pub fn member(member: impl Into<String>) -> Self {
        Self { member: member.into(), held_records: 0, held_bytes: 0, release: Release::AtOnce, window: None }
    }
}

/// One delivery of records to a member of a consumer group. The member should ack or nack them before the
/// deadline; otherwise they are redelivered.
#[derive(Clone, Debug)]
pub struct Delivery {
    group: Group,
    /// Number of this attempt to deliver the records. Every ack and nack of these records states this number, also
    /// within a commit.
    pub attempt: Attempt,
    /// Time, by the cluster's own clock (space time), at which the attempt ends. The group redelivers records that are
    /// not acked or nacked by then.
    pub deadline: SpaceTime,
    /// Records of the stream that this delivery contains.
    pub records: Records,
}

impl Stream {
    /// Returns a handle of the group with this name. The group need not exist. The handle belongs to the server's
    /// present data: if the client later connects to a server with other data, such as a restored one, its requests
    /// fail with [`Error::OtherData`]. Get another handle there.
    pub async fn group(&self, name: impl Into<String>) -> Result<Group, Error> {
        let group = self.object().child(|stream| Name::Group(stream, name.into())).await?;
        Ok(Group(Arc::new(group)))
    }
}

impl Client {
    /// Returns a page of at most `limit` groups of a stream, or of all streams if `stream` is 0. The page is
    /// ordered by id and begins after the group `after`. The flag is true if more groups follow.
    pub async fn groups(&self, stream: StreamId, after: GroupId, limit: u32) -> Result<(Vec<GroupInfo>, bool), Error> {
        let read = |frame: &SharedFrame| {
            let wire::GroupList { more, groups } = reply_of(frame)?;
            Ok((groups.iter().collect(), more))
        };
        self.request(RequestOptions::READ, wire::ListGroups { stream, after, limit }, read).await
    }
}

impl Group {
    fn parts(&self) -> (StreamId, &str) {
        match &self.0.name {
            Name::Group(stream, name) => (StreamId(*stream), name),
            _ => unreachable!("a group handle is created with the name of a group"),
        }
    }

    /// Name of the group.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().1
    }

    fn client(&self) -> &Client {
        &self.0.client
    }

    /// Returns the id of the group. A commit names the group by this id.
    pub async fn id(&self) -> Result<GroupId, Error> {
        self.0.id().await.map(GroupId)
    }

    /// Creates the group unless it exists. Delivery begins at offset `start`, or at the end of the stream if
    /// `start` is `None`. Returns true if this call created the group.
    pub async fn create_if_missing(&self, start: Option<Offset>, config: &GroupConfig) -> Result<bool, Error> {
        let (stream, name) = self.parts();
        self.0.create(|out| encode_create_group(out, stream, name, start, config)).await
    }

    /// Returns the description of the group: its configuration, position and statistics.
    pub async fn describe(&self) -> Result<GroupInfo, Error> {
        let (stream, name) = self.parts();
        let read = |frame: &SharedFrame| Ok(reply_of::<wire::GroupFound>(frame)?.group);
        self.client().request(self.0.by_name(RequestOptions::READ), wire::FindGroup { stream, name }, read).await
    }

    /// Replaces the configuration of the group. The delivery order cannot change.
    pub async fn configure(&self, config: &GroupConfig) -> Result<(), Error> {
        let encode = |out: &mut Vec<u8>, id| encode_configure_group(out, GroupId(id), config);
        self.0.write(RetrySafety::IfNoEffect, encode, done).await.map(drop)
    }

    /// Deletes the consumer group.
    pub async fn delete(&self) -> Result<(), Error> {
        let encode = |out: &mut Vec<u8>, id| {
            encode_delete_group(out, GroupId(id));
            Ok(())
        };
        self.0.remove(encode, done).await.map(drop)
    }

    /// Moves the group's cursor (the offset to deliver next) to another offset, or to the end of the stream for `None`.
    /// The group forgets all pending records (delivered and not yet acked). Returns the new cursor.
    pub async fn seek(&self, offset: Option<Offset>) -> Result<Offset, Error> {
        let encode = |out: &mut Vec<u8>, id| {
            encode_seek(out, GroupId(id), offset);
            Ok(())
        };
        let read = |frame: &SharedFrame| Ok(reply_of::<wire::Sought>(frame)?.cursor);
        self.0.write(RetrySafety::Harmless, encode, read).await
    }

    /// Fetches at most `max_records` records and about `max_bytes` bytes for a member. Waits up to `wait` for
    /// the first record; returns `None` if no record came in that time.
    pub async fn fetch(
        &self,
        member: &str,
        max_records: u32,
        max_bytes: u32,
        wait: Duration,
    ) -> Result<Option<Delivery>, Error> {
        let (level, micros) = (self.client().level(), u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
        // A fetch does no harm if it is sent twice: if the reply to the first is lost, the group redelivers its
        // records.
        let how = RequestOptions { extra_time: wait, target: Target::Leader, ..RequestOptions::READ };
        let fetch = |id| wire::Fetch { group: GroupId(id), max_records, max_bytes, wait: micros, level, member };
        let read = |frame: &SharedFrame| {
            let wire::Delivery { durability, attempt, deadline, parts } = reply_of(frame)?;
            self.delivery(frame, durability, attempt, deadline, &parts)
        };
        self.0.request(how, fetch, read).await
    }

    fn delivery<'a>(
        &self,
        frame: &'a SharedFrame,
        durability: Durability,
        attempt: Attempt,
        deadline: SpaceTime,
        parts: &wire::List<'a, wire::DeliveryPart<'a>>,
    ) -> Result<Option<Delivery>, Error> {
        if attempt.0 == 0 {
            return Ok(None);
        }
        let parts = parts.iter().map(|part| (part.deliveries, part.runs));
        let records = Records::new(frame, parts, durability, Offset(0), Offset(0))?;
        Ok(Some(Delivery { group: self.clone(), attempt, deadline, records }))
    }

    /// Subscribes to deliveries that the server pushes as records arrive. The push resumes after a lost connection.
    pub async fn push(&self, options: PushOptions) -> Result<Pushes, Error> {
        let window = options.window.unwrap_or(self.client().options().window);
        let source = |id| PushSource { group: GroupId(id), options: options.clone(), level: self.client().level() };
        let feed =
            self.0.with_id(|known| Feed::begin(self.client(), window, Some(known.data), source(known.id))).await?;
        Ok(Pushes { group: self.clone(), feed })
    }

    /// Acks records. Each settlement names a delivery attempt and those of its records to ack. Records that are already
    /// acked or nacked stay as they are.
    pub async fn ack(&self, settlements: &[Settlement]) -> Result<SettlementResult, Error> {
        let encode = |out: &mut Vec<u8>, id| encode_ack(out, GroupId(id), settlements);
        // A settlement that arrives twice does no harm: the second time, the group reports its records as lapsed.
        self.0.write(RetrySafety::Harmless, encode, settled).await
    }

    /// Returns the records that the settlements name to the group for redelivery. Records that are already acked or
    /// nacked stay as they are. `again` states when the group redelivers the records.
    pub async fn nack(
        &self,
        again: Redelivery,
        reason: &str,
        settlements: &[Settlement],
    ) -> Result<SettlementResult, Error> {
        let encode = |out: &mut Vec<u8>, id| encode_nack(out, GroupId(id), again, reason, settlements);
        self.0.write(RetrySafety::Harmless, encode, settled).await
    }

    /// Extends the deadlines of delivery attempts: the new deadline is the current time plus `by`. Returns the new
    /// deadline, and the numbers of those attempts that no longer hold any records.
    pub async fn extend(&self, by: Duration, attempts: &[Attempt]) -> Result<(SpaceTime, Vec<Attempt>), Error> {
        let encode = |out: &mut Vec<u8>, id| encode_extend(out, GroupId(id), by, attempts);
        let read = |frame: &SharedFrame| {
            let wire::Extended { deadline, lapsed, .. } = reply_of(frame)?;
            Ok((deadline, lapsed.iter().collect()))
        };
        self.0.write(RetrySafety::Harmless, encode, read).await
    }
}

fn settled(frame: &SharedFrame) -> Result<SettlementResult, Error> {
    let wire::Settled { durability, settled, lapsed } = reply_of(frame)?;
    let one = |lapsed: wire::Lapsed| Lapsed {
        attempt: lapsed.attempt,
        run: (lapsed.count > 0).then_some(OffsetRun { first: lapsed.first, count: lapsed.count }),
    };
    Ok(SettlementResult { durability, settled, lapsed: lapsed.iter().map(one).collect() })
}

impl Delivery {
    /// Acks all records of the delivery.
    pub async fn ack(&self) -> Result<SettlementResult, Error> {
        self.group.ack(&[Settlement::all(self.attempt)]).await
    }

    /// Acks one record of the delivery.
    pub async fn ack_one(&self, offset: Offset) -> Result<SettlementResult, Error> {
        self.group.ack(&[Settlement::one(self.attempt, offset)]).await
    }

    /// Nacks the records of the delivery that are not acked or nacked yet, so that the group redelivers them.
    pub async fn nack(&self, again: Redelivery, reason: &str) -> Result<SettlementResult, Error> {
        self.group.nack(again, reason, &[Settlement::all(self.attempt)]).await
    }

    /// Extends the deadline of the delivery: the new deadline is the current time plus `by`.
    pub async fn extend(&mut self, by: Duration) -> Result<(), Error> {
        let (deadline, _) = self.group.extend(by, &[self.attempt]).await?;
        self.deadline = deadline;
        Ok(())
    }
}

#[derive(Debug)]
struct PushSource {
    group: GroupId,
    options: PushOptions,
    level: wire::Level,
}

impl Source for PushSource {
    fn request(&self, out: &mut Vec<u8>, id: u32, fields: &Fields<'_>, permit: Permit) -> Result<(), Invalid> {
        let push = wire::Push {
            group: self.group,
            held_records: self.options.held_records,
            held_bytes: self.options.held_bytes,
            level: self.level,
            release: self.options.release,
            permit,
            member: &self.options.member,
        };
        Ok(push.encode_with(out, id, fields)?)
    }

    fn begun(&mut self, frame: &SharedFrame) -> Result<(), Error> {
        reply_of::<wire::Pushing>(frame).map(|_| ())
    }
}

/// Receives the deliveries that the server pushes to a member of a group. Dropping this value ends the subscription.
/// [`PushOptions`] determine when the group then redelivers records that are not acked or nacked.
#[derive(Debug)]
pub struct Pushes {
    group: Group,
    feed: Feed<PushSource>,
}

impl Pushes {
    /// Waits for the next delivery that the server pushes; `None` if the subscription has ended. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Delivery>, Error> {
        while let Some((frame, _)) = self.feed.next_frame().await? {
            let wire::Pushed { durability, attempt, deadline, parts } = reply_of(&frame)?;
            if let Some(delivery) = self.group.delivery(&frame, durability, attempt, deadline, &parts)? {
                return Ok(Some(delivery));
            }
        }
        Ok(None)
    }
}
