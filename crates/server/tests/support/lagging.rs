//! A member of a cluster that another node leads. The test writes the member's log, so its state lags as long as the
//! test wants.

use std::{
    io::IoSlice,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use thalweg_engine::{Database, MemberIdentity, MemberParts, Options};
use thalweg_log::{Draft, Purpose, RecordKind};
use thalweg_replica::{Leadership, NodeInfo};
use thalweg_server::Config;
use thalweg_types::{
    Durability, NodeId, SpaceId, Term,
    command::{CommandError, Framed, Outcome},
    limits::MIN_MEMBER_SEGMENT_BYTES,
};

use super::{Node, cluster::FakeCluster, config, small_options};

const TERM: Term = Term(1);
const LEADER: NodeId = NodeId(2);

/// A member that lags, and a thread that commits its commands.
pub struct Lagging {
    pub node: Node,
    pub cluster: Arc<FakeCluster>,
    log: Arc<MemberLog>,
    committing: JoinHandle<()>,
}

struct MemberLog {
    parts: MemberParts,
    /// Entries that other nodes have committed and the member does not have.
    elsewhere: Mutex<Vec<Vec<u8>>>,
    is_stopped: AtomicBool,
}

impl Lagging {
    pub async fn start(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config();
        change(&mut config);
        let dir = tempfile::tempdir().unwrap();
        let options = Options { segment_bytes: MIN_MEMBER_SEGMENT_BYTES, ..small_options(&config) };
        let db = Database::open_member(dir.path(), options, MemberIdentity::Found).unwrap();
        let parts = db.member_parts().expect("a member");
        let leader = Some((LEADER, NodeInfo::at("127.0.0.1:2".to_owned())));
        parts.member.set_leadership(Leadership::Follower { leader, term: TERM });
        let log = Arc::new(MemberLog { parts, elsewhere: Mutex::default(), is_stopped: AtomicBool::new(false) });
        let committed = Arc::clone(&log);
        let committing = std::thread::spawn(move || {
            while !committed.is_stopped.load(Ordering::Acquire) {
                committed.commit();
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let (cluster, handle, _) = FakeCluster::new();
        cluster.change(|report| report.leader = Some(LEADER));
        let mut node = Node::of_member(config, db, Some(handle)).await;
        node._dir = Some(dir);
        Self { node, cluster, log, committing }
    }

    /// Commits a command on the other nodes. The member gets its entry before that of its own next command.
    pub fn elsewhere(&self, encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) {
        let mut command = Framed::new();
        command.encode(encode).unwrap();
        self.log.elsewhere.lock().unwrap().push(command.bytes().to_vec());
    }

    pub async fn stop(self) {
        self.log.is_stopped.store(true, Ordering::Release);
        self.committing.join().unwrap();
        drop(self.log);
        self.node.stop().await;
    }
}

impl MemberLog {
    fn commit(&self) {
        while let Some(batch) = self.parts.member.take_batch() {
            for payload in std::mem::take(&mut *self.elsewhere.lock().unwrap()) {
                self.write(&payload);
            }
            let outcomes = self.write(batch.payload());
            batch.complete(outcomes, None);
        }
    }

    /// Writes an entry to the member's log, and applies it.
    fn write(&self, payload: &[u8]) -> Vec<Outcome> {
        let MemberParts { log, machine, member } = &self.parts;
        let (index, time) = (machine.applied().index.next(), member.clock().stamp());
        let payload = [IoSlice::new(payload)];
        let draft = Draft { space: SpaceId::ZERO, kind: RecordKind::Entry, term: TERM, index, time, payload: &payload };
        let lsn = log.append(&[draft], Durability::Disk, Purpose::Data).unwrap().first;
        member.clock().received(time);
        let record = log.records_from(lsn).unwrap().next().unwrap().unwrap();
        let mut outcomes = Vec::new();
        member.apply(index, Some(&record), true, &mut outcomes).unwrap();
        outcomes
    }
}
