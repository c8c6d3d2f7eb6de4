//! Opening a space as a member of its group.
//!
//! Owns: the checks, and the initial parts. Does not own: replay. A member applies nothing at open, because it does not
//! know which entries after its state are committed; consensus tells it soon.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, OnceLock, RwLock,
        atomic::{AtomicBool, AtomicU64},
    },
    time::Duration,
};

use thalweg_log::Log;
use thalweg_state::machine::Machine;
use thalweg_types::{Clock, NodeId, SpaceId, SpaceTime, Term};

use super::{Leadership, Member, MemberClock, Shared, cursor::Cursor, moves::Moves};
use crate::{
    apply::check_log_covers,
    counts::Counts,
    error::OpenError,
    membership::{Membership, Vote},
    queue::Queue,
};

/// Options of a space on a member of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberOptions {
    /// Id of the space.
    pub space: SpaceId,
    /// Id of this node.
    pub node: NodeId,
    /// Maximum total size of queued commands in bytes. At the limit, blocking proposers wait and async proposers get an
    /// error.
    pub max_queue_bytes: usize,
    /// Maximum time that a proposer waits for its answer.
    pub max_wait: Duration,
    /// Maximum time that a caller waits for a move. Zero never blocks: then a move behind uncommitted entries is refused.
    pub max_move_wait: Duration,
    /// Space time with which the space begins, if its last entry is not later. `None` continues from the last entry, and
    /// takes the wall clock for a space without entries.
    pub anchor: Option<SpaceTime>,
}

impl MemberOptions {
    /// Default time that a proposer waits for its answer.
    pub const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(10);
    /// Default time that a caller waits for a move.
    pub const DEFAULT_MAX_MOVE_WAIT: Duration = Duration::from_secs(2);

    /// Returns the default options of a member.
    #[must_use]
    pub const fn new(space: SpaceId, node: NodeId, max_queue_bytes: usize) -> Self {
        Self {
            space,
            node,
            max_queue_bytes,
            max_wait: Self::DEFAULT_MAX_WAIT,
            max_move_wait: Self::DEFAULT_MAX_MOVE_WAIT,
            anchor: None,
        }
    }
}

impl Member {
    /// Opens a space whose state may be behind its log. The entries that it has not applied are applied once consensus
    /// finds them committed. Without consensus the member has no leader.
    pub fn open(
        log: Log,
        machine: Arc<Machine>,
        clock: Arc<dyn Clock>,
        options: &MemberOptions,
    ) -> Result<Self, OpenError> {
        let applied = machine.applied();
        check_log_covers(&log, applied.lsn)?;
        let malformed = |what| OpenError::Malformed { lsn: applied.lsn, what };
        if let Some(membership) = machine.membership()? {
            Membership::decode(&membership.payload).ok_or_else(|| malformed("membership"))?;
        }
        if let Some(vote) = machine.vote()? {
            Vote::decode(&vote).ok_or_else(|| malformed("vote"))?;
        }
        let begins_at = if applied.time == SpaceTime::default() { clock.wall() } else { applied.time };
        let anchor = options.anchor.unwrap_or(begins_at).max(applied.time);
        // Reads hide ended values by the time of the last applied entry, which the machine does without a clock.
        let shared = Shared {
            clock: Arc::new(MemberClock::new(clock, anchor)),
            log,
            machine,
            options: *options,
            queue: Queue::new(options.max_queue_bytes),
            cut: Mutex::new(VecDeque::new()),
            leadership: RwLock::new(Leadership::Follower { leader: None, term: Term::ZERO }),
            leads: AtomicBool::new(false),
            is_led: AtomicBool::new(false),
            driver: OnceLock::new(),
            observer: OnceLock::new(),
            cursor: Mutex::new(Cursor::default()),
            moves: Moves::default(),
            purge: AtomicU64::new(0),
            failure: OnceLock::new(),
            is_closed: AtomicBool::new(false),
            counts: Counts::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}
