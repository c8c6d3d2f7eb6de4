//! A checkpoint of the memory backend made of the input: as it comes, or with every checksum right.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use thalweg_fuzz::{Input, NoLog, disk_with};
use thalweg_log::crc32c;
use thalweg_state::machine::{Machine, MachineOptions};
use thalweg_store::{
    Backend,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::SpaceTime;

/// Wraps the input in a header, frames and an end whose checksums are right.
fn sealed(input: &mut Input<'_>) -> Vec<u8> {
    let mut out = b"THWGMEM1".to_vec();
    for _ in 0..5 {
        out.extend_from_slice(&input.number().to_le_bytes());
    }
    out.extend_from_slice(&[0; 4]);
    let crc = crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    let payload = pairs(input);
    let cut = 1 + usize::from(input.short());
    let mut number = 0_u32;
    let mut frame = |len: u32, bytes: &[u8]| {
        let head = [len.to_le_bytes(), number.to_le_bytes()].concat();
        let crc = crc32c(&[&head[..], bytes].concat());
        number += 1;
        out.extend_from_slice(&head);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(bytes);
    };
    payload.0.chunks(cut).for_each(|bytes| frame(bytes.len() as u32, bytes));
    frame(u32::MAX, &[payload.1.to_le_bytes(), (payload.0.len() as u64).to_le_bytes()].concat());
    out
}

/// Pairs of the input's keys and values, mostly in order, and how many.
fn pairs(input: &mut Input<'_>) -> (Vec<u8>, u64) {
    let mut out = Vec::new();
    let mut count = 0;
    while !input.is_empty() {
        let (key, value) = (input.bytes(), input.bytes());
        let odd = input.byte();
        let key_len = if odd == 255 { input.number() as u32 } else { key.len() as u32 };
        out.extend_from_slice(&key_len.to_le_bytes());
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value);
        count += 1;
    }
    (out, count)
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let file = if input.byte() % 4 == 0 { input.0.to_vec() } else { sealed(&mut input) };
    let disk = disk_with("state", &[("checkpoint", &file)]);
    let options = MemoryOptions { dir: "state".to_owned(), ..MemoryOptions::default() };
    let Ok(backend) = MemoryBackend::open(disk, options, Arc::new(NoLog)) else { return };
    let backend: Arc<dyn Backend> = Arc::new(backend);
    let Ok(machine) = Machine::open(backend.clone(), MachineOptions::default()) else { return };
    for info in machine.streams() {
        let _ = machine.batches_from(info.id, info.start, 100, u64::MAX);
        let _ = machine.offset_at_or_after(info.id, SpaceTime(1));
    }
    for (id, _) in machine.keyspaces() {
        let _ = machine.get(id, b"k");
    }
    let _ = machine.retention_due(SpaceTime(u64::MAX));
    let _ = backend.flush();
});
