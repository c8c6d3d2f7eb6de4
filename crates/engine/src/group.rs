//! Consumer groups: the handle with its operations fetch, ack, nack, extend, seek, describe, configure and delete.
//!
//! Owns: the handle and its blocking calls. The submodules own the result of a fetch (`delivery`), the lookups before a
//! fetch (`fetch`), pushed deliveries (`push`), and moving dead letters to their stream (`dead`). Does not own: the
//! choice of the records that a fetch delivers. The state machine makes this choice, so it is the same on every
//! replica.

mod asynchronous;
mod dead;
mod delivery;
mod due;
mod error;
mod fetch;
mod figures;
mod push;

use std::time::Duration;

use due::DeliveryDue;
use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_state::groups::GroupReady;
use thalweg_types::{
    Attempt, Durability, GroupId, Offset, SpaceTime, StreamId,
    command::{
        CommandError, Outcome,
        groups::{
            GroupConfig, GroupOutcome, Redelivery, Settlement, encode_ack, encode_configure_group, encode_create_group,
            encode_delete_group, encode_extend, encode_nack, encode_seek,
        },
    },
};

use crate::{
    ack::{Ack, ack, check_outcome_known, unexpected},
    database::Database,
    error::{ReadError, WriteError, refusal},
    stream::Stream,
};

pub use asynchronous::UnreadDelivery;
pub use delivery::{Delivery, Message};
pub use error::GroupError;
pub use fetch::{FetchRequest, PreparedFetch};
pub use figures::GroupFigures;
pub use push::{Credit, Push, PushRequest, PushWait as PushWaits};
pub use thalweg_state::groups::HeldAttempt;
pub use thalweg_types::info::{Group as GroupInfo, Member as MemberInfo, SettlementResult};

/// Number of members after which a page of the list of groups ends.
pub const MAX_LISTED_MEMBERS: usize = 10_000;

/// Result of extending the ack deadlines of delivery attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extended {
    /// Durability level that the change of the deadlines reached.
    pub durability: Durability,
    /// New ack deadline of the delivery attempts, by the database's own clock (space time).
    pub deadline: SpaceTime,
    /// Delivery attempts that were not extended because none of their records is still waiting for an ack.
    pub lapsed: Vec<Attempt>,
}

/// Position in its stream at which a consumer group begins to deliver, or continues after a seek.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupStart {
    /// The group begins at the oldest record that the stream keeps.
    #[default]
    Beginning,
    /// The group begins at the next record that will be appended.
    End,
    /// The group begins at this offset.
    Offset(Offset),
    /// The group begins at the first record that was appended at or after this time.
    Time(SpaceTime),
}

/// Handle of a consumer group. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Group {
    pub(crate) db: Database,
    pub(crate) stream: StreamId,
    pub(crate) id: GroupId,
}

impl Stream {
    /// Returns the stream's consumer group with this name; `None` if the stream has no such group.
    pub fn find_group(&self, name: &str) -> Result<Option<Group>, ReadError> {
        let id = self.database().inner.open.machine.group_id(self.id(), name)?;
        Ok(id.map(|id| Group { db: self.database().clone(), stream: self.id(), id }))
    }

    /// Returns the stream's consumer group with this name, and creates it if it is missing. The flag is true if this
    /// call created the group. An existing group keeps its cursor and its configuration.
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

    /// Returns the descriptions of the stream's consumer groups, ordered by name.
    pub fn groups(&self) -> Result<Vec<GroupInfo>, ReadError> {
        let machine = &self.database().inner.open.machine;
        let group = |id| Group { db: self.database().clone(), stream: self.id(), id };
        let infos = machine.groups(Some(self.id()))?.into_iter().map(|id| group(id).read_info());
        // A group that was deleted in the meantime is not listed.
        infos.filter_map(Result::transpose).collect()
    }

    /// Converts the start of a group to an offset; `None` means the end of the stream.
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
    /// Returns the descriptions of all consumer groups, ordered by id.
    pub fn groups(&self) -> Result<Vec<GroupInfo>, ReadError> {
        let machine = &self.inner.open.machine;
        let look = |(stream, id)| Group { db: self.clone(), stream, id }.read_info();
        machine.group_streams()?.into_iter().map(look).filter_map(Result::transpose).collect()
    }

    /// Returns the number of consumer groups.
    pub fn group_count(&self) -> Result<usize, ReadError> {
        Ok(self.inner.open.machine.group_count()?)
    }

    /// Returns a page of the consumer groups of one stream or of all streams, ordered by id and beginning after the id
    /// `after`. The page has at most `limit` groups, and ends early once its groups have [`MAX_LISTED_MEMBERS`]
    /// members together. The flag is true if more groups follow.
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
            // A group that was deleted in the meantime is not listed.
            if let Some(info) = (Group { db: self.clone(), stream, id }).read_info()? {
                members += info.members.len();
                page.push(info);
            }
        }
        Ok((page, false))
    }
}

impl Group {
    /// Id of the group, by which commits refer to it.
    #[must_use]
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Returns a handle of the stream that the group reads.
    #[must_use]
    pub fn stream(&self) -> Stream {
        self.db.stream_with_id(self.stream)
    }

    /// Returns a handle of the same group whose writes use the durability `level` by default.
    #[must_use]
    pub fn with_durability(&self, level: Durability) -> Self {
        Self { db: self.db.with_durability(level), ..self.clone() }
    }

