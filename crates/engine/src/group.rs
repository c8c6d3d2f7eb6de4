//! Consumer groups: fetch, ack, nack, extend, seek, describe, configure, delete.
//!
//! Owns: the handle and its blocking calls; below it, what a fetch brings (`delivery`), looking up what a
//! fetch needs to know beforehand (`fetch`), deliveries that come by themselves (`push`), and moving dead letters to their stream (`dead`). Does not own
//! what is delivered when: that is the state machine's, so it is the same on every replica.

mod asynchronous;
mod dead;
mod delivery;
mod error;
mod fetch;
mod figures;
mod push;

use std::time::Duration;

use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_state::groups::{GroupReady, MemberInfo};
use thalweg_types::{
    Attempt, Durability, GroupId, Offset, SpaceTime, StreamId,
    command::{
        CommandError, Outcome,
        groups::{
            Again, GroupConfig, GroupOutcome, Lapsed, Settlement, encode_ack, encode_configure_group,
            encode_create_group, encode_delete_group, encode_extend, encode_nack, encode_seek,
        },
    },
};

pub use delivery::{Delivery, Message};
pub use error::GroupError;
pub use fetch::FetchRequest;
pub(crate) use fetch::Waits;
pub use figures::GroupFigures;
use push::Due;
pub use push::{Credit, Push, PushRequest, Waits as PushWaits};
pub use thalweg_state::groups::HeldAttempt;

use crate::{
    database::{Ack, Database, ack, check_outcome_known, unexpected},
    error::{ReadError, WriteError, refusal},
    stream::Stream,
};

/// Members after which a page of groups ends.
pub const MAX_LISTED_MEMBERS: usize = 10_000;

/// A group as of the last applied entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupInfo {
    /// Its name, unique within its stream.
    pub name: String,
    /// Its id, for commits.
    pub id: GroupId,
    /// The stream.
    pub stream: StreamId,
    /// The stream's name.
    pub stream_name: String,
    /// How it delivers.
    pub config: GroupConfig,
    /// Next to deliver that was never delivered.
    pub cursor: Offset,
    /// All records below are settled.
    pub floor: Offset,
    /// Records that were never delivered: the stream's next offset less the cursor.
    pub lag: u64,
    /// Records that wait for an ack or to be delivered again.
    pub pending: u64,
    /// Of them, with members before their deadline.
    pub in_flight: u64,
    /// Of them, behind another record of their key.
    pub parked: u64,
    /// Dead letters on their way to their stream.
    pub dying: u64,
    /// Records delivered, each time counted.
    pub delivered: u64,
    /// Of them, those that had been delivered before.
    pub redelivered: u64,
    /// Records acked.
    pub acked: u64,
    /// Records that became dead letters.
    pub dead: u64,
    /// Records that were delivered too often, without a stream for dead letters.
    pub dropped: u64,
    /// Who has fetched.
    pub members: Vec<GroupMember>,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// As it calls itself.
    pub name: String,
    /// When it last fetched, within ten seconds, in space time.
    pub last_fetch: SpaceTime,
    /// Records that it holds.
    pub in_flight: u64,
    /// Attempts that it holds.
    pub attempts: u64,
}

impl From<MemberInfo> for GroupMember {
    fn from(info: MemberInfo) -> Self {
        let MemberInfo { name, last_fetch, in_flight, attempts } = info;
        Self { name, last_fetch, in_flight, attempts }
    }
}

/// What came of an ack or nack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The level that was reached.
    pub durability: Durability,
    /// So many records were settled.
    pub settled: u32,
    /// What was not, because its attempt had lapsed or it was settled before.
    pub lapsed: Vec<Lapsed>,
}

/// What came of an extension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extended {
    /// The level that was reached.
    pub durability: Durability,
    /// The new deadline, in space time.
    pub deadline: SpaceTime,
    /// Attempts that hold nothing any more.
    pub lapsed: Vec<Attempt>,
}

/// Where a group begins or goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupStart {
    /// With the oldest record kept.
    #[default]
    Beginning,
    /// With what is appended from now on.
    End,
    /// At this offset.
    Offset(Offset),
    /// With the first record that is not older.
    Time(SpaceTime),
}

/// A consumer group; cheap to clone.
#[derive(Clone, Debug)]
pub struct Group {
    pub(crate) db: Database,
    pub(crate) stream: StreamId,
    pub(crate) id: GroupId,
}

impl Stream {
    /// The group of that name, if it exists.
    pub fn find_group(&self, name: &str) -> Result<Option<Group>, ReadError> {
        let id = self.database().inner.open.machine.group_id(self.id(), name)?;
        Ok(id.map(|id| Group { db: self.database().clone(), stream: self.id(), id }))
    }

