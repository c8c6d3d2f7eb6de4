//! Watches of the cluster against a scripted server, over lost connections.

use thalweg_client::{ClusterChange, ClusterUpdate, ClusterWatch, EventPosition, EventsFrom, Window};
use thalweg_types::NodeId;
use thalweg_wire::{self as wire, ClientFrame, ClusterEvents, List, Permit, WatchCluster, WatchingCluster};

use crate::peer::{Peer, connected};

/// Receives the request that begins a watch.
async fn asked(peer: &mut Peer) -> (u32, WatchCluster) {
    peer.request(|envelope| match &envelope.frame {
        ClientFrame::WatchCluster(watch) => watch.clone(),
        other => panic!("{other:?}"),
    })
    .await
}

/// Sends events about node 2, given by their numbers and names.
async fn send(peer: &mut Peer, id: u32, missed: u64, events: &[(u64, &str)]) {
    let event = |&(sequence, event)| wire::ClusterEvent {
        sequence,
        unix_micros: 1000 + sequence,
        node: NodeId(2),
        term: if event == "leader" { 9 } else { 0 },
        event,
        name: "n2",
    };
    let events: Vec<_> = events.iter().map(event).collect();
    peer.send(id, &ClusterEvents { missed, events: List::Items(&events) }).await;
}

async fn next(watch: &mut ClusterWatch) -> ClusterUpdate {
    watch.next().await.unwrap().expect("the watch goes on")
}

/// Returns the number and the change of the next item, which is an event.
async fn event(watch: &mut ClusterWatch) -> (u64, ClusterChange) {
    match next(watch).await {
        ClusterUpdate::Event(event) => {
            assert_eq!((event.unix_micros, event.name.as_deref()), (1000 + event.sequence, Some("n2")));
            (event.sequence, event.change)
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_watch_goes_on_after_its_last_event_and_says_where_events_may_be_missing() {
    let (server, client, mut peer) = connected().await;
    let begun = tokio::spawn(async move { client.watch_cluster(EventsFrom::Next).await });
    let (id, request) = asked(&mut peer).await;
    assert_eq!((request.after, request.run), (None, None));
    peer.send(id, &WatchingCluster { after: 4, run: 7, known: true }).await;
    let mut watch = begun.await.unwrap().unwrap();
    assert_eq!(watch.position(), EventPosition { run: 7, after: 4 });
    send(&mut peer, id, 0, &[(5, "suspect"), (6, "down"), (7, "rebalanced")]).await;
    assert_eq!(event(&mut watch).await, (5, ClusterChange::Suspect(2)));
    assert_eq!(watch.position(), EventPosition { run: 7, after: 5 }, "of the events that were returned");
    assert_eq!(event(&mut watch).await, (6, ClusterChange::Down(2)));
    let newer = ClusterChange::Other { event: "rebalanced".to_owned(), node: Some(2) };
    assert_eq!(event(&mut watch).await, (7, newer));

    // The node still has the run, and does not keep all events.
    drop(peer);
    let reading = tokio::spawn(async move { (next(&mut watch).await, event(&mut watch).await, watch) });
    let mut peer = server.accept().await;
    let (id, request) = asked(&mut peer).await;
    assert_eq!((request.after, request.run), (Some(7), Some(7)));
    peer.send(id, &WatchingCluster { after: 7, run: 7, known: true }).await;
    send(&mut peer, id, 3, &[(11, "alive")]).await;
    let (missed, after, mut watch) = reading.await.unwrap();
    assert_eq!((missed, after), (ClusterUpdate::Missed(3), (11, ClusterChange::Alive(2))));

    // Another node, or another run. The gap is reported before any event arrives.
    drop(peer);
    let reading = tokio::spawn(async move { (next(&mut watch).await, watch) });
    let mut peer = server.accept().await;
    let (id, request) = asked(&mut peer).await;
    assert_eq!((request.after, request.run), (Some(11), Some(7)));
    peer.send(id, &WatchingCluster { after: 0, run: 8, known: false }).await;
    let (gap, mut watch) = reading.await.unwrap();
    assert_eq!((gap, watch.position()), (ClusterUpdate::Gap, EventPosition { run: 8, after: 0 }));
    send(&mut peer, id, 0, &[(1, "leader")]).await;
    assert_eq!(event(&mut watch).await, (1, ClusterChange::Leader { leader: Some(2), term: 9 }));
    assert_eq!(watch.position(), EventPosition { run: 8, after: 1 });
}

#[tokio::test]
async fn a_later_watch_continues_at_a_position_and_gives_credit_back() {
    let (_server, client, mut peer) = connected().await;
    let position = EventPosition { run: 7, after: 40 };
    let window = Window { messages: 2, bytes: 1 << 20 };
    let begun = tokio::spawn(async move { client.watch_cluster_with(EventsFrom::Position(position), window).await });
    let (id, request) = asked(&mut peer).await;
    let permit = Permit { messages: 2, bytes: 1 << 20 };
    assert_eq!(request, WatchCluster { after: Some(40), run: Some(7), permit });
    peer.send(id, &WatchingCluster { after: 40, run: 7, known: true }).await;
    let mut watch = begun.await.unwrap().unwrap();
    send(&mut peer, id, 0, &[(41, "joined"), (42, "promoted")]).await;
    assert_eq!(event(&mut watch).await, (41, ClusterChange::Joined(2)));
    let reading = tokio::spawn(async move { (event(&mut watch).await, event(&mut watch).await) });
    let (of, credit) = peer
        .request(|envelope| match &envelope.frame {
            ClientFrame::Credit(credit) => credit.clone(),
            other => panic!("{other:?}"),
        })
        .await;
    let texts = "joined".len() + "promoted".len() + 2 * "n2".len();
    assert_eq!((of, credit.messages, credit.bytes), (id, 4, (1 << 20) + texts as u64));
    send(&mut peer, id, 0, &[(43, "removed")]).await;
    assert_eq!(reading.await.unwrap(), ((42, ClusterChange::Promoted(2)), (43, ClusterChange::Removed(2))));
}
