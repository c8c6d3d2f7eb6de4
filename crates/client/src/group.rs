//! Consumer groups: fetch or be pushed records, and settle them.
//!
//! Owns: [`Group`], [`Delivery`], [`Pushes`]. Delivery is at least once: what is not acked before its deadline, or was on the
//! way when a connection went, comes again, and says how often it was delivered.

use std::{sync::Arc, time::Duration};

use thalweg_types::{
    Attempt, Durability, GroupId, Offset, SpaceTime, StreamId,
    command::{
        CommandError,
        groups::{
            Again, GroupConfig, Lapsed, OffsetRun, Settlement, encode_ack, encode_configure_group, encode_create_group,
            encode_delete_group, encode_extend, encode_nack, encode_seek,
        },
    },
};
use thalweg_wire::{self as wire, Fields, Frame, Permit, Release, SharedFrame};

use crate::{
    client::{Client, How, Repeat},
    error::{Error, Invalid, ProtocolError},
    mailbox::Item,
    named::{Named, with_id},
    names::Name,
    options::Window,
    records::Records,
    request::reply_of,
    stream::Stream,
    subscription::{Event, Feed, Source},
    write::{created, done, fits},
};

const MISSING: &str = "no_such_group";

/// A consumer group of a stream, by its name. Cheap to clone; asks for its id at the first use.
#[derive(Clone, Debug)]
pub struct Group(Arc<Named>);

/// How a member is pushed records.
#[derive(Clone, Debug)]
pub struct PushOptions {
    /// Who receives.
    pub member: String,
    /// Most records that it may hold unsettled; 0: as the server likes.
    pub held_records: u32,
    /// Most bytes that it may hold unsettled; 0: as the server likes.
    pub held_bytes: u64,
    /// What becomes of what it holds when the push ends.
    pub release: Release,
    /// What may be sent ahead of the application; as the client's options say if `None`.
    pub window: Option<Window>,
}

impl PushOptions {
    /// For a member of that name, with the server's bounds; what it holds at the end comes again at once.
    #[must_use]
    pub fn member(member: impl Into<String>) -> Self {
        Self { member: member.into(), held_records: 0, held_bytes: 0, release: Release::AtOnce, window: None }
    }
}

/// Records that were delivered to a member, once: to be settled before the deadline.
#[derive(Clone, Debug)]
pub struct Delivery {
    group: Group,
    /// By which it is settled, also in a commit with other writes.
    pub attempt: Attempt,
    /// When it lapses.
    pub deadline: SpaceTime,
    /// The records.
    pub records: Records,
}

/// What came of an ack or nack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// How many records.
    pub settled: u32,
    /// What had lapsed or was settled before.
    pub lapsed: Vec<Lapsed>,
    /// The level that was reached.
    pub durability: Durability,
}

/// What there is to know about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Its id.
    pub id: GroupId,
    /// Its name.
    pub name: String,
    /// Its stream.
    pub stream: StreamId,
    /// Its stream's name.
    pub stream_name: String,
    /// How it delivers.
    pub config: GroupConfig,
    /// Next to deliver that was never delivered.
    pub cursor: Offset,
    /// All records below are settled.
    pub floor: Offset,
    /// Records that were never delivered.
    pub lag: u64,
    /// Records that wait for an ack or to be delivered again.
    pub pending: u64,
    /// Of them, with members.
    pub in_flight: u64,
    /// Of them, behind another record of their key.
    pub parked: u64,
    /// Dead letters on their way.
    pub dying: u64,
    /// Records delivered, each time counted.
    pub delivered: u64,
    /// Of them, those that had been delivered before.
    pub redelivered: u64,
    /// Records acked.
    pub acked: u64,
    /// Records that became dead letters.
    pub dead: u64,
    /// Records delivered too often, without a stream for dead letters.
    pub dropped: u64,
    /// Who has fetched.
    pub members: Vec<MemberInfo>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberInfo {
    /// As it calls itself.
    pub name: String,
    /// When it last fetched, within ten seconds.
    pub last_fetch: SpaceTime,
    /// Records that it holds.
    pub in_flight: u64,
    /// Attempts that it holds.
    pub attempts: u64,
}

impl Stream {
    /// The group of that name, whether there is one or not.
    pub async fn group(&self, name: impl Into<String>) -> Result<Group, Error> {
        let name = Name::Group(self.id().await?.0, name.into());
        Ok(Group(Arc::new(Named::new(self.client().clone(), name))))
    }
}

