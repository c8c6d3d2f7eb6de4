use std::future::ready;

use futures_util::stream;
use thalweg_raft::{Commands, RaftLogId};
use thalweg_types::{Index, SpaceTime, limits::MAX_PIPELINED_BYTES};
use thalweg_wire::peer::{Append, AppendResult, PeerFrame, PeerKind};
use tokio::sync::watch;

use super::*;
use crate::{
    detector::DetectorOptions,
    frames::{Frame, encoded},
    testing::{SERVER, Server, credentials, run},
};

/// Time limit of openraft for an append in these tests: its heartbeat interval.
const HEARTBEAT: Duration = Duration::from_millis(80);

fn id(index: u64) -> RaftLogId {
    thalweg_raft::raft_log_id(thalweg_state::membership::LogId { term: Term(1), index: Index(index) })
}

/// Returns an append with one entry whose commands have this size in bytes, or without entries if `None`.
fn request(index: u64, bytes: Option<usize>) -> AppendEntriesRequest<Types> {
    let entry = |bytes| RaftEntry {
        log_id: id(index),
        payload: EntryPayload::Normal(Commands { time: SpaceTime(1), bytes: vec![7; bytes].into() }),
    };
    AppendEntriesRequest {
        vote: raft_vote(&thalweg_wire::peer::PeerVote { term: Term(1), node: NodeId(1), committed: true }),
        prev_log_id: Some(id(index - 1)),
        leader_commit: None,
        entries: bytes.map(entry).into_iter().collect(),
    }
}

fn network(server: &Server) -> PeerNetwork {
    let hearing = HearingRecord::new(Duration::from_secs(1), DetectorOptions::DEFAULTS);
    let network = Network::new(credentials(NodeId(1), 5), hearing.clone(), LinkCounters::default());
    let links = network.peer(SERVER, &server.address.to_string());
    PeerNetwork { links, network, hearing, node: SERVER }
}

fn success(request: &Frame) -> Vec<u8> {
    Append::decode_body(&request.body).unwrap();
    encoded(&Appended { result: AppendResult::Success, last: None, vote: None }, request.id).unwrap()
}

async fn results(network: &mut PeerNetwork, requests: Vec<AppendEntriesRequest<Types>>) -> Vec<Option<u64>> {
    let results = network.stream_append(stream::iter(requests), RPCOption::new(HEARTBEAT)).await.unwrap();
    results.map(|result| result.unwrap().unwrap().map(|id| id.index)).collect().await
}

/// A follower that was restored from an old copy of its directory is noticed. An entry that the follower never
/// acknowledged is no loss.
#[test]
fn an_entry_that_was_acknowledged_and_is_missing_is_noticed() {
    let acknowledged = Acknowledged::default();
    let note = |result| acknowledged.note(Term(1), &result);
    let conflict = |index| Err(StreamAppendError::Conflict(id(index)));
    assert_eq!(note(conflict(10)), None, "nothing was acknowledged to this leader");
    assert_eq!(note(Ok(Some(id(10)))), None);
    assert_eq!(note(Ok(Some(id(8)))), None, "a heartbeat states less");
    assert_eq!(note(conflict(11)), None, "it lacks only what comes later");
    assert_eq!(note(conflict(10)), Some(id(10)));
    assert_eq!(note(conflict(5)), None, "the search for what it has is no further loss");
    assert_eq!(note(Ok(Some(id(12)))), None);
    assert_eq!(note(conflict(3)), Some(id(12)));
}

/// openraft has separate networks for replication and for heartbeats, and both notice the loss.
#[test]
fn a_loss_of_acknowledged_entries_is_noticed_once_in_a_term() {
    run(async {
        let server = Server::start(|_, request| ready(success(&request)).boxed_local()).await;
        let replication = network(&server);
        let info = NodeInfo::at(server.address.to_string());
        let heartbeats = replication.network.clone().new_client(SERVER.0, &info).await;
        let note = |network: &PeerNetwork, term, result| network.links.acknowledged.note(Term(term), &result);
        let conflict = |index| Err(StreamAppendError::Conflict(id(index)));
        assert_eq!(note(&replication, 1, Ok(Some(id(10)))), None);
        assert_eq!(note(&heartbeats, 1, Ok(Some(id(9)))), None);
        assert_eq!(note(&replication, 1, conflict(9)), Some(id(10)));
        assert_eq!(note(&heartbeats, 1, conflict(9)), None, "it was noticed");
        assert_eq!(note(&replication, 1, Ok(Some(id(10)))), None);
        assert_eq!(note(&replication, 3, conflict(9)), None, "another leader may have truncated the follower");
        assert_eq!(note(&replication, 3, Ok(Some(id(11)))), None);
        assert_eq!(note(&heartbeats, 1, conflict(9)), None, "a late result of an earlier leadership");
        assert_eq!(note(&heartbeats, 3, conflict(11)), Some(id(11)));
    });
}

