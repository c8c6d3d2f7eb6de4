//! The simulated disk's guarantees under random workloads, compared with models that assume nothing else.
//! Each failure names its seed; `CONTRACT_SEED=n` runs only that seed, `CONTRACT_SEEDS=n` the first `n`
//! seeds.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use thalweg_disk::{
    Disk, File, Mapping, SimDisk,
    sim::{Errno, Fault, Operation, PowerLoss},
};

use crate::support::{Rng, durable_file, tree};

const SECTOR: usize = 512;
const MAX_LEN: usize = 12 * SECTOR;

fn seeds(count: u64) -> Vec<u64> {
    let given = |name| std::env::var(name).ok().map(|text| text.parse().expect("the seed is a number"));
    match (given("CONTRACT_SEED"), given("CONTRACT_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, first) => (0..first.unwrap_or(count)).collect(),
    }
}

/// Model of one file: durable content, cached content, and the versions that a power loss can leave.
#[derive(Default)]
struct Model {
    cached: Vec<u8>,
    /// Content of fixed size; zeroes beyond `durable_len`.
    durable: Vec<u8>,
    durable_len: usize,
    /// Versions of each sector since the last sync, oldest first.
    versions: BTreeMap<usize, Vec<Vec<u8>>>,
    lens: Vec<usize>,
}

impl Model {
    fn new(len: usize) -> Self {
        Self { cached: vec![0; len], durable: vec![0; MAX_LEN], durable_len: len, ..Self::default() }
    }

    fn touched(&mut self, sectors: std::ops::Range<usize>) {
        for sector in sectors {
            let mut version = vec![0; SECTOR];
            let start = (sector * SECTOR).min(self.cached.len());
            let held = &self.cached[start..self.cached.len().min((sector + 1) * SECTOR)];
            version[..held.len()].copy_from_slice(held);
            self.versions.entry(sector).or_default().push(version);
        }
    }

    fn write(&mut self, data: &[u8], offset: usize) {
        let end = offset + data.len();
        if end > self.cached.len() {
            self.cached.resize(end, 0);
            self.lens.push(end);
        }
        self.cached[offset..end].copy_from_slice(data);
        self.touched(offset / SECTOR..end.div_ceil(SECTOR));
    }

    fn set_len(&mut self, len: usize) {
        let shrinks = len < self.cached.len();
        self.cached.resize(len, 0);
        self.lens.push(len);
        if shrinks {
            self.touched(len / SECTOR..MAX_LEN / SECTOR);
        }
    }

    fn sync(&mut self) {
        for (sector, versions) in std::mem::take(&mut self.versions) {
            self.durable[sector * SECTOR..(sector + 1) * SECTOR].copy_from_slice(versions.last().unwrap());
        }
        self.durable_len = self.cached.len();
        self.durable[self.durable_len..].fill(0);
        self.lens.clear();
    }

    fn fail_sync(&mut self) {
        self.versions.clear();
    }

    /// Checks that `found` is a possible outcome of a power loss.
    fn check(&self, found: &[u8]) -> Result<(), String> {
        let len = found.len();
        if len != self.durable_len && !self.lens.contains(&len) {
            return Err(format!("the file never had length {len}"));
        }
        for (sector, held) in found.chunks(SECTOR).enumerate() {
            let at = sector * SECTOR;
            let matches = |version: &[u8]| version[..held.len()] == *held;
            let later = self.versions.get(&sector).into_iter().flatten();
            if !matches(&self.durable[at..at + SECTOR]) && !later.into_iter().any(|version| matches(version)) {
                return Err(format!("sector {sector} holds bytes that were never written to it"));
            }
        }
        Ok(())
    }
}

/// Runs a random workload on one file and checks power losses during it.
fn check_content(seed: u64) {
    let mut rng = Rng::new(seed);
    let disk = SimDisk::new(seed);
    let start_len = rng.below(MAX_LEN as u64) as usize;
    let file = durable_file(&disk, "a", &vec![0; start_len]);
    let mut model = Model::new(start_len);
    for step in 0..60 {
        change(&disk, &file, &mut model, &mut rng);
        assert_eq!(disk.cached_bytes("a").unwrap(), model.cached, "seed {seed} step {step}: cache");
        for draw in 0..4 {
            let found = disk.power_loss(seed ^ (step << 8) ^ draw).cached_bytes("a").unwrap();
            if let Err(why) = model.check(&found) {
                panic!("seed {seed} step {step} draw {draw}: {why}");
            }
        }
        let lost = disk.after_power_loss_with(PowerLoss::LoseUnsynced).cached_bytes("a").unwrap();
        assert_eq!(lost, model.durable[..model.durable_len], "seed {seed} step {step}: synced data");
    }
}

fn change(disk: &SimDisk, file: &Arc<dyn File>, model: &mut Model, rng: &mut Rng) {
    let len = model.cached.len();
    match rng.below(10) {
        0..=4 => {
            let offset = rng.below(MAX_LEN as u64) as usize;
            let size = 1 + rng.below((MAX_LEN - offset).min(3 * SECTOR) as u64) as usize;
            let data = rng.bytes(size);
            file.write_all_at(&data, offset as u64).unwrap();
            model.write(&data, offset);
        }
        5 if len > 0 => {
            // A mapping requires allocated blocks. So the test first writes the whole file, as the log does.
            let whole = model.cached.clone();
            file.write_all_at(&whole, 0).unwrap();
            model.write(&whole, 0);
            let mut mapping: Box<dyn Mapping> = file.map(len as u64).unwrap();
            let offset = rng.below(len as u64) as usize;
            let data = rng.bytes((len - offset).min(700));
            mapping.write(&data, offset as u64);
            model.write(&data, offset);
        }
        6 => {
            let to = rng.below(MAX_LEN as u64) as usize;
            file.set_len(to as u64).unwrap();
            if to != len {
                model.set_len(to);
            }
        }
        7 => {
            disk.fail(Fault::new(Operation::Sync, 1, Errno::Io));
            file.sync_data().unwrap_err();
            model.fail_sync();
        }
        _ => {
            file.sync_data().unwrap();
            model.sync();
        }
    }
}

#[test]
fn content_is_synced_or_some_later_version_sector_by_sector() {
    for seed in seeds(150) {
        check_content(seed);
    }
}

/// Model of two directories with a few names each; a file's content is its serial number.
struct NameModel {
    /// Every file (or none) that each name referred to since the last sync of its directory.
    history: BTreeMap<String, BTreeSet<Option<u64>>>,
    now: BTreeMap<String, u64>,
}

impl NameModel {
    fn set(&mut self, name: &str, file: Option<u64>) {
        match file {
            Some(file) => self.now.insert(name.to_owned(), file),
            None => self.now.remove(name),
        };
        self.history.get_mut(name).unwrap().insert(file);
    }

    fn sync_dir(&mut self, dir: &str) {
        for (name, history) in &mut self.history {
            if name.starts_with(dir) {
                *history = [self.now.get(name).copied()].into();
            }
        }
    }
}

fn serials(disk: &SimDisk) -> BTreeMap<String, u64> {
    let serial = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().unwrap());
    tree(disk).into_iter().map(|(path, bytes)| (path, serial(bytes))).collect()
}

