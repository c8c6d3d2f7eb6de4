//! The most frequent frames allocate nothing per message, and nothing at all once the buffers are warm.
//!
//! This binary has a single test, because the counter covers the whole process.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use thalweg_types::{StreamId, command::encode_append, record::RecordBatch};
use thalweg_wire::{
    Batch, BatchWriter, CacheExpect, CacheGet, CachePut, CacheTtl, CacheValue, Checksum, ClientCommand, ClientFrame,
    Decoder, Frame, Level, RemainingBytes, ServerFrame, batch::put_deliver_prefix, put_write,
};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call goes unchanged to the system's allocator; counting touches no memory of the allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's guarantees are passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns the allocations of the second run. The first run warms the buffers.
fn allocations(mut run: impl FnMut()) -> usize {
    run();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    run();
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

fn fill(writer: &mut BatchWriter) {
    writer.clear();
    (0..64).for_each(|_| writer.push_payload(&[7; 128]).unwrap());
}

#[test]
fn hot_frames_allocate_nothing() {
    let mut writer = BatchWriter::new(b"a.b", b"").unwrap();
    fill(&mut writer);
    let shared = writer.clone().into_shared(Checksum::Crc32c).unwrap();
    let mut out = Vec::new();
    let encode = allocations(|| {
        fill(&mut writer);
        let batch = writer.encoded(Checksum::Crc32c).unwrap();
        out.clear();
        put_deliver_prefix(&mut out, [1, 2, 3].into_iter(), batch.len()).unwrap();
    });
    assert_eq!(encode, 0, "a batch encoded into a warm buffer");

    out.extend_from_slice(&shared.bytes);
    let mut decoder = Decoder::new();
    decoder.set_max_bytes(1 << 20);
    let borrowed = allocations(|| {
        // The decoder fills its buffer to the end and then starts a new one. Several frames make sure that every run
        // includes that.
        for _ in 0..20 {
            decoder.feed(&out);
            let raw = decoder.next_borrowed().unwrap().unwrap();
            let ServerFrame::Deliver(deliver) = ServerFrame::decode(raw).unwrap().frame else { panic!("no deliver") };
            let batch = Batch::decode(deliver.batch.0).unwrap();
            batch.check_crc().unwrap();
            assert_eq!(batch.messages().filter(|message| message.as_ref().unwrap().payload == [7; 128]).count(), 64);
        }
    });
    assert_eq!(borrowed, 0, "a batch decoded and read");

    let mut decoder = Decoder::new();
    decoder.set_max_bytes(1 << 20);
    let kept = allocations(|| {
        decoder.feed(&out);
        let frame = decoder.next_shared().unwrap().unwrap();
        let ServerFrame::Deliver(deliver) = ServerFrame::decode(frame.raw()).unwrap().frame else {
            panic!("no deliver")
        };
        assert_eq!(frame.share(deliver.batch.0), shared.bytes);
    });
    assert!(kept <= 3, "a kept batch costs its buffer and its reference count, not {kept} allocations");

    let mut batch = RecordBatch::new();
    (0..64).for_each(|_| batch.push_payload(&[7; 128]).unwrap());
    let mut out = Vec::new();
    let mut decoder = Decoder::new();
    decoder.set_max_bytes(1 << 20);
    let append = allocations(|| {
        out.clear();
        let append = |out: &mut Vec<u8>| {
            encode_append(out, StreamId(1), None, &batch);
            Ok(())
        };
        put_write(&mut out, 7, Level(None), append).unwrap();
        for _ in 0..20 {
            decoder.feed(&out);
            let raw = decoder.next_borrowed().unwrap().unwrap();
            let ClientFrame::Write(write) = ClientFrame::decode(raw).unwrap().frame else { panic!("no write") };
            ClientCommand::check(write.command.0).unwrap();
        }
    });
    assert_eq!(append, 0, "an append encoded, decoded and checked");

    let mut decoder = Decoder::new();
    let cache = allocations(|| {
        for _ in 0..2000 {
            out.clear();
            CacheGet { cache: 1, key: RemainingBytes(b"key") }.encode(&mut out, 1).unwrap();
            let (expect, ttl) = (CacheExpect::Any {}, CacheTtl::Never {});
            CachePut { cache: 1, expect, ttl, key: b"key", value: RemainingBytes(&[7; 128]) }
                .encode(&mut out, 2)
                .unwrap();
            decoder.feed(&out);
            while let Some(raw) = decoder.next_borrowed().unwrap() {
                ClientFrame::decode(raw).unwrap();
            }
            out.clear();
            CacheValue { version: 1, remaining: 5, value: RemainingBytes(&[7; 128]) }.encode(&mut out, 1).unwrap();
            decoder.feed(&out);
            ServerFrame::decode(decoder.next_borrowed().unwrap().unwrap()).unwrap();
        }
    });
    assert_eq!(cache, 0, "cache get, put and value");
}
