//! Random calls on real files and on the simulated disk must return the same results, call by call. Each
//! failure names its seed; `DIFFERENTIAL_SEED=n` runs only that seed, with more calls.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice},
    sync::Arc,
};

use thalweg_disk::{Disk, File, LockGuard, Mapping, RealDisk, SimDisk};

use crate::support::Rng;

/// No call removes a directory, so only these can exist; `d/e` can be a file or a directory.
const DIRS: [&str; 4] = ["", "d", "d/e", "f"];
const NAMES: [&str; 4] = ["a", "b", "c", "e"];

/// One disk with its open handles.
struct Side {
    disk: Box<dyn Disk>,
    handles: BTreeMap<u64, Arc<dyn File>>,
    mappings: BTreeMap<u64, (Box<dyn Mapping>, u64)>,
    locks: BTreeMap<u64, Box<dyn LockGuard>>,
}

/// Result of a call, comparable between disks.
#[derive(Debug, PartialEq)]
enum Answer {
    Done,
    Names(Vec<String>),
    Len(u64),
    Bytes(Vec<u8>),
    Failed(io::ErrorKind),
}

fn answer<T>(result: io::Result<T>, shown: impl FnOnce(T) -> Answer) -> Answer {
    result.map_or_else(|error| Answer::Failed(error.kind()), shown)
}

fn done<T>(result: io::Result<T>) -> Answer {
    answer(result, |_| Answer::Done)
}

/// A random call, executed on both sides.
#[derive(Clone, Debug)]
enum Call {
    Open { slot: u64, path: String },
    Create { slot: u64, path: String },
    Close { slot: u64 },
    Rename { from: String, to: String },
    Remove { path: String },
    CreateDir { path: String },
    List { dir: String },
    SyncDir { dir: String },
    Lock { slot: u64, path: String },
    Unlock { slot: u64 },
    Write { slot: u64, data: Vec<u8>, offset: u64 },
    WriteVectored { slot: u64, data: Vec<u8>, cut: usize, offset: u64 },
    Read { slot: u64, len: usize, offset: u64 },
    ReadAll { slot: u64 },
    SetLen { slot: u64, len: u64 },
    Sync { slot: u64 },
    Map { slot: u64 },
    WriteMapped { slot: u64, data: Vec<u8>, offset: u64 },
}

fn draw(rng: &mut Rng) -> Call {
    let slot = rng.below(4);
    let offset = rng.below(20_000);
    let size = rng.below(6000) as usize;
    match rng.below(24) {
        0 | 1 => Call::Open { slot, path: draw_path(rng) },
        2..=4 => Call::Create { slot, path: draw_path(rng) },
        5 => Call::Close { slot },
        6 => Call::Rename { from: draw_path(rng), to: draw_path(rng) },
        7 => Call::Remove { path: draw_path(rng) },
        8 => Call::CreateDir { path: DIRS[rng.below(4) as usize].to_owned() },
        9 => Call::List { dir: draw_dir(rng) },
        10 => Call::SyncDir { dir: draw_dir(rng) },
        11 => Call::Lock { slot, path: draw_path(rng) },
        12 => Call::Unlock { slot },
        13..=15 => Call::Write { slot, data: rng.bytes(size), offset },
        16 => Call::WriteVectored { slot, data: rng.bytes(size), cut: rng.below(size as u64 + 1) as usize, offset },
        17 => Call::Read { slot, len: size, offset },
        18 => Call::ReadAll { slot },
        19 => Call::SetLen { slot, len: offset },
        20 => Call::Sync { slot },
        21 => Call::Map { slot },
        _ => Call::WriteMapped { slot, data: rng.bytes(size), offset },
    }
}

/// Returns a directory in most cases.
fn draw_dir(rng: &mut Rng) -> String {
    if rng.below(4) == 0 { draw_path(rng) } else { DIRS[rng.below(4) as usize].to_owned() }
}