fn check_names(seed: u64) {
    let mut rng = Rng::new(seed);
    let disk = SimDisk::new(seed);
    let mut model = NameModel { history: BTreeMap::new(), now: BTreeMap::new() };
    for dir in ["x", "y"] {
        disk.create_dir(dir).unwrap();
        model.history.extend((0..4).map(|name| (format!("{dir}/{name}"), [None].into())));
    }
    disk.sync_dir("").unwrap();
    let names: Vec<String> = model.history.keys().cloned().collect();
    for step in 0..80u64 {
        let pick = |rng: &mut Rng| names[rng.below(names.len() as u64) as usize].clone();
        let (name, other) = (pick(&mut rng), pick(&mut rng));
        match (rng.below(8), model.now.get(&name).copied()) {
            (0..=2, None) => {
                let file = disk.create(&name).unwrap();
                file.write_all_at(&step.to_le_bytes(), 0).unwrap();
                file.sync_all().unwrap();
                model.set(&name, Some(step));
            }
            (0..=4, Some(held)) if name != other => {
                disk.rename(&name, &other).unwrap();
                model.set(&name, None);
                model.set(&other, Some(held));
            }
            (5, Some(_)) => {
                disk.remove(&name).unwrap();
                model.set(&name, None);
            }
            (6, _) => {
                let dir = &name[..1];
                disk.sync_dir(dir).unwrap();
                model.sync_dir(dir);
            }
            _ => {}
        }
        assert_eq!(serials(&disk), model.now, "seed {seed} step {step}");
        for draw in 0..4 {
            let found = serials(&disk.power_loss(seed ^ (step << 8) ^ draw));
            for (name, allowed) in &model.history {
                let held = found.get(name).copied();
                assert!(allowed.contains(&held), "seed {seed} step {step} draw {draw}: {name} is {held:?}");
            }
            let files: BTreeSet<_> = found.values().collect();
            assert_eq!(files.len(), found.len(), "seed {seed} step {step} draw {draw}: one file, two names");
        }
    }
}

