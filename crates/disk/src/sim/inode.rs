//! One simulated file without its name: what the cache shows, what the medium holds, and the changes
//! in between.
//!
//! Invariant: `cached` is `durable` with every pending change applied, except for sectors that a
//! failed sync left behind (clean in the cache, never written).

use super::{
    content::{Content, SECTOR_BYTES},
    power::Survival,
    rng::Rng,
};

/// A change that the medium has not been told to keep yet.
#[derive(Clone, Debug)]
struct Pending {
    /// Number of the operation that made it.
    operation: u64,
    sectors: Sectors,
    /// The new length, if it changed.
    len: Option<u64>,
}

/// New versions of whole sectors.
#[derive(Clone, Debug)]
enum Sectors {
    None,
    Bytes {
        first: u64,
        bytes: Vec<u8>,
    },
    Zeroes {
        first: u64,
        count: u64,
    },
    /// A shorter length zeroes the rest of the sector it ends in, and every sector from `first` on.
    Cut {
        boundary: Option<(u64, Box<[u8; SECTOR_BYTES]>)>,
        first: u64,
    },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    /// The last name it had in the cache: for faults by path, and for events.
    pub(super) name: String,
    pub(super) cached: Content,
    pub(super) durable: Content,
    pending: Vec<Pending>,
    /// Whether the cached directory names it.
    pub(super) linked: bool,
    /// Open handles and mappings.
    pub(super) handles: usize,
}

impl Inode {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), linked: true, ..Self::default() }
    }

    /// A file after a restart of the machine: `content` is all there is.
    pub(super) fn restored(name: &str, content: Content) -> Self {
        Self { durable: content.clone(), cached: content, ..Self::new(name) }
    }

    pub(super) fn write(&mut self, operation: u64, data: &[u8], offset: u64) {
        self.cached.overwrite(data, offset);
        let end = offset + data.len() as u64;
        let len = (end > self.cached.len()).then_some(end);
        if let Some(len) = len {
            self.cached.set_len(len);
        }
        let first = offset / SECTOR_BYTES as u64;
        let count = end.div_ceil(SECTOR_BYTES as u64) - first;
        let bytes = self.cached.sectors(first, count);
        let sectors = if bytes.iter().all(|byte| *byte == 0) {
            Sectors::Zeroes { first, count }
        } else {
            Sectors::Bytes { first, bytes }
        };
        self.pending.push(Pending { operation, sectors, len });
    }

    pub(super) fn set_len(&mut self, operation: u64, len: u64) {
        let shrinks = len < self.cached.len();
        self.cached.set_len(len);
        let sectors = if shrinks { self.cut(len) } else { Sectors::None };
        self.pending.push(Pending { operation, sectors, len: Some(len) });
    }

    fn cut(&mut self, len: u64) -> Sectors {
        self.cached.trim();
        let sector_bytes = SECTOR_BYTES as u64;
        let boundary = (!len.is_multiple_of(sector_bytes)).then(|| {
            let sector = len / sector_bytes;
            let mut bytes = Box::new([0; SECTOR_BYTES]);
            self.cached.read(&mut bytes[..], sector * sector_bytes);
            (sector, bytes)
        });
        Sectors::Cut { boundary, first: len.div_ceil(sector_bytes) }
    }

    /// A sync that succeeds: the medium takes every pending change. What an earlier failed sync left
    /// behind is not among them.
    pub(super) fn sync(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            pending.sectors.apply(&mut self.durable, |_| true);
        }
        self.durable.set_len(self.cached.len());
        self.durable.trim();
    }

    /// A sync that fails: the pages become clean without having been written, except for those sectors
    /// that `spill` lets through. Lengths are metadata and stay pending.
    pub(super) fn fail_sync(&mut self, mut spill: Option<&mut Rng>) {
        for pending in &mut self.pending {
            let sectors = std::mem::replace(&mut pending.sectors, Sectors::None);
            if let Some(rng) = spill.as_deref_mut() {
                sectors.apply(&mut self.durable, |_| rng.chance(8));
            }
        }
        self.pending.retain(|pending| pending.len.is_some());
    }

    /// What is found after the power fails: any subset of pending sector versions and lengths.
    pub(super) fn survivors(&self, survival: &mut Survival) -> Content {
        let mut content = self.durable.clone();
        survival.next_file();
        for pending in &self.pending {
            pending.sectors.apply(&mut content, |_| survival.keeps(pending.operation));
            if let (Some(len), true) = (pending.len, survival.keeps(pending.operation)) {
                content.set_len(len);
            }
        }
        content.trim();
        content
    }

    /// Evicts what is clean: it is read from the medium again.
    pub(super) fn drop_clean(&mut self) {
        let len = self.cached.len();
        self.cached = self.durable.clone();
        for pending in &self.pending {
            pending.sectors.apply(&mut self.cached, |_| true);
        }
        self.cached.set_len(len);
        self.cached.trim();
    }

    pub(super) fn pending_operations(&self) -> impl Iterator<Item = u64> {
        self.pending.iter().map(|pending| pending.operation)
    }

    /// Flips a bit of a byte, on the medium and in the cache.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) {
        for content in [&mut self.cached, &mut self.durable] {
            let mut byte = [0];
            content.read(&mut byte, offset);
            content.overwrite(&[byte[0] ^ (1 << bit)], offset);
        }
    }
}

impl Sectors {
    /// Brings those versions into `content` that `keeps` lets through.
    fn apply(&self, content: &mut Content, mut keeps: impl FnMut(u64) -> bool) {
        match self {
            Self::None => {}
            Self::Bytes { first, bytes } => {
                for (sector, version) in (*first..).zip(bytes.chunks(SECTOR_BYTES)) {
                    if keeps(sector) {
                        content.overwrite(version, sector * SECTOR_BYTES as u64);
                    }
                }
            }
            Self::Zeroes { first, count } => {
                for sector in *first..first + count {
                    if keeps(sector) {
                        content.overwrite(&[0; SECTOR_BYTES], sector * SECTOR_BYTES as u64);
                    }
                }
            }
            Self::Cut { boundary, first } => {
                if let Some((sector, version)) = boundary
                    && keeps(*sector)
                {
                    content.overwrite(&version[..], sector * SECTOR_BYTES as u64);
                }
                for sector in content.allocated_sectors_from(*first) {
                    if keeps(sector) {
                        content.zero_sector(sector);
                    }
                }
            }
        }
    }
}
