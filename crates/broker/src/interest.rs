//! Interest in a subject or pattern: the set of its subscriptions and queue groups.
//!
//! Owns: `Interest` with the members of its queue groups, and the merging of several interests. Does not own: the
//! search for the patterns that match a subject (`wildcards`), or the choice of a group's member (`publish`).
//!
//! Invariant: subscriptions are ordered by link, so subscriptions of one link are neighbours. A publish delivers to all
//! of them while it holds the link's lock once.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use thalweg_types::limits::MAX_QUEUE_GROUP_MEMBERS;

use crate::link::{Shared, SlotId};

/// Maximum number of subscriptions in a [`Targets`] that is stored as a sorted list. A larger set is stored as a tree,
/// in which inserts and removals take logarithmic time.
const MAX_FEW: usize = 64;

/// A subscription and its link. Ordered by link, so that subscriptions of one link are neighbours.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) link: Arc<Shared>,
    pub(crate) slot: SlotId,
}

impl Target {
    pub(crate) fn is_on_same_link(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.link, &other.link)
    }
}

impl Ord for Target {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_link = Arc::as_ptr(&self.link).cmp(&Arc::as_ptr(&other.link));
        by_link.then_with(|| self.slot.cmp(&other.slot))
    }
}

impl PartialOrd for Target {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Target {}

/// An ordered set of subscriptions. Most such sets have one member.
#[derive(Debug, Default)]
pub(crate) enum Targets {
    #[default]
    None,
    One(Target),
    Few(Vec<Target>),
    Many(BTreeSet<Target>),
}

impl Targets {
    fn insert(&mut self, target: Target) {
        match self {
            Self::None => *self = Self::One(target),
            Self::One(_) => {
                let Self::One(first) = std::mem::take(self) else { unreachable!("just seen") };
                let both = if first < target { vec![first, target] } else { vec![target, first] };
                *self = Self::Few(both);
            }
            Self::Few(few) => {
                let at = few.binary_search(&target).unwrap_or_else(|at| at);
                few.insert(at, target);
                if few.len() > MAX_FEW {
                    *self = Self::Many(std::mem::take(few).into_iter().collect());
                }
            }
            Self::Many(many) => {
                many.insert(target);
            }
        }
    }

    fn remove(&mut self, target: &Target) {
        match self {
            Self::None => {}
            Self::One(one) => {
                if one == target {
                    *self = Self::None;
                }
            }
            Self::Few(few) => {
                if let Ok(at) = few.binary_search(target) {
                    few.remove(at);
                }
                if few.len() == 1 {
                    *self = few.pop().map_or(Self::None, Self::One);
                }
            }
            Self::Many(many) => {
                many.remove(target);
                if many.len() <= MAX_FEW / 2 {
                    *self = Self::Few(std::mem::take(many).into_iter().collect());
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Few(few) => few.len(),
            Self::Many(many) => many.len(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Target> + Clone {
        let (slice, tree): (&[Target], _) = match self {
            Self::None => (&[], None),
            Self::One(one) => (std::slice::from_ref(one), None),
            Self::Few(few) => (few, None),
            Self::Many(many) => (&[], Some(many.iter())),
        };
        slice.iter().chain(tree.into_iter().flatten())
    }
}

/// Error returned when a queue group has reached its maximum number of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupFull;

/// Sorted members of each queue group, by the group's name.
type Groups = BTreeMap<Arc<[u8]>, Vec<Target>>;

/// Set of subscriptions and queue groups. They belong to one pattern, or to all patterns that match one subject.
#[derive(Debug, Default)]
pub(crate) struct Interest {
    targets: Targets,
    /// Queue groups by name. Boxed because most patterns have no groups.
    groups: Option<Box<Groups>>,
}

impl Interest {
    pub(crate) fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.groups.is_none()
    }

    pub(crate) fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Number of subscriptions, including the members of queue groups. Takes time proportional to the number of groups.
    pub(crate) fn len(&self) -> usize {
        let members: usize = self.groups().map(<[Target]>::len).sum();
        self.targets.len() + members
    }

    pub(crate) fn has_groups(&self) -> bool {
        self.groups.is_some()
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = &[Target]> {
        self.groups.iter().flat_map(|groups| groups.values().map(Vec::as_slice))
    }

    /// Returns the members of the queue group with this name; an empty list if there is no such group.
    pub(crate) fn group(&self, name: &[u8]) -> &[Target] {
        self.groups.as_ref().and_then(|groups| groups.get(name)).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn insert(&mut self, group: Option<&Arc<[u8]>>, target: Target) -> Result<(), GroupFull> {
        let Some(name) = group else {
            self.targets.insert(target);
            return Ok(());
        };
        let members = self.groups.get_or_insert_default().entry(Arc::clone(name)).or_default();
        if members.len() >= MAX_QUEUE_GROUP_MEMBERS {
            return Err(GroupFull);
        }
        let at = members.binary_search(&target).unwrap_or_else(|at| at);
        members.insert(at, target);
        Ok(())
    }

    pub(crate) fn remove(&mut self, group: Option<&Arc<[u8]>>, target: &Target) {
        let Some(name) = group else { return self.targets.remove(target) };
        let Some(groups) = &mut self.groups else { return };
        let Some(members) = groups.get_mut(name) else { return };
        if let Ok(at) = members.binary_search(target) {
            members.remove(at);
        }
        if members.is_empty() {
            groups.remove(name);
        }
        if groups.is_empty() {
            self.groups = None;
        }
    }

    /// Merges several interests into one. Queue groups with the same name become one group.
    pub(crate) fn merged<'a>(all: impl Iterator<Item = &'a Self> + Clone) -> Self {
        let mut targets: Vec<Target> = all.clone().flat_map(|one| one.targets.iter().cloned()).collect();
        targets.sort_unstable();
        let targets = match targets.len() {
            0 => Targets::None,
            1 => targets.pop().map_or(Targets::None, Targets::One),
            _ => Targets::Few(targets),
        };
        let mut groups: Option<Box<Groups>> = None;
        for (name, members) in all.filter_map(|one| one.groups.as_ref()).flat_map(|groups| groups.iter()) {
            let merged = groups.get_or_insert_default().entry(Arc::clone(name)).or_default();
            merged.extend_from_slice(members);
        }
        Self { targets, groups }
    }
}