#[test]
fn names_are_synced_or_some_later_state_and_files_never_double() {
    for seed in seeds(150) {
        check_names(seed);
    }
}

/// Runs a workload of all kinds of calls over several files. Returns the tree after each unsynced change.
fn unsynced_workload(disk: &SimDisk, rng: &mut Rng) -> Vec<BTreeMap<String, Vec<u8>>> {
    let mut trees = vec![tree(disk)];
    for _ in 0..40 {
        let name = format!("{}", rng.below(4));
        let other = format!("{}", rng.below(4));
        match rng.below(6) {
            0 | 1 => drop(disk.create(&name)),
            2 => drop(disk.rename(&name, &other)),
            3 if rng.below(2) == 0 => drop(disk.remove(&name)),
            4 => drop(disk.open(&name).and_then(|file| file.set_len(rng.below(3000)))),
            _ => {
                let (size, offset) = (1 + rng.below(2000) as usize, rng.below(2000));
                let data = rng.bytes(size);
                drop(disk.open(&name).and_then(|file| file.write_all_at(&data, offset)));
            }
        }
        // Some calls fail or change nothing.
        if trees.len() <= disk.unsynced_changes() {
            trees.push(tree(disk));
        }
    }
    trees
}

#[test]
fn a_prefix_is_exactly_the_state_after_so_many_changes() {
    for seed in seeds(100) {
        let disk = SimDisk::new(seed);
        let trees = unsynced_workload(&disk, &mut Rng::new(seed));
        assert_eq!(trees.len(), disk.unsynced_changes() + 1, "seed {seed}");
        for (kept, expected) in trees.iter().enumerate() {
            let found = tree(&disk.after_power_loss_with(PowerLoss::KeepPrefix(kept)));
            assert!(found == *expected, "seed {seed}: prefix of {kept} changes");
        }
        let all = tree(&disk.after_power_loss_with(PowerLoss::KeepUnsynced));
        assert!(all == *trees.last().unwrap(), "seed {seed}: everything kept");
    }
}

#[test]
fn the_same_seed_gives_the_same_disk() {
    for seed in seeds(50) {
        let runs = [(); 2].map(|()| {
            let disk = SimDisk::new(seed);
            disk.keep_events(1000);
            disk.fail(Fault::new(Operation::Write, 5, Errno::Io).with_partial_effect());
            let trees = unsynced_workload(&disk, &mut Rng::new(seed));
            disk.clear_faults();
            let file = durable_file(&disk, "last", &[1; 5000]);
            file.write_all_at(&[2; 5000], 0).unwrap();
            disk.fail(Fault::new(Operation::Sync, 1, Errno::Io).with_partial_effect());
            file.sync_data().unwrap_err();
            let losses: Vec<_> = (0..10).map(|draw| tree(&disk.power_loss(seed + draw))).collect();
            (trees, losses, disk.events(), disk.counts())
        });
        assert!(runs[0] == runs[1], "seed {seed}");
    }
}

