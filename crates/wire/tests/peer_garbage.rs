//! A hundred thousand damaged frames between nodes: none makes the decoder panic, and none makes it allocate much more
//! than the frame has bytes.
//!
//! This binary has a single test, because the counter covers the whole process.

#![allow(unreachable_pub, reason = "a test program has no interface")]

#[allow(dead_code, reason = "the suite uses the rest")]
#[path = "suite/common.rs"]
mod common;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use common::{Document, Grammar, Random, seeds};
use thalweg_wire::peer::{
    COMPRESS_FROM_BYTES, HEADER_BYTES, Header, MAX_BODY_BYTES, MAX_HANDSHAKE_BYTES, PeerKind, compress, decompress,
};

const FRAMES: usize = 100_000;
/// Frames that are made of one corpus, before another is generated.
const OF_A_CORPUS: usize = 1_000;
/// Bytes that a decoder may allocate for each byte of a body, and for any body. An empty text in a list has two bytes
/// in the body and a few dozen in memory, and a list grows in steps.
const EACH: usize = 256;
const ANY: usize = 4096;
/// Largest factor by which a compressed block grows.
const MAX_FACTOR: usize = 255;

static BYTES: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes unchanged to the system's allocator; counting touches no memory of the allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        BYTES.fetch_add(size, Ordering::Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns a result and the bytes that were allocated for it.
fn counted<T>(run: impl FnOnce() -> T) -> (T, usize) {
    let before = BYTES.load(Ordering::Relaxed);
    let result = run();
    (result, BYTES.load(Ordering::Relaxed) - before)
}

/// Returns a valid frame of each kind.
fn corpus(grammar: &Grammar, layouts: &[String], random: &mut Random) -> Vec<Vec<u8>> {
    let frame = |(layout, kind): (&String, &PeerKind)| {
        let mut frame = vec![0; HEADER_BYTES];
        grammar.put_fields(layout, &mut frame, random);
        let length = (frame.len() - HEADER_BYTES) as u32;
        frame[..4].copy_from_slice(&length.to_le_bytes());
        frame[4] = *kind as u8;
        frame
    };
    layouts.iter().zip(PeerKind::ALL.iter()).map(frame).collect()
}

/// Damages a frame in a few places.
fn damage(frame: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(frame.len() as u64) as usize;
        match random.below(6) {
            0 => frame[at] ^= 1 << random.below(8),
            1 => frame[at] = random.next() as u8,
            // Lengths are such numbers.
            2 => frame.iter_mut().skip(at).take(4).for_each(|byte| *byte = 0xff),
            3 => frame.truncate(at.max(HEADER_BYTES)),
            4 => frame.insert(at, random.next() as u8),
            _ => {
                let end = (at + random.below(64) as usize).min(frame.len());
                let part = frame[at..end].to_vec();
                frame.splice(at..at, part);
            }
        }
    }
}

#[test]
fn damaged_frames_cost_no_more_than_their_bytes() {
    let document = Document::read("peer.md");
    let grammar = Grammar::of(&document);
    let rows = document.rows("| number | frame |");
    let layouts: Vec<_> = rows.into_iter().map(|row| row[2].replace("magic magic", "magic peer magic")).collect();
    assert_eq!(layouts.len(), PeerKind::ALL.len());
    let seed = seeds(1)[0];
    let mut random = Random::new(seed);
    let (mut frames, mut accepted, mut rejected) = (Vec::new(), 0, 0);
    for number in 0..FRAMES {
        if number % OF_A_CORPUS == 0 {
            frames = corpus(&grammar, &layouts, &mut random);
        }
        let mut frame = frames[random.below(frames.len() as u64) as usize].clone();
        damage(&mut frame, &mut random);
        let header: &[u8; HEADER_BYTES] = frame.first_chunk().expect("a frame keeps its header");
        let body = &frame[HEADER_BYTES..];
        let (decoded, bytes) = counted(|| {
            let _ = Header::decode(header, MAX_HANDSHAKE_BYTES);
            let header = Header::decode(header, MAX_BODY_BYTES).ok()?;
            PeerKind::from_code(header.kind)?.decode_and_encode(body).ok()
        });
        assert!(bytes <= EACH * body.len() + ANY, "seed {seed}, frame {number}: {bytes} bytes for {frame:x?}");
        match decoded {
            Some(back) => {
                assert_eq!(back, body, "seed {seed}, frame {number}");
                accepted += 1;
            }
            None => rejected += 1,
        }
        let (long, bytes) = counted(|| decompress(body).is_ok());
        assert!(bytes <= MAX_FACTOR * (body.len() + 1) + ANY, "seed {seed}, frame {number}: {bytes} bytes, {long}");
    }
    assert!(accepted > FRAMES / 100 && rejected > FRAMES / 10, "{accepted} accepted, {rejected} rejected");
    // A block that is damaged, and one that states a length that it does not have.
    let mut frame = vec![0; HEADER_BYTES];
    frame.resize(HEADER_BYTES + COMPRESS_FROM_BYTES, 7);
    compress(&mut frame, 0);
    for _ in 0..1_000 {
        let mut block = frame[HEADER_BYTES..].to_vec();
        damage(&mut block, &mut random);
        let (_, bytes) = counted(|| decompress(&block).is_ok());
        assert!(bytes <= MAX_FACTOR * (block.len() + 1) + ANY, "seed {seed}: {bytes} bytes for {}", block.len());
    }
}
