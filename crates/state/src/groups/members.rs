//! Members of a consumer group.
//!
//! A member is a consumer's name under which records were fetched. When a new name arrives, members that hold no
//! records and have not fetched for an hour are forgotten. The stored time of a member's last fetch is updated at most
//! every ten seconds, so most fetches write no member row.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use thalweg_store::WriteBatch;
use thalweg_types::{
    GroupId, SpaceTime,
    limits::{MAX_GROUP_MEMBERS, MAX_MEMBER_NAME_BYTES, MEMBER_IDLE_SECONDS},
};

use crate::keys;

const RENEW_AFTER: Duration = Duration::from_secs(10);
const IDLE: Duration = Duration::from_secs(MEMBER_IDLE_SECONDS);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) name: Box<str>,
    /// Time of a recent fetch of the member. Its last fetch is less than [`RENEW_AFTER`] later.
    pub(crate) last_fetch: SpaceTime,
}

#[derive(Debug, Default)]
pub(crate) struct Members {
    by_id: BTreeMap<u32, Member>,
    by_name: HashMap<Box<str>, u32>,
    /// Ids of members whose rows the log record being applied has changed or removed.
    changed: BTreeSet<u32>,
}

impl Members {
    /// Returns the id of the member `name`, which fetches now; `None` if the group has too many members. `holds`
    /// returns true for a member that holds records.
    pub(crate) fn fetches(&mut self, name: &str, now: SpaceTime, holds: impl Fn(u32) -> bool) -> Option<u32> {
        if let Some(&id) = self.by_name.get(name) {
            let member = self.by_id.get_mut(&id)?;
            if member.last_fetch.plus(RENEW_AFTER) <= now {
                member.last_fetch = now;
                self.changed.insert(id);
            }
            return Some(id);
        }
        self.forget_idle(now, holds);
        if self.by_id.len() >= MAX_GROUP_MEMBERS {
            return None;
        }
        let id = match self.by_id.last_key_value() {
            Some((last, _)) => last.checked_add(1)?,
            None => 0,
        };
        self.by_name.insert(name.into(), id);
        self.by_id.insert(id, Member { name: name.into(), last_fetch: now });
        self.changed.insert(id);
        Some(id)
    }

    fn forget_idle(&mut self, now: SpaceTime, holds: impl Fn(u32) -> bool) {
        let Self { by_id, by_name, changed } = self;
        by_id.retain(|id, member| {
            let keep = member.last_fetch.plus(IDLE) > now || holds(*id);
            if !keep {
                by_name.remove(&member.name);
                changed.insert(*id);
            }
            keep
        });
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Removes up to `max` members of a deleted group, in the order of ids. Returns the number of removed members.
    pub(crate) fn remove_some(&mut self, max: u32) -> u32 {
        let mut removed = 0;
        while removed < max
            && let Some((id, member)) = self.by_id.pop_first()
        {
            self.by_name.remove(&member.name);
            self.changed.insert(id);
            removed += 1;
        }
        removed
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Member)> {
        self.by_id.iter().map(|(&id, member)| (id, member))
    }

    pub(crate) fn load(&mut self, key: &[u8], row: &[u8]) -> Result<(), &'static str> {
        let id = u32::from_be_bytes(key.try_into().map_err(|_| "key of a wrong length")?);
        let (time, name) = row.split_first_chunk::<8>().ok_or("row of a wrong length")?;
        let name = std::str::from_utf8(name).ok().filter(|name| name.len() <= MAX_MEMBER_NAME_BYTES);
        let name = name.ok_or("not a name")?;
        if self.by_name.insert(name.into(), id).is_some() || self.by_id.len() >= MAX_GROUP_MEMBERS {
            return Err("a name occurs twice, or there are too many");
        }
        self.by_id.insert(id, Member { name: name.into(), last_fetch: SpaceTime(u64::from_le_bytes(*time)) });
        Ok(())
    }

    pub(crate) fn write(&mut self, group: GroupId, batch: &mut WriteBatch) {
        for id in std::mem::take(&mut self.changed) {
            let key = keys::group_member(group, id);
            match self.by_id.get(&id) {
                Some(member) => batch.put(&[&key], &[&member.last_fetch.0.to_le_bytes(), member.name.as_bytes()]),
                None => batch.delete(&[&key]),
            }
        }
    }

    pub(crate) fn delete_rows(&self, group: GroupId, batch: &mut WriteBatch) {
        let ids: BTreeSet<u32> = self.by_id.keys().chain(&self.changed).copied().collect();
        ids.into_iter().for_each(|id| batch.delete(&[&keys::group_member(group, id)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_members_make_room_and_holders_stay() {
        let mut members = Members::default();
        let time = |seconds: u64| SpaceTime(seconds * 1_000_000);
        for number in 0..MAX_GROUP_MEMBERS {
            let fetched = members.fetches(&number.to_string(), time(1), |_| false);
            assert_eq!(fetched, Some(number as u32));
        }
        assert_eq!(members.fetches("more", time(2), |_| false), None, "at the bound, and no member is idle");
        assert_eq!(members.fetches("7", time(2000), |_| false), Some(7));
        let late = time(2 + MEMBER_IDLE_SECONDS);
        assert_eq!(members.fetches("more", late, |id| id == 3), Some(8), "one above the highest left");
        let left: Vec<_> = members.iter().map(|(id, _)| id).collect();
        assert_eq!(left, [3, 7, 8], "a holder, a member that returned, and a new one");
    }
}