    /// The group of that name, created if missing; says whether it was. One that exists keeps its place and
    /// its configuration.
    pub fn create_group(
        &self,
        name: &str,
        start: GroupStart,
        config: &GroupConfig,
    ) -> Result<(Group, bool), GroupError> {
        let start = self.resolve(start)?;
        let level = self.database().durability().max(Durability::Os);
        let encode = |out: &mut Vec<u8>| encode_create_group(out, self.id(), name, start, config);
        let committed = self.database().inner.propose(level, Purpose::Data, encode)?;
        self.created_group(committed)
    }

    pub(crate) fn created_group(&self, committed: Committed) -> Result<(Group, bool), GroupError> {
        match group_outcome(committed)?.1 {
            GroupOutcome::Created { id, created } => {
                Ok((Group { db: self.database().clone(), stream: self.id(), id }, created))
            }
            other => Err(unexpected(Some(&Outcome::Group(other))).into()),
        }
    }

    /// Its groups, by name.
    pub fn groups(&self) -> Result<Vec<GroupInfo>, ReadError> {
        let machine = &self.database().inner.open.machine;
        let group = |id| Group { db: self.database().clone(), stream: self.id(), id };
        let infos = machine.groups(Some(self.id()))?.into_iter().map(|id| group(id).look());
        // One that was deleted meanwhile is not listed.
        infos.filter_map(Result::transpose).collect()
    }

    /// `None` is the end.
    pub(crate) fn resolve(&self, start: GroupStart) -> Result<Option<Offset>, ReadError> {
        match start {
            GroupStart::Beginning => Ok(Some(Offset::ZERO)),
            GroupStart::End => Ok(None),
            GroupStart::Offset(offset) => Ok(Some(offset)),
            GroupStart::Time(time) => self.offset_at(time).map(Some),
        }
    }
}

impl Database {
    /// All consumer groups, by id.
    pub fn groups(&self) -> Result<Vec<GroupInfo>, ReadError> {
        let machine = &self.inner.open.machine;
        let look = |(stream, id)| Group { db: self.clone(), stream, id }.look();
        machine.group_streams()?.into_iter().map(look).filter_map(Result::transpose).collect()
    }

    /// Groups after one, by id, of a stream or of all, and whether there may be more: at most `limit`, and no more
    /// than it takes to bring their members to [`MAX_LISTED_MEMBERS`].
    pub fn groups_after(
        &self,
        stream: Option<StreamId>,
        after: GroupId,
        limit: usize,
    ) -> Result<(Vec<GroupInfo>, bool), ReadError> {
        let (mut page, mut members) = (Vec::new(), 0);
        let wanted = |(of, id): &(StreamId, GroupId)| *id > after && stream.is_none_or(|stream| stream == *of);
        for (stream, id) in self.inner.open.machine.group_streams()?.into_iter().filter(wanted) {
            if page.len() >= limit || members >= MAX_LISTED_MEMBERS {
                return Ok((page, true));
            }
            // One that was deleted meanwhile is not listed.
            if let Some(info) = (Group { db: self.clone(), stream, id }).look()? {
                members += info.members.len();
                page.push(info);
            }
        }
        Ok((page, false))
    }
}

impl Group {
    /// Its id, for commits.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Its stream.
    #[must_use]
    pub fn stream(&self) -> Stream {
        self.db.stream_with_id(self.stream)
    }

    /// A handle whose writes default to `level`.
    #[must_use]
    pub fn with_durability(&self, level: Durability) -> Self {
        Self { db: self.db.with_durability(level), ..self.clone() }
    }

    /// Its figures.
    pub fn info(&self) -> Result<GroupInfo, GroupError> {
        self.look()?.ok_or(GroupError::NoSuchGroup(self.id))
    }

    fn look(&self) -> Result<Option<GroupInfo>, ReadError> {
        let open = &self.db.inner.open;
        let Some(info) = open.machine.group(self.id, open.solo.now())? else { return Ok(None) };
        // Gone with its stream, a moment later.
        let Some(stream) = open.machine.stream(self.stream) else { return Ok(None) };
        Ok(Some(GroupInfo {
            name: info.name.to_string(),
            id: info.id,
            stream: info.stream,
            stream_name: stream.name.to_string(),
            config: info.config,
            cursor: info.cursor,
            floor: info.floor,
            lag: stream.next.0.saturating_sub(info.cursor.0),
            pending: info.pending,
            in_flight: info.in_flight,
            parked: info.parked,
            dying: info.dying,
            delivered: info.delivered,
            redelivered: info.redelivered,
            acked: info.acked,
            dead: info.dead,
            dropped: info.dropped,
            members: info.members.into_iter().map(GroupMember::from).collect(),
        }))
    }

    /// Acks records: they are done with.
    pub fn ack(&self, settlements: &[Settlement]) -> Result<Settled, GroupError> {
        settled(self.propose(Purpose::Reclaim, |out| encode_ack(out, self.id, settlements))?)
    }

