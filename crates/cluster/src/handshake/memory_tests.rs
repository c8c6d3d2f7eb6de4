//! Memory that strangers cost before a node accepts their hello, counted by the allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use super::*;

/// Bound that `docs/formats/peer.md` states.
const BOUND: usize = 4096;

thread_local! {
    /// Bytes that this thread has allocated and not freed, and the most of them so far.
    static LIVE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(change: impl Fn(usize) -> usize) {
    // A thread that ends has no counter any more.
    let _ = LIVE.try_with(|live| {
        let (now, most) = live.get();
        let now = change(now);
        live.set((now, most.max(now)));
    });
}

// SAFETY: every call goes unchanged to the system's allocator; counting touches no memory of the allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(|now| now.wrapping_add(layout.size()));
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(|now| now.saturating_sub(layout.size()));
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Lets a node accept a connection that delivers these bytes. Returns the error, and the memory that it took.
fn accept_of(own: &Credentials, bytes: &[u8], admits: bool) -> (HandshakeError, usize) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::io::join(bytes, tokio::io::sink());
        let before = LIVE.get().0;
        LIVE.set((before, before));
        let accepting = accept(stream, own, |_| if admits { Ok(None) } else { Err("it was removed".into()) });
        let on_stack = size_of_val(&accepting);
        let error = accepting.await.err().expect("it is rejected");
        (error, LIVE.get().1 - before + on_stack)
    })
}

#[test]
fn strangers_are_rejected_before_they_cost_4_kib() {
    let secret = Secret::new(&[5; 32]);
    let tls = Some(PeerTls::without_authority().unwrap());
    let node = |node, cluster, secret: &Secret, address: String| Credentials {
        cluster: ClusterId(cluster),
        node: NodeId(node),
        address,
        secret: secret.clone(),
        tls: tls.clone(),
    };
    let own = node(2, 9, &secret, "n2:1".to_owned());
    let hello = |credentials: &Credentials| sealed_hello(credentials, Channel::Control).unwrap();
    let longest = "x".repeat(MAX_HANDSHAKE_BYTES - 150);
    let mut version = hello(&node(1, 9, &secret, "n1:1".to_owned()));
    version[HEADER_BYTES + 4..HEADER_BYTES + 8].copy_from_slice(&[9, 0, 9, 0]);
    secret.seal(&mut version[HEADER_BYTES..]);
    let mut oversized = version.clone();
    oversized[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let of_length = |credentials: &Credentials| {
        let frame = hello(credentials);
        assert!(frame.len() > MAX_HANDSHAKE_BYTES - 100, "{} bytes", frame.len());
        frame
    };
    let strangers = [
        ("cluster", of_length(&node(1, 8, &secret, longest.clone())), true),
        ("version", version, true),
        ("secret", of_length(&node(1, 9, &Secret::new(&[6; 32]), longest.clone())), true),
        ("removed", of_length(&node(1, 9, &secret, longest)), false),
        ("id of this node", hello(&own), true),
        ("TLS", hello(&Credentials { tls: None, ..node(1, 9, &secret, "n1:1".to_owned()) }), true),
        ("handshake", oversized, true),
        ("handshake", b"GET / HTTP/1.1\r\nHost: db1\r\n\r\n".to_vec(), true),
        ("handshake", vec![0x16; 2000], true),
        ("handshake", Vec::new(), true),
    ];
    // The first use of the crypto library initializes it.
    strangers.iter().for_each(|(_, bytes, admits)| drop(accept_of(&own, bytes, *admits)));
    for (reason, bytes, admits) in strangers {
        let (error, cost) = accept_of(&own, &bytes, admits);
        assert!(error.to_string().contains(reason), "{reason:?} is not in {error}");
        assert!(cost < BOUND, "{cost} bytes before {error}");
        println!("{cost} bytes: {error}");
    }
    // The test counts: a hello that is accepted leads to the memory of a TLS session.
    let (_, cost) = accept_of(&own, &hello(&node(1, 9, &secret, "n1:1".to_owned())), true);
    assert!(cost > BOUND, "{cost} bytes for a TLS session");
    println!("{cost} bytes for a hello that is accepted, and nothing behind it");
}
