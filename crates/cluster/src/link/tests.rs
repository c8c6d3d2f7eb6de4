use std::future::{pending, ready};

use futures_util::FutureExt;
use thalweg_types::codec::RemainingBytes;
use thalweg_wire::peer::{ChunkStored, Ping, Pong, Propose, Proposed, SnapshotChunk};
use tokio::{net::TcpListener, time::sleep};

use super::*;
use crate::{
    handshake::accept,
    testing::{SERVER, Server, credentials, pong, run},
};

const LONG: Duration = Duration::from_secs(60);

fn after(time: Duration) -> Instant {
    Instant::now() + time
}

async fn ping(link: &Link, number: u64, limit: Duration) -> Result<Pong, CallError> {
    link.call::<_, Owned, _>(&Ping { number, heard: 0 }, after(limit)).await
}

async fn propose(link: &Link, limit: Duration) -> Result<Proposed, CallError> {
    let payload = RemainingBytes(b"commands");
    link.call::<_, Owned, _>(&Propose { timeout_millis: 1, reclaims: false, request: "", payload }, after(limit)).await
}

#[test]
fn dialling_goes_on_when_its_caller_has_no_more_time() {
    run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepted = Rc::new(Cell::new(0));
        let (open, opened) = oneshot::channel::<()>();
        let count = Rc::clone(&accepted);
        spawn_local(async move {
            let mut opened = Some(opened);
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                count.set(count.get() + 1);
                if let Some(opened) = opened.take() {
                    opened.await.unwrap();
                }
                accept(&mut stream, &credentials(SERVER, 5), |_| Ok(None)).await.unwrap();
                spawn_local(async move {
                    let _stream = stream;
                    pending::<()>().await;
                });
            }
        });
        let link = Link::new(credentials(NodeId(1), 5), SERVER, address, Channel::Appends, Path::default());
        for _ in 0..3 {
            let connected = link.connection(after(Duration::from_millis(10))).await;
            assert!(matches!(connected, Err(CallError::Unreachable { .. })));
        }
        open.send(()).unwrap();
        link.connection(after(LONG)).await.unwrap();
        assert_eq!(accepted.get(), 1, "the same attempt goes on");
    });
}

#[test]
fn a_silent_node_loses_all_its_connections_and_is_dialled_anew() {
    run(async {
        let is_silent = Rc::new(Cell::new(true));
        let silent = Rc::clone(&is_silent);
        let server = Server::start(move |channel, request| match channel {
            Channel::Control if !silent.get() => ready(pong(&request)).boxed_local(),
            _ => pending().boxed_local(),
        })
        .await;
        let [control, proposals] = server.links([Channel::Control, Channel::Proposals]);
        control.connection(after(LONG)).await.unwrap();
        proposals.connection(after(LONG)).await.unwrap();
        tokio::time::pause();
        let begun = Instant::now();
        let proposing = propose(&proposals, LONG);
        let pinging = ping(&control, 1, LONG);
        let (proposed, pinged) = tokio::join!(proposing, pinging);
        assert!(matches!(&proposed, Err(CallError::Lost { .. })), "{proposed:?}");
        assert!(matches!(&pinged, Err(CallError::Lost { .. })), "{pinged:?}");
        let silence = begun.elapsed();
        assert!(silence >= TICK * (SILENT_TICKS - 1) && silence <= TICK * (SILENT_TICKS + 2), "{silence:?}");
        tokio::time::resume();
        is_silent.set(false);
        assert_eq!(ping(&control, 2, LONG).await.unwrap().number, 2);
    });
}

#[test]
fn a_node_that_answers_pings_may_take_its_time_for_a_proposal() {
    run(async {
        let server = Server::start(|channel, request| match channel {
            Channel::Control => ready(pong(&request)).boxed_local(),
            _ => pending().boxed_local(),
        })
        .await;
        let [control, proposals] = server.links([Channel::Control, Channel::Proposals]);
        control.connection(after(LONG)).await.unwrap();
        let connection = proposals.connection(after(LONG)).await.unwrap();
        // This test uses real time, because the answers come over sockets: a little more than the time of a silence.
        let pinging = async {
            for number in 1.. {
                ping(&control, number, LONG).await.unwrap();
                sleep(TICK / 4).await;
            }
        };
        let proposing = propose(&proposals, TICK * (SILENT_TICKS + 2));
        let proposed = tokio::select! {
            proposed = proposing => proposed,
            () = pinging => unreachable!("it never ends"),
        };
        let Err(CallError::Lost { reason, .. }) = proposed else { panic!("{proposed:?}") };
        assert_eq!(reason, "the time is over");
        assert!(!connection.has_ended.get());
    });
}

#[test]
fn pings_and_proposals_pass_a_snapshot_that_nobody_reads() {
    run(async {
        let server = Server::start(|channel, request| match channel {
            Channel::Control => ready(pong(&request)).boxed_local(),
            Channel::Proposals => {
                let proposed = Proposed { index: thalweg_types::Index(1) };
                ready(crate::frames::encoded(&proposed, request.id).unwrap()).boxed_local()
            }
            _ => pending().boxed_local(),
        })
        .await;
        let [control, proposals, snapshots] = server.links([Channel::Control, Channel::Proposals, Channel::Snapshots]);
        // Bytes that do not compress fill the buffers of both nodes and of the system, until the sender waits.
        let noise: Vec<u8> =
            (0..4 * 1024 * 1024_u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8).collect();
        let mut waits = Vec::new();
        for number in 0.. {
            let (snapshots, noise) = (snapshots.clone(), noise.clone());
            let mut sending = Box::pin(async move {
                let connection = snapshots.connection(after(LONG)).await.unwrap();
                let chunk = SnapshotChunk { snapshot: 1, number, bytes: RemainingBytes(&noise) };
                connection.send(&chunk).await
            });
            // The service takes 256 requests and then stops reading. The first chunks still fit, however slowly the
            // machine sends them.
            let patience = if number < 4 { LONG } else { Duration::from_secs(2) };
            match tokio::time::timeout(patience, &mut sending).await {
                Ok(pending) => waits.push(pending.unwrap()),
                Err(_) => break,
            }
        }
        assert!(waits.len() >= 4, "{} chunks", waits.len());
        for number in 1..=10 {
            assert_eq!(ping(&control, number, LONG).await.unwrap().number, number);
            propose(&proposals, LONG).await.unwrap();
        }
        let first = waits.swap_remove(0).wait::<Owned, ChunkStored>(after(Duration::from_millis(1))).await;
        assert!(matches!(first, Err(CallError::Lost { .. })), "the snapshot is still waiting: {first:?}");
    });
}

#[test]
fn a_node_that_cannot_be_connected_to_is_warned_of_once_a_minute() {
    let (warnings, begun) = (DialWarnings::default(), Instant::now());
    let warned = |address: &str, seconds| warnings.may_warn(address, begun + Duration::from_secs(seconds));
    assert!(warned("a:1", 0) && !warned("a:1", 0) && warned("b:1", 1));
    assert!(!warned("a:1", 59) && warned("a:1", 60) && !warned("a:1", 119));
    (0..3 * MAX_WARNED as u64).for_each(|port| assert!(warned(&format!("c:{port}"), 200 + port)));
    assert!(warnings.0.borrow().len() <= 2 * MAX_WARNED);
}