impl Client {
    /// Groups by id, those after `after`, of a stream or of all (0); and whether there may be more.
    pub async fn groups(&self, stream: StreamId, after: GroupId, limit: u32) -> Result<(Vec<GroupInfo>, bool), Error> {
        let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
            fits(wire::ListGroups { stream, after, limit }.encode_with(out, id, fields))
        };
        let read = |frame: &SharedFrame| {
            let wire::GroupList { more, groups } = reply_of(frame)?;
            Ok((groups.iter().map(info).collect(), more))
        };
        self.call(How::READ, encode, read).await
    }
}

fn info(group: wire::Group<'_>) -> GroupInfo {
    let member = |member: wire::Member<'_>| MemberInfo {
        name: member.name.to_owned(),
        last_fetch: member.last_fetch,
        in_flight: member.in_flight,
        attempts: member.attempts,
    };
    GroupInfo {
        id: group.id,
        name: group.name.to_owned(),
        stream: group.stream,
        stream_name: group.stream_name.to_owned(),
        config: group.config,
        cursor: group.cursor,
        floor: group.floor,
        lag: group.lag,
        pending: group.pending,
        in_flight: group.in_flight,
        parked: group.parked,
        dying: group.dying,
        delivered: group.delivered,
        redelivered: group.redelivered,
        acked: group.acked,
        dead: group.dead,
        dropped: group.dropped,
        members: group.members.iter().map(member).collect(),
    }
}