#[test]
fn heartbeats_travel_beside_entries() {
    run(async {
        let server = Server::start(|_, request| ready(success(&request)).boxed_local()).await;
        let mut network = network(&server);
        // The connections are established first, because a heartbeat does not wait long enough for this.
        let soon = Instant::now() + CHUNK_LIMIT;
        network.links.control.connection(soon).await.unwrap();
        network.links.appends.connection(soon).await.unwrap();
        assert_eq!(results(&mut network, vec![request(5, None)]).await, [Some(4)]);
        let requests = vec![request(5, None), request(5, Some(1)), request(6, None)];
        assert_eq!(results(&mut network, requests).await, [Some(4), Some(5), Some(5)]);
        let channels: Vec<_> = server.service.seen.borrow().iter().map(|(channel, _)| *channel).collect();
        // Once entries are sent, only one connection keeps the order.
        assert_eq!(channels[0], Channel::Control);
        assert_eq!(channels.iter().filter(|channel| **channel == Channel::Control).count(), 2);
        assert_eq!(channels.len(), 4);
    });
}

#[test]
fn a_heartbeat_of_an_idle_leader_is_short_and_others_are_appends() {
    run(async {
        let server = Server::start(|_, request| {
            let reply = Appended { result: AppendResult::Success, last: None, vote: None };
            ready(encoded(&reply, request.id).unwrap()).boxed_local()
        })
        .await;
        let mut network = network(&server);
        network.links.control.connection(Instant::now() + CHUNK_LIMIT).await.unwrap();
        let idle = AppendEntriesRequest { leader_commit: Some(id(4)), ..request(5, None) };
        let behind = AppendEntriesRequest { leader_commit: Some(id(3)), ..request(5, None) };
        assert_eq!(results(&mut network, vec![idle.clone()]).await, [Some(4)]);
        assert_eq!(results(&mut network, vec![behind]).await, [Some(4)]);
        let kinds: Vec<_> = server.service.seen.borrow().iter().map(|(_, kind)| *kind).collect();
        assert_eq!(kinds, [PeerKind::Heartbeat, PeerKind::Append]);
        assert_eq!(heartbeat(&idle, NodeId(2), 7), None, "the vote of another node");
        let sent = heartbeat(&idle, NodeId(1), 7).unwrap();
        let back = crate::convert::heartbeat_request(&sent, NodeId(1));
        assert_eq!(
            (back.vote, back.prev_log_id, back.leader_commit),
            (idle.vote, idle.prev_log_id, idle.leader_commit)
        );
    });
}

/// A follower that does not reply until `open` is true, and then replies to the last append first.
async fn withholding(open: watch::Receiver<bool>) -> Server {
    let number = Rc::new(Cell::new(0_u32));
    Server::start(move |_, request| {
        let mut open = open.clone();
        number.set(number.get() + 1);
        let number = number.get();
        async move {
            let _ = open.wait_for(|open| *open).await;
            // Later requests pass through the task queue faster, so their replies come first.
            for _ in 0..(10 - number.min(10)) * 10 {
                tokio::task::yield_now().await;
            }
            success(&request)
        }
        .boxed_local()
    })
    .await
}

