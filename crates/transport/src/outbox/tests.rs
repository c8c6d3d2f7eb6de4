use super::*;

/// A small random generator for tests; its seed replays a failing run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

fn slices(outbox: &Outbox) -> Vec<Vec<u8>> {
    let mut into = [IoSlice::new(&[]); 64];
    let used = outbox.chunks_vectored(&mut into);
    into[..used].iter().map(|slice| slice.to_vec()).collect()
}

#[test]
fn a_burst_of_small_frames_is_one_piece() {
    let mut outbox = Outbox::new();
    for _ in 0..100 {
        outbox.buffer().extend_from_slice(b"small");
        outbox.share(Bytes::from_static(b"shared, and small too"));
    }
    assert_eq!(slices(&outbox).len(), 1);
}

#[test]
fn large_shared_bytes_are_never_copied() {
    let bytes = Bytes::from(vec![7; SHARED_FROM_BYTES]);
    let mut outbox = Outbox::new();
    outbox.buffer().push(1);
    outbox.share(bytes.clone());
    outbox.buffer().push(2);
    let mut into = [IoSlice::new(&[]); 8];
    assert_eq!(outbox.chunks_vectored(&mut into), 3);
    assert_eq!(into[1].as_ptr(), bytes.as_ptr());
    outbox.advance(1 + 10);
    assert_eq!(outbox.chunk().as_ptr(), bytes[10..].as_ptr());
}

#[test]
fn what_was_sent_is_forgotten_although_the_outbox_is_never_empty() {
    let mut outbox = Outbox::new();
    outbox.buffer().extend_from_slice(&[0; 1000]);
    for _ in 0..10_000 {
        outbox.buffer().extend_from_slice(&[0; 1000]);
        outbox.advance(1000);
    }
    assert_eq!(outbox.len(), 1000);
    assert!(outbox.buffer.capacity() <= 4 * IDLE_BYTES, "{} bytes are kept", outbox.buffer.capacity());
}

#[test]
fn an_empty_outbox_gives_back_what_a_burst_took() {
    let mut outbox = Outbox::new();
    outbox.buffer().resize(10 * IDLE_BYTES, 0);
    outbox.advance(10 * IDLE_BYTES);
    assert!(outbox.is_empty() && outbox.buffer.capacity() <= IDLE_BYTES);
    outbox.shrink();
    assert_eq!(outbox.buffer.capacity(), 0);
}

#[test]
#[should_panic(expected = "cannot advance")]
fn advancing_past_the_end_is_a_bug() {
    Outbox::new().advance(1);
}

#[test]
fn bytes_leave_in_the_order_in_which_they_came_however_they_are_cut() {
    let seed = 0x5eed_0001;
    eprintln!("seed {seed:#x}");
    let mut dice = Dice(seed);
    let (mut outbox, mut expected, mut sent) = (Outbox::new(), Vec::new(), Vec::new());
    let mut next = 0_u8;
    for _ in 0..20_000 {
        let len = if dice.below(8) == 0 { dice.below(9000) } else { dice.below(200) };
        let bytes: Vec<u8> = (0..len)
            .map(|_| {
                next = next.wrapping_add(1);
                next
            })
            .collect();
        expected.extend_from_slice(&bytes);
        if dice.below(2) == 0 {
            outbox.buffer().extend_from_slice(&bytes);
        } else {
            outbox.share(bytes.into());
        }
        if dice.below(3) == 0 {
            let pieces: Vec<u8> = slices(&outbox).concat();
            let count = dice.below(pieces.len() + 1);
            sent.extend_from_slice(&pieces[..count]);
            outbox.advance(count);
        }
        assert_eq!(outbox.len(), expected.len() - sent.len());
    }
    while outbox.has_remaining() {
        let chunk = outbox.chunk().to_vec();
        sent.extend_from_slice(&chunk);
        outbox.advance(chunk.len());
    }
    assert!(sent == expected, "the order was changed");
}

#[test]
fn pieces_are_the_front_in_its_order_and_share_what_is_shared() {
    let seed = 0x5eed_0002;
    eprintln!("seed {seed:#x}");
    let mut dice = Dice(seed);
    for _ in 0..2_000 {
        let mut outbox = Outbox::new();
        let mut expected = Vec::new();
        let largest = if dice.below(4) == 0 { OWN_FROM_BYTES } else { 2 * SHARED_FROM_BYTES };
        for at in 0..dice.below(20) {
            let bytes = vec![at as u8; 1 + dice.below(largest)];
            expected.extend_from_slice(&bytes);
            if dice.below(2) == 0 {
                outbox.buffer().extend_from_slice(&bytes);
            } else {
                outbox.share(bytes.into());
            }
        }
        let cut = dice.below(expected.len() + 1);
        outbox.advance(cut);
        let (max_shared, max_gathered) = (1 + dice.below(6), 1 + dice.below(5000));
        outbox.share_large_buffer();
        assert_eq!(outbox.len(), expected.len() - cut);
        let mut pieces = Vec::new();
        outbox.pieces(&mut pieces, max_shared, max_gathered);
        assert_eq!(pieces.is_empty(), outbox.is_empty());
        assert!(pieces.len() <= 2 * max_shared + 1 && pieces.iter().all(|piece| !piece.is_empty()));
        assert!(expected[cut..].starts_with(&pieces.concat()));
    }
    let bytes = Bytes::from(vec![1; SHARED_FROM_BYTES]);
    let mut outbox = Outbox::new();
    outbox.share(bytes.clone());
    let mut pieces = Vec::new();
    outbox.pieces(&mut pieces, 1, 0);
    assert_eq!(pieces[0].as_ptr(), bytes.as_ptr());
}

#[test]
fn a_large_buffer_is_handed_on_without_a_copy_and_a_small_one_stays() {
    let mut outbox = Outbox::new();
    outbox.buffer().resize(OWN_FROM_BYTES, 1);
    outbox.advance(1);
    outbox.share_large_buffer();
    assert_eq!(outbox.buffer.len(), OWN_FROM_BYTES, "one byte too few");
    outbox.buffer().push(2);
    outbox.share(Bytes::from(vec![3; SHARED_FROM_BYTES]));
    outbox.buffer().push(4);
    let composed = outbox.buffer.as_ptr();
    outbox.share_large_buffer();
    let mut pieces = Vec::new();
    outbox.pieces(&mut pieces, 8, 0);
    assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), [OWN_FROM_BYTES, SHARED_FROM_BYTES, 1]);
    assert_eq!(pieces[0].as_ptr(), composed.wrapping_add(1));
    assert!(outbox.buffer.is_empty());
}