#[test]
fn what_a_thread_was_told_is_synced_survives_whatever_others_do() {
    const THREADS: u64 = 4;
    let disk = SimDisk::new(1);
    durable_file(&disk, "a", &[0; THREADS as usize * SECTOR]);
    let acknowledged: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (thread, acknowledged) in (0..THREADS).zip(&acknowledged) {
            let disk = &disk;
            scope.spawn(move || {
                let file = disk.open("a").unwrap();
                let mut mapping = file.map(THREADS * SECTOR as u64).unwrap();
                for round in 1..=300u64 {
                    let scratch = format!("scratch-{thread}-{}", round % 3);
                    drop(disk.create(&scratch));
                    mapping.write(&round.to_le_bytes(), thread * SECTOR as u64);
                    file.sync_data().unwrap();
                    acknowledged.store(round, Ordering::SeqCst);
                    disk.rename(&scratch, &format!("scratch-{}", round % 2)).unwrap();
                    drop(disk.remove("scratch-0"));
                }
            });
        }
        for draw in 0..100 {
            let told: Vec<u64> = acknowledged.iter().map(|round| round.load(Ordering::SeqCst)).collect();
            let found = disk.power_loss(draw).cached_bytes("a").unwrap();
            for (sector, told) in found.chunks(SECTOR).zip(told) {
                let held = u64::from_le_bytes(sector[..8].try_into().unwrap());
                assert!(held >= told, "draw {draw}: the file holds {held}, but {told} was acknowledged");
            }
        }
    });
    let last = disk.after_power_loss_with(PowerLoss::LoseUnsynced).cached_bytes("a").unwrap();
    assert!(last.chunks(SECTOR).all(|sector| sector[..8] == 300u64.to_le_bytes()));
}

/// Replaces a file's content by the usual sequence (temporary file, sync, rename, directory sync), without
/// the syncs that the caller switches off.
fn replace(disk: &SimDisk, content: &[u8], sync_file: bool, sync_dir: bool) -> std::io::Result<()> {
    if disk.list("")?.iter().any(|name| name == "a.tmp") {
        disk.remove("a.tmp")?;
    }
    let file = disk.create("a.tmp")?;
    file.write_all_at(content, 0)?;
    if sync_file {
        file.sync_all()?;
    }
    disk.rename("a.tmp", "a")?;
    if sync_dir {
        disk.sync_dir("")?;
    }
    Ok(())
}

/// Returns true if the sequence survives a crash at every operation: old or new content, and new content
/// after it has returned.
fn replace_is_safe(sync_file: bool, sync_dir: bool) -> bool {
    let (old, new) = (vec![1; 1500], vec![2; 1500]);
    let mut safe = true;
    for crash_at in 0..10 {
        let disk = SimDisk::new(1);
        durable_file(&disk, "a", &old);
        disk.power_off_after(crash_at);
        let returned = replace(&disk, &new, sync_file, sync_dir).is_ok();
        for seed in 0..40 {
            let found = disk.power_loss(seed).cached_bytes("a").ok();
            safe &= found.as_ref() == Some(&new) || (!returned && found.as_ref() == Some(&old));
        }
    }
    safe
}

#[test]
fn enumerating_crash_points_tells_a_safe_replacement_from_unsafe_ones() {
    assert!(replace_is_safe(true, true));
    assert!(!replace_is_safe(false, true), "an unsynced file under a synced name was not caught");
    assert!(!replace_is_safe(true, false), "an unsynced rename was not caught");
}