#[test]
fn appends_are_pipelined_and_a_slow_disk_does_not_end_the_stream() {
    run(async {
        let (open, opened) = watch::channel(false);
        let server = withholding(opened).await;
        let mut network = network(&server);
        network.links.appends.connection(Instant::now() + CHUNK_LIMIT).await.unwrap();
        let requests = (1..=4).map(|index| request(index, Some(10))).collect();
        let opening = async {
            // All appends arrive before the first one is answered.
            while server.service.seen.borrow().len() < 4 {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(HEARTBEAT * 3).await;
            open.send(true).unwrap();
        };
        let (results, ()) = tokio::join!(results(&mut network, requests), opening);
        assert_eq!(results, [Some(1), Some(2), Some(3), Some(4)], "in the order of the requests");
        let seen = server.service.seen.borrow();
        assert!(seen.iter().all(|seen| *seen == (Channel::Appends, PeerKind::Append)) && seen.len() == 4, "{seen:?}");
    });
}

#[test]
fn appends_on_their_way_are_bounded_in_bytes() {
    run(async {
        let (open, opened) = watch::channel(false);
        let server = withholding(opened).await;
        let mut network = network(&server);
        network.links.appends.connection(Instant::now() + CHUNK_LIMIT).await.unwrap();
        let large = MAX_PIPELINED_BYTES / 2 - 1;
        let requests = (1..=4).map(|index| request(index, Some(large))).collect();
        let opening = async {
            while server.service.seen.borrow().len() < 2 {
                tokio::task::yield_now().await;
            }
            // In this time a third append would arrive.
            for _ in 0..10_000 {
                tokio::task::yield_now().await;
            }
            assert_eq!(server.service.seen.borrow().len(), 2);
            open.send(true).unwrap();
        };
        let (results, ()) = tokio::join!(results(&mut network, requests), opening);
        assert_eq!(results, [Some(1), Some(2), Some(3), Some(4)]);
    });
}

#[test]
fn a_follower_that_lacks_an_entry_ends_the_stream() {
    run(async {
        let server = Server::start(|_, request| {
            let append = Append::decode_body(&request.body).unwrap();
            let conflicts = append.previous.is_some_and(|previous| previous.index >= Index(2));
            let result = if conflicts { AppendResult::Conflict } else { AppendResult::Success };
            let reply = Appended { result, last: None, vote: None };
            ready(encoded(&reply, request.id).unwrap()).boxed_local()
        })
        .await;
        let mut network = network(&server);
        network.links.appends.connection(Instant::now() + CHUNK_LIMIT).await.unwrap();
        let requests: Vec<_> = (1..=5).map(|index| request(index, Some(10))).collect();
        let results = network.stream_append(stream::iter(requests), RPCOption::new(HEARTBEAT)).await.unwrap();
        let results: Vec<_> = results.map(Result::unwrap).collect().await;
        assert_eq!(results.len(), 3);
        assert_eq!(results[..2], [Ok(Some(id(1))), Ok(Some(id(2)))]);
        assert!(matches!(&results[2], Err(openraft::raft::StreamAppendError::Conflict(at)) if *at == id(2)));
    });
}

#[test]
fn a_node_without_an_address_in_the_membership_is_dialled_at_the_one_with_which_it_connects() {
    run(async {
        let server = Server::start(|_, request| ready(success(&request)).boxed_local()).await;
        let network = network(&server).network;
        network.keep(&[]);
        let links = network.peer(SERVER, "");
        network.introduce(SERVER, &server.address.to_string());
        assert!(links.control.connection(Instant::now() + CHUNK_LIMIT).await.is_ok());
        network.introduce(SERVER, "127.0.0.1:1");
        assert!(links.appends.connection(Instant::now() + CHUNK_LIMIT).await.is_ok(), "a known address stays");
    });
}

/// All nodes of a cluster can get new addresses while they are down. Then no leader can be elected with the addresses
/// in the membership, and without a leader no membership with the new addresses can be agreed on.
#[test]
fn a_node_that_cannot_be_dialled_is_dialled_at_the_address_with_which_it_connects() {
    run(async {
        let server = Server::start(|_, request| ready(success(&request)).boxed_local()).await;
        let network = network(&server).network;
        network.keep(&[]);
        let (former, soon) = ("127.0.0.1:1", || Instant::now() + CHUNK_LIMIT);
        assert!(network.peer(SERVER, former).control.connection(soon()).await.is_err());
        network.introduce(SERVER, &server.address.to_string());
        let links = network.peer(SERVER, former);
        assert!(links.control.connection(soon()).await.is_ok(), "the address in the membership is the same as before");
        assert!(links.appends.connection(soon()).await.is_ok());
        let later = "127.0.0.1:2";
        assert_eq!(network.peer(SERVER, later).control.address(), later, "the membership has changed");
    });
}

#[test]
fn entries_are_old_for_a_follower_that_lacks_many_committed_ones() {
    run(async {
        let server = Server::start(|_, request| ready(success(&request)).boxed_local()).await;
        let network = network(&server).network;
        let age = |committed, bytes| {
            let append = AppendEntriesRequest { leader_commit: Some(id(committed)), ..request(5, bytes) };
            network.age_of(&append)
        };
        assert_eq!([age(4, Some(1)), age(5, Some(1)), age(500, None)], [EntryAge::New; 3]);
        assert_eq!(age(500, Some(1)), EntryAge::Old, "also if this node has them in memory");
    });
}

#[test]
fn old_entries_are_encoded_elsewhere_to_the_same_frame() {
    run(async {
        let hearing = HearingRecord::new(Duration::from_secs(1), DetectorOptions::DEFAULTS);
        let network = Network::new(credentials(NodeId(1), 5), hearing, LinkCounters::default());
        let append = request(5, Some(YIELD_FROM_BYTES));
        let parts = || AppendParts::of(&append, 3, SpaceTime(0)).unwrap();
        let here = network.encode(parts(), EntryAge::New, 7).await.unwrap();
        let _ = network.0.old_entries.set(OldEntryThreads::start().unwrap());
        assert_eq!(network.encode(parts(), EntryAge::Old, 7).await.unwrap(), here);
    });
}
