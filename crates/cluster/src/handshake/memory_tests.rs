//! Memory that a node allocates for strangers before it accepts their hello, counted by the allocator.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use thalweg_wire::peer::VERSION;

use super::*;

/// Maximum bytes that a node may allocate for a connection before it accepts the hello, as `docs/formats/peer.md`
/// states.
const BOUND: usize = 4096;

thread_local! {
    /// Number of bytes that this thread has allocated and not freed, and the maximum of this number so far.
    static LIVE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(change: impl Fn(usize) -> usize) {
    // The counter of a thread that is ending may be gone already.
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

/// Lets a node accept a connection that delivers `bytes`. Returns the error with which the handshake ends, and the
/// largest number of bytes that it had allocated at one time.
fn accept_of(own: &Credentials, bytes: &[u8], admits: bool) -> (HandshakeError, usize) {
    // Each thread reuses one runtime, because creating one takes longer than a handshake.
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    }
    let accepting = async {
        let stream = tokio::io::join(bytes, tokio::io::sink());
        let before = LIVE.get().0;
        LIVE.set((before, before));
        let accepting = accept(stream, own, |_| if admits { Ok(None) } else { Err("it was removed".into()) });
        let on_stack = size_of_val(&accepting);
        let Err(error) = accepting.await else { panic!("it is not rejected") };
        (error, LIVE.get().1 - before + on_stack)
    };
    RUNTIME.with(|runtime| runtime.block_on(accepting))
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
        max_version: VERSION,
        run: PeerRun([1; 16]),
        removal: RemovalNotice::default(),
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
    }
    // This verifies the counter itself: after an accepted hello, the node allocates a TLS session.
    let (_, cost) = accept_of(&own, &hello(&node(1, 9, &secret, "n1:1".to_owned())), true);
    assert!(cost > BOUND, "{cost} bytes for a TLS session");
}

/// Xorshift generator; the same seed gives the same numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// Changes bytes at random, cuts off the end, repeats a part, or inserts a byte.
fn mutate(bytes: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..=dice.below(3) {
        let at = dice.below(bytes.len().max(1)).min(bytes.len());
        match dice.below(6) {
            0 => bytes.truncate(at),
            1 => {
                let part = bytes[at..].to_vec();
                bytes.extend_from_slice(&part);
            }
            2 => bytes.insert(at, dice.below(256) as u8),
            3 if bytes.len() >= 4 => {
                let lengths = [0, 1, MAX_HANDSHAKE_BYTES as u32, MAX_HANDSHAKE_BYTES as u32 + 1, u32::MAX, 1 << 20];
                bytes[..4].copy_from_slice(&lengths[dice.below(lengths.len())].to_le_bytes());
            }
            _ if at < bytes.len() => bytes[at] ^= 1 << dice.below(8),
            _ => {}
        }
    }
}

/// Handshakes with random changes never make a node panic. Only a complete hello makes the node use more memory.
/// `THALWEG_TEST_MUTATIONS` sets the number of handshakes (default 20,000), and `THALWEG_TEST_SEED` the seed.
#[test]
fn mutated_handshakes_are_rejected_within_the_bound() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("THALWEG_TEST_SEED").unwrap_or(20);
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let secret = Secret::new(&[5; 32]);
    let node = |node, tls| Credentials {
        cluster: ClusterId(9),
        node: NodeId(node),
        address: format!("n{node}:1"),
        secret: secret.clone(),
        tls,
        max_version: VERSION,
        run: PeerRun([1; 16]),
        removal: RemovalNotice::default(),
    };
    let tls = Some(PeerTls::without_authority().unwrap());
    let (mut mutated, mut whole) = (0, 0);
    for protection in [None, tls] {
        let own = node(2, protection.clone());
        let hello = sealed_hello(&node(1, protection), Channel::Control).unwrap();
        let mut member = hello.clone();
        encode(&Proof { proof: Nonce([3; 32]) }, 0, &mut member).unwrap();
        drop(accept_of(&own, &member, true));
        for _ in 0..number("THALWEG_TEST_MUTATIONS").unwrap_or(20_000) / 2 {
            let mut bytes = member.clone();
            mutate(&mut bytes, &mut dice);
            let (error, cost) = accept_of(&own, &bytes, true);
            let is_whole = bytes.get(HEADER_BYTES..hello.len()) == Some(&hello[HEADER_BYTES..]);
            assert!(is_whole || cost < BOUND, "seed {seed}: {cost} bytes before {error}: {bytes:x?}");
            mutated += 1;
            whole += u64::from(is_whole);
        }
    }
    assert!(whole * 10 > mutated && whole * 10 < mutated * 9, "{whole} of {mutated} had a whole hello");
}