    /// Returns the group's configuration, cursor and counters.
    pub fn info(&self) -> Result<GroupInfo, GroupError> {
        self.read_info()?.ok_or(GroupError::NoSuchGroup(self.id))
    }

    fn read_info(&self) -> Result<Option<GroupInfo>, ReadError> {
        let open = &self.db.inner.open;
        Ok(open.machine.group(self.id, open.replica.now())?)
    }

    /// Acknowledges delivered records: they are processed and will not be redelivered.
    pub fn ack(&self, settlements: &[Settlement]) -> Result<SettlementResult, GroupError> {
        settled(self.propose(Purpose::Reclaim, |out| encode_ack(out, self.id, settlements))?)
    }

    /// Returns delivered records to the group. `again` determines when the group redelivers them. `reason` is stored
    /// with records that become dead letters.
    pub fn nack(
        &self,
        settlements: &[Settlement],
        again: Redelivery,
        reason: &str,
    ) -> Result<SettlementResult, GroupError> {
        settled(self.propose(Purpose::Reclaim, |out| encode_nack(out, self.id, again, reason, settlements))?)
    }

    /// Sets the ack deadlines of delivery attempts to the time `by` from now, earlier or later than before.
    pub fn extend(&self, attempts: &[Attempt], by: Duration) -> Result<Extended, GroupError> {
        extended(self.propose(Purpose::Reclaim, |out| encode_extend(out, self.id, by, attempts))?)
    }

    /// Moves the group's cursor regardless of earlier deliveries, acks and nacks. All attempts in progress lose their
    /// records. Returns the new cursor.
    pub fn seek(&self, to: GroupStart) -> Result<Offset, GroupError> {
        let offset = self.stream().resolve(to)?;
        let encode = |out: &mut Vec<u8>| {
            encode_seek(out, self.id, offset);
            Ok(())
        };
        seek_result(self.propose(Purpose::Reclaim, encode)?)
    }

    /// Replaces the group's configuration. The delivery order cannot be changed.
    pub fn configure(&self, config: &GroupConfig) -> Result<Ack, GroupError> {
        Ok(ack(self.propose(Purpose::Reclaim, |out| encode_configure_group(out, self.id, config))?)?)
    }

    /// Deletes the group and its delivery state. The stream stays.
    pub fn delete(&self) -> Result<Ack, GroupError> {
        let encode = |out: &mut Vec<u8>| {
            encode_delete_group(out, self.id);
            Ok(())
        };
        Ok(ack(self.propose(Purpose::Reclaim, encode)?)?)
    }

    /// Returns the records that each of these delivery attempts still holds, and their ack deadlines.
    pub fn held(&self, attempts: &[Attempt]) -> Result<Vec<HeldAttempt>, ReadError> {
        let open = &self.db.inner.open;
        Ok(open.machine.held_attempts(self.id, open.replica.now(), attempts)?)
    }

    /// Reports if a fetch would deliver records now, and otherwise the time until a pending record can be redelivered.
    /// Appended or returned records can make a fetch deliver earlier.
    pub fn ready(&self) -> Result<Ready, GroupError> {
        let now = self.db.inner.open.replica.now();
        match self.due()? {
            DeliveryDue::Now => Ok(Ready::Now),
            DeliveryDue::At(due) => {
                let left = |due: SpaceTime| Duration::from_micros(due.0.saturating_sub(now.0));
                Ok(Ready::In(due.map(left)))
            }
        }
    }

    /// Returns the time at which a fetch would deliver records, assuming that none are appended or returned before.
    fn due(&self) -> Result<DeliveryDue, GroupError> {
        let open = &self.db.inner.open;
        match open.machine.group_ready(self.id, open.replica.now()).map_err(ReadError::from)? {
            GroupReady::Now => Ok(DeliveryDue::Now),
            GroupReady::At(due) => Ok(DeliveryDue::At(due)),
            GroupReady::NoGroup => Err(GroupError::NoSuchGroup(self.id)),
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

/// Result of [`Group::ready`]: when a fetch would deliver records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// A fetch would deliver records now.
    Now,
    /// A fetch may deliver records after this time; `None` if it can deliver only appended or returned records.
    In(Option<Duration>),
}

/// Returns the outcome of a command about a group, with the durability level that it reached; an error if the command
/// was rejected.
fn group_outcome(committed: Committed) -> Result<(Durability, GroupOutcome), WriteError> {
    match committed.outcome.map(refusal).transpose()? {
        Some(Outcome::Group(outcome)) => Ok((committed.durability, outcome)),
        other => Err(unexpected(other.as_ref())),
    }
}

pub(crate) fn settled(committed: Committed) -> Result<SettlementResult, GroupError> {
    match group_outcome(committed)? {
        (durability, GroupOutcome::Settled { settled, lapsed }) => Ok(SettlementResult { durability, settled, lapsed }),
        (_, other) => Err(unexpected(Some(&Outcome::Group(other))).into()),
    }
}

pub(crate) fn extended(committed: Committed) -> Result<Extended, GroupError> {
    match group_outcome(committed)? {
        (durability, GroupOutcome::Extended { deadline, lapsed }) => Ok(Extended { durability, deadline, lapsed }),
        (_, other) => Err(unexpected(Some(&Outcome::Group(other))).into()),
    }
}

pub(crate) fn seek_result(committed: Committed) -> Result<Offset, GroupError> {
    match group_outcome(committed)?.1 {
        GroupOutcome::Sought { cursor } => Ok(cursor),
        other => Err(unexpected(Some(&Outcome::Group(other))).into()),
    }
}