impl Group {
    fn parts(&self) -> (StreamId, &str) {
        match &self.0.name {
            Name::Group(stream, name) => (StreamId(*stream), name),
            _ => unreachable!("a group is made with its name"),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().1
    }

    fn client(&self) -> &Client {
        &self.0.client
    }

    /// Its id, by which commits name it.
    pub async fn id(&self) -> Result<GroupId, Error> {
        if let Some(id) = self.0.known() {
            return Ok(GroupId(id));
        }
        let id = self.describe().await?.id;
        self.0.learn(id.0);
        Ok(id)
    }

    /// Creates it unless it exists, to begin with an offset or (`None`) with what comes next; says whether it did.
    pub async fn create_if_missing(&self, start: Option<Offset>, config: &GroupConfig) -> Result<bool, Error> {
        let (stream, name) = self.parts();
        let encode = |out: &mut Vec<u8>| encode_create_group(out, stream, name, start, config);
        let (id, is_new) = self.client().write(Repeat::Harmless, encode, created).await?;
        self.0.learn(id);
        Ok(is_new)
    }

    /// What there is to know about it.
    pub async fn describe(&self) -> Result<GroupInfo, Error> {
        let (stream, name) = self.parts();
        let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
            fits(wire::FindGroup { stream, name }.encode_with(out, id, fields))
        };
        let read = |frame: &SharedFrame| Ok(info(reply_of::<wire::GroupFound<'_>>(frame)?.group));
        self.client().call(How::READ, encode, read).await
    }

    /// Replaces its configuration, other than its order.
    pub async fn configure(&self, config: &GroupConfig) -> Result<(), Error> {
        with_id!(self, MISSING, group => async {
            let encode = |out: &mut Vec<u8>| encode_configure_group(out, group, config);
            self.client().write(Repeat::IfNothing, encode, done).await.map(|_| ())
        })
    }

    /// Deletes it.
    pub async fn delete(&self) -> Result<(), Error> {
        let id = self.id().await?;
        let encode = |out: &mut Vec<u8>| {
            encode_delete_group(out, id);
            Ok(())
        };
        let deleted = self.client().write(Repeat::IfNothing, encode, done).await;
        self.0.forget(id.0);
        deleted.map(|_| ())
    }

    /// Delivers from another offset on (`None`: the end), and forgets what is pending; gives the cursor.
    pub async fn seek(&self, offset: Option<Offset>) -> Result<Offset, Error> {
        with_id!(self, MISSING, group => async {
            let encode = |out: &mut Vec<u8>| {
                encode_seek(out, group, offset);
                Ok(())
            };
            let read = |frame: &SharedFrame| Ok(reply_of::<wire::Sought>(frame)?.cursor);
            self.client().write(Repeat::Harmless, encode, read).await
        })
    }

    /// Delivers records to a member: at most so many, and about so many bytes; waits for the first one. `None`: there was none.
    pub async fn fetch(
        &self,
        member: &str,
        max_records: u32,
        max_bytes: u32,
        wait: Duration,
    ) -> Result<Option<Delivery>, Error> {
        let (level, micros) = (self.client().level(), u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
        // What was delivered to an answer that was lost comes again: so asking again does no harm.
        let how = How { more_time: wait, ..How::READ };
        with_id!(self, MISSING, group => async {
            let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
                let fetch = wire::Fetch { group, max_records, max_bytes, wait: micros, level, member };
                fits(fetch.encode_with(out, id, fields))
            };
            let read = |frame: &SharedFrame| {
                let wire::Delivery { durability, attempt, deadline, parts } = reply_of(frame)?;
                self.delivery(frame, durability, attempt, deadline, &parts)
            };
            self.client().call(how, encode, read).await
        })
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

    /// Deliveries that come by themselves, over lost connections too.
    pub async fn push(&self, options: PushOptions) -> Result<Pushes, Error> {
        let window = options.window.unwrap_or(self.client().options().window);
        let feed = with_id!(self, MISSING, group => async {
            let source = PushSource { group, options: options.clone(), level: self.client().level() };
            Feed::begin(self.client(), window, source).await
        })?;
        Ok(Pushes { group: self.clone(), feed })
    }

    /// Acks what is still to be acked of the settlements.
    pub async fn ack(&self, settlements: &[Settlement]) -> Result<Settled, Error> {
        self.settle(|out, group| encode_ack(out, group, settlements)).await
    }

    /// Gives back what still waits of the settlements, to be delivered again, or never.
    pub async fn nack(&self, again: Again, reason: &str, settlements: &[Settlement]) -> Result<Settled, Error> {
        self.settle(|out, group| encode_nack(out, group, again, reason, settlements)).await
    }

    /// What is settled twice has lapsed the second time: that does no harm, and the answer says so.
    async fn settle(
        &self,
        encode: impl Fn(&mut Vec<u8>, GroupId) -> Result<(), CommandError>,
    ) -> Result<Settled, Error> {
        with_id!(self, MISSING, group => async {
            self.client().write(Repeat::Harmless, |out: &mut Vec<u8>| encode(out, group), settled).await
        })
    }

    /// Moves the deadlines of attempts to so much after now; gives that, and the attempts that hold nothing any more.
    pub async fn extend(&self, by: Duration, attempts: &[Attempt]) -> Result<(SpaceTime, Vec<Attempt>), Error> {
        with_id!(self, MISSING, group => async {
            let encode = |out: &mut Vec<u8>| encode_extend(out, group, by, attempts);
            let read = |frame: &SharedFrame| {
                let wire::Extended { deadline, lapsed, .. } = reply_of(frame)?;
                Ok((deadline, lapsed.iter().collect()))
            };
            self.client().write(Repeat::Harmless, encode, read).await
        })
    }
}

fn settled(frame: &SharedFrame) -> Result<Settled, Error> {
    let wire::Settled { durability, settled, lapsed } = reply_of(frame)?;
    let one = |lapsed: wire::Lapsed| Lapsed {
        attempt: lapsed.attempt,
        run: (lapsed.count > 0).then_some(OffsetRun { first: lapsed.first, count: lapsed.count }),
    };
    Ok(Settled { settled, lapsed: lapsed.iter().map(one).collect(), durability })
}

impl Delivery {
    /// Acks all of it.
    pub async fn ack(&self) -> Result<Settled, Error> {
        self.group.ack(&[Settlement::all(self.attempt)]).await
    }

    /// Acks one of its records.
    pub async fn ack_one(&self, offset: Offset) -> Result<Settled, Error> {
        self.group.ack(&[Settlement::one(self.attempt, offset)]).await
    }

    /// Gives back what is not settled of it.
    pub async fn nack(&self, again: Again, reason: &str) -> Result<Settled, Error> {
        self.group.nack(again, reason, &[Settlement::all(self.attempt)]).await
    }

    /// Moves its deadline to so much after now.
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
    fn request(&self, out: &mut Vec<u8>, id: u32, permit: Permit) -> Result<(), Invalid> {
        let push = wire::Push {
            group: self.group,
            held_records: self.options.held_records,
            held_bytes: self.options.held_bytes,
            level: self.level,
            release: self.options.release,
            permit,
            member: &self.options.member,
        };
        fits(push.encode(out, id))
    }

    fn begun(&mut self, frame: &SharedFrame) -> Result<(), Error> {
        reply_of::<wire::Pushing>(frame).map(|_| ())
    }
}

/// Deliveries as they come. Dropped, it gives back what it holds as its options say.
#[derive(Debug)]
pub struct Pushes {
    group: Group,
    feed: Feed<PushSource>,
}

impl Pushes {
    /// The next delivery; `None`: it has ended. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Delivery>, Error> {
        loop {
            let Some(event) = self.feed.next().await? else { return Ok(None) };
            let frame = match event {
                Event::Resumed => continue,
                Event::Item(Item::Frame(frame, _)) => frame,
                Event::Item(_) => return Err(Error::Protocol(ProtocolError::WrongReply { kind: 0 })),
            };
            let wire::Pushed { durability, attempt, deadline, parts } = reply_of(&frame)?;
            if let Some(delivery) = self.group.delivery(&frame, durability, attempt, deadline, &parts)? {
                return Ok(Some(delivery));
            }
        }
    }
}