    /// Gives records back; `reason` goes into the dead letters of those that were delivered too often.
    pub fn nack(&self, settlements: &[Settlement], again: Again, reason: &str) -> Result<Settled, GroupError> {
        settled(self.propose(Purpose::Reclaim, |out| encode_nack(out, self.id, again, reason, settlements))?)
    }

    /// Moves the deadlines of attempts to so much after now, be that later or earlier.
    pub fn extend(&self, attempts: &[Attempt], by: Duration) -> Result<Extended, GroupError> {
        extended(self.propose(Purpose::Reclaim, |out| encode_extend(out, self.id, by, attempts))?)
    }

    /// Delivers from there on, whatever was delivered or settled; attempts under way lapse. Returns the
    /// cursor.
    pub fn seek(&self, to: GroupStart) -> Result<Offset, GroupError> {
        let offset = self.stream().resolve(to)?;
        let encode = |out: &mut Vec<u8>| {
            encode_seek(out, self.id, offset);
            Ok(())
        };
        sought(self.propose(Purpose::Reclaim, encode)?)
    }

    /// Replaces how it delivers; its order stays.
    pub fn configure(&self, config: &GroupConfig) -> Result<Ack, GroupError> {
        Ok(ack(self.propose(Purpose::Reclaim, |out| encode_configure_group(out, self.id, config))?)?)
    }

    /// Deletes the group and all that it knows. The stream stays.
    pub fn delete(&self) -> Result<Ack, GroupError> {
        let encode = |out: &mut Vec<u8>| {
            encode_delete_group(out, self.id);
            Ok(())
        };
        Ok(ack(self.propose(Purpose::Reclaim, encode)?)?)
    }

    /// What each of these attempts still holds, and until when.
    pub fn held(&self, attempts: &[Attempt]) -> Result<Vec<HeldAttempt>, ReadError> {
        let open = &self.db.inner.open;
        Ok(open.machine.held_attempts(self.id, open.solo.now(), attempts)?)
    }

    /// Whether a fetch would bring something now; else in how long it may at the earliest, unless records
    /// are appended or given back.
    pub fn ready(&self) -> Result<Ready, GroupError> {
        let now = self.db.inner.open.solo.now();
        match self.due()? {
            Due::Now => Ok(Ready::Now),
            Due::At(due) => {
                let left = |due: SpaceTime| Duration::from_micros(due.0.saturating_sub(now.0));
                Ok(Ready::In(due.map(left)))
            }
        }
    }

    /// When a fetch would bring something.
    fn due(&self) -> Result<Due, GroupError> {
        let open = &self.db.inner.open;
        match open.machine.group_ready(self.id, open.solo.now()).map_err(ReadError::from)? {
            GroupReady::Now => Ok(Due::Now),
            GroupReady::At(due) => Ok(Due::At(due)),
            GroupReady::Gone => Err(GroupError::NoSuchGroup(self.id)),
        }
    }

    fn propose(
        &self,
        purpose: Purpose,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>,
    ) -> Result<Committed, GroupError> {
        check_outcome_known(true, self.db.durability())?;
        Ok(self.db.inner.propose(self.db.durability(), purpose, encode)?)
    }
}

/// Whether a fetch is worth it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It would bring something.
    Now,
    /// Not before so long; `None` if nothing comes free by itself.
    In(Option<Duration>),
}

/// The outcome of a command about a group that was carried out, and its level.
fn group_outcome(committed: Committed) -> Result<(Durability, GroupOutcome), WriteError> {
    match committed.outcome.map(refusal).transpose()? {
        Some(Outcome::Group(outcome)) => Ok((committed.durability, outcome)),
        other => Err(unexpected(other.as_ref())),
    }
}

pub(crate) fn settled(committed: Committed) -> Result<Settled, GroupError> {
    match group_outcome(committed)? {
        (durability, GroupOutcome::Settled { settled, lapsed }) => Ok(Settled { durability, settled, lapsed }),
        (_, other) => Err(unexpected(Some(&Outcome::Group(other))).into()),
    }
}

pub(crate) fn extended(committed: Committed) -> Result<Extended, GroupError> {
    match group_outcome(committed)? {
        (durability, GroupOutcome::Extended { deadline, lapsed }) => Ok(Extended { durability, deadline, lapsed }),
        (_, other) => Err(unexpected(Some(&Outcome::Group(other))).into()),
    }
}

pub(crate) fn sought(committed: Committed) -> Result<Offset, GroupError> {
    match group_outcome(committed)?.1 {
        GroupOutcome::Sought { cursor } => Ok(cursor),
        other => Err(unexpected(Some(&Outcome::Group(other))).into()),
    }
}