fn draw_path(rng: &mut Rng) -> String {
    let dir = DIRS[rng.below(4) as usize];
    let name = NAMES[rng.below(4) as usize];
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

impl Side {
    fn new(disk: Box<dyn Disk>) -> Self {
        Self { disk, handles: BTreeMap::new(), mappings: BTreeMap::new(), locks: BTreeMap::new() }
    }

    fn keep(&mut self, slot: u64, file: io::Result<Arc<dyn File>>) -> Answer {
        answer(file, |file| {
            self.handles.insert(slot, file);
            Answer::Done
        })
    }

    fn call(&mut self, call: &Call) -> Answer {
        match call {
            Call::Open { slot, path } => self.keep(*slot, self.disk.open(path)),
            Call::Create { slot, path } => self.keep(*slot, self.disk.create(path)),
            Call::Close { slot } => {
                self.handles.remove(slot);
                Answer::Done
            }
            Call::Rename { from, to } => done(self.disk.rename(from, to)),
            Call::Remove { path } => done(self.disk.remove(path)),
            Call::CreateDir { path } => done(self.disk.create_dir(path)),
            Call::List { dir } => answer(self.disk.list(dir), Answer::Names),
            Call::SyncDir { dir } => done(self.disk.sync_dir(dir)),
            Call::Lock { slot, path } => answer(self.disk.lock(path), |guard| {
                self.locks.insert(*slot, guard);
                Answer::Done
            }),
            Call::Unlock { slot } => {
                self.locks.remove(slot);
                Answer::Done
            }
            Call::WriteMapped { slot, data, offset } => {
                if let Some((mapping, len)) = self.mappings.get_mut(slot) {
                    let room = usize::try_from(len.saturating_sub(*offset)).unwrap().min(data.len());
                    mapping.write(&data[..room], (*offset).min(*len));
                }
                Answer::Done
            }
            on_file => self.call_file(on_file),
        }
    }

    fn call_file(&mut self, call: &Call) -> Answer {
        let (Call::Write { slot, .. }
        | Call::WriteVectored { slot, .. }
        | Call::Read { slot, .. }
        | Call::ReadAll { slot }
        | Call::SetLen { slot, .. }
        | Call::Sync { slot }
        | Call::Map { slot }) = call
        else {
            unreachable!("the caller handled the others")
        };
        let Some(file) = self.handles.get(slot).cloned() else { return Answer::Done };
        match call {
            Call::Write { data, offset, .. } => done(file.write_all_at(data, *offset)),
            Call::WriteVectored { data, cut, offset, .. } => {
                let parts = [IoSlice::new(&data[..*cut]), IoSlice::new(&data[*cut..])];
                done(file.write_all_vectored_at(&parts, *offset))
            }
            Call::Read { len, offset, .. } => {
                let mut bytes = vec![0; *len];
                answer(file.read_exact_at(&mut bytes, *offset), |()| Answer::Bytes(bytes))
            }
            Call::SetLen { len, .. } => {
                // No file may shrink while it is mapped, through any handle.
                self.mappings.clear();
                done(file.set_len(*len))
            }
            Call::Sync { .. } => done(file.sync_data()),
            Call::Map { slot } => self.map(*slot, &file),
            _ => Answer::Bytes(read_all(&*file)),
        }
    }

    /// Writes the whole file before mapping it, so that it has no holes.
    fn map(&mut self, slot: u64, file: &Arc<dyn File>) -> Answer {
        let bytes = read_all(&**file);
        file.write_all_at(&bytes, 0).unwrap();
        answer(file.map(bytes.len() as u64), |mapping| {
            self.mappings.insert(slot, (mapping, bytes.len() as u64));
            Answer::Len(bytes.len() as u64)
        })
    }

    /// Complete content of the disk, read through the trait.
    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let mut contents = BTreeMap::new();
        for parent in DIRS {
            for name in self.disk.list(parent).unwrap_or_default() {
                let path = if parent.is_empty() { name } else { format!("{parent}/{name}") };
                let bytes = read_all(&*self.disk.open(&path).unwrap());
                contents.insert(path, bytes);
            }
        }
        contents
    }
}

fn read_all(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn compare(seed: u64, calls: usize) {
    let mut rng = Rng::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut real = Side::new(Box::new(RealDisk::open(dir.path()).unwrap()));
    let sim = SimDisk::new(seed);
    let mut simulated = Side::new(Box::new(sim.clone()));
    let mut bytes_read = 0;
    for step in 0..calls {
        let call = draw(&mut rng);
        let (expected, found) = (real.call(&call), simulated.call(&call));
        assert!(expected == found, "seed {seed} step {step} {call:?}: real {expected:?}, simulated {found:?}");
        bytes_read += if let Answer::Bytes(bytes) = found { bytes.len() } else { 0 };
    }
    assert!(bytes_read > 50 * calls, "seed {seed}: too little data was compared");
    assert!(real.contents() == simulated.contents(), "seed {seed}: trees differ");
    // Unsynced changes must also be complete after a power loss that keeps them.
    let kept = sim.after_power_loss_with(thalweg_disk::sim::PowerLoss::KeepUnsynced);
    assert!(Side::new(Box::new(kept)).contents() == simulated.contents(), "seed {seed}: kept tree differs");
}

#[test]
fn real_and_simulated_disk_answer_alike() {
    match std::env::var("DIFFERENTIAL_SEED") {
        Ok(seed) => compare(seed.parse().expect("DIFFERENTIAL_SEED is a number"), 100_000),
        Err(_) => (0..30).for_each(|seed| compare(seed, 800)),
    }
}
